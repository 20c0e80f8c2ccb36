//! The password of a person who is signed in.

use store::PasswordTry;

use crate::credentials::SignInAttempt;
use crate::page::{ConsoleResult, Refusal, SignedIn};

/// Proof that the password was verified.
pub(crate) struct VerifiedPassword<'a> {
    pub(crate) attempt: SignInAttempt<'a>,
    /// The stored hash at the time of verification.
    pub(crate) hash: String,
}

/// Verifies the password. It is throttled like a sign-in, so that a stolen session does not allow faster guessing.
pub(crate) async fn check_password<'a>(user: &SignedIn<'a>, typed: &str) -> ConsoleResult<VerifiedPassword<'a>> {
    let email = &user.account()?.email;
    let attempt = user.console.sign_in_throttle.begin(user.client, Some(email)).await??;
    let current = user.store().accounts().password(user.viewer()).await?;
    let is_right = user.console.passwords.verify(&attempt, typed, current.clone()).await;
    if let Some(hash) = current.filter(|_| is_right) {
        return Ok(VerifiedPassword { attempt, hash });
    }
    attempt.failed().await?;
    user.console.wrong_passwords.add(PasswordTry::Confirmation, Some(email.clone()), user.client);
    Err(Refusal::invalid("The current password is incorrect.").into())
}
