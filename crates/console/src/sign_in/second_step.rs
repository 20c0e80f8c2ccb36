//! The second step of sign-in, after a correct password: a code of an authenticator app, or a recovery code. A passkey,
//! which needs no password, is offered as well.

use http::StatusCode;
use maud::html;
use store::{
    AccountId, Challenge, ChallengePurpose, CodeTry, Credentials, Email, PasswordTry, Proof, RecoveryCode,
    SecondFactorCode, SignInError, StartedSession, Token,
};

use crate::credentials::{AuthenticatorKey, SignInOutcome};
use crate::page::{
    Anonymous, Console, ConsoleRequest, ConsoleResponse, ConsoleResult, Cookie, Draft, FormSender, Refusal, csrf_field,
};
use crate::sign_in::first_step::{OUTDATED, local_path, passkey_button};

/// The lifetime of the challenge.
const COOKIE_SECONDS: u32 = 300;
const TOO_LATE: &str = "This took too long, or too many codes were wrong. Please sign in again.";

/// Starts the second step for an account whose password was correct.
pub(crate) async fn begin(visitor: &Anonymous<'_>, verified: &Credentials, email: &Email, next: &str) -> ConsoleResult {
    let console = visitor.console;
    // An e-mail address has no line breaks.
    let body = format!("{email}\n{}", local_path(next));
    match console.store.sign_ins().begin_second_step(verified, &body).await? {
        Some(token) => {
            let response = ConsoleResponse::redirect("/sign-in/second-factor");
            Ok(console.set_cookie(response, Cookie::SecondFactor, token.reveal(), COOKIE_SECONDS))
        }
        None => Ok(console.redirect_with_message("/sign-in", OUTDATED)),
    }
}

pub(crate) fn page(visitor: &Anonymous<'_>) -> ConsoleResponse {
    page_with(visitor, &Draft::default())
}

fn page_with(visitor: &Anonymous<'_>, draft: &Draft) -> ConsoleResponse {
    let content = html! {
        section.card.narrow {
            h1 { "Second factor" }
            (draft.message())
            form.fields method="post" action="/sign-in/second-factor" {
                (csrf_field(visitor))
                label {
                    "Code"
                    input name="code" required autofocus autocomplete="one-time-code" inputmode="text" maxlength="40"
                        aria-describedby="code-hint";
                    span.hint #code-hint { "Six digits from your authenticator app, or one of your recovery codes." }
                }
                button.primary type="submit" { "Sign in" }
            }
            (passkey_button(visitor, ""))
            p.quiet.small { "Lost all your factors? Ask an administrator to remove them." }
        }
    };
    visitor.page("Second factor", content).with_status(draft.status())
}

pub(crate) async fn sign_in(visitor: Anonymous<'_>, request: &mut ConsoleRequest) -> ConsoleResult {
    let form = visitor.form(request).await?;
    let console = visitor.console;
    console.require_passwords()?;
    let token = console.cookie(request, Cookie::SecondFactor).and_then(Token::parse);
    let challenge = match &token {
        Some(token) => console.store.sign_ins().challenge(ChallengePurpose::SecondFactor, token).await?,
        None => None,
    };
    let (Some(token), Some(Challenge { account, body })) = (token, challenge) else { return Ok(too_late(console)) };
    let (email, next) = body.split_once('\n').unwrap_or_default();
    let email: Option<Email> = email.parse().ok();
    let attempt = match console.sign_in_throttle.begin(request.client, email.as_ref()).await? {
        Ok(attempt) => attempt,
        Err(refusal) => return Ok(page_with(&visitor, &form.refused(refusal.into()))),
    };
    let refusal = match check_code(console, &token, account, form.get("code"), request).await? {
        Checked::Right(session) => {
            attempt.succeeded().await?;
            console.count_sign_in(SignInOutcome::Succeeded);
            let response = console.clear_cookie(ConsoleResponse::redirect(local_path(next)), Cookie::SecondFactor);
            return Ok(console.signed_in(response, &session));
        }
        Checked::TooLate => return Ok(too_late(console)),
        Checked::Wrong => "This code is wrong or was already used.",
        Checked::TooManyWrong => {
            "Too many codes were wrong. Use a passkey or a recovery code, or try again in a few minutes."
        }
    };
    attempt.failed().await?;
    console.count_sign_in(SignInOutcome::Failed);
    console.wrong_passwords.add(PasswordTry::SecondFactor, email, request.client);
    Ok(page_with(&visitor, &form.refused(Refusal::new(StatusCode::UNAUTHORIZED, refusal))))
}

fn too_late(console: &Console) -> ConsoleResponse {
    let response = console.redirect_with_message("/sign-in", TOO_LATE);
    console.clear_cookie(response, Cookie::SecondFactor)
}

enum Checked {
    Right(StartedSession),
    Wrong,
    /// Six digits could be guessed in time by an attacker who knows the password. A recovery code is too long for that.
    TooManyWrong,
    /// The challenge has ended: by time, by the number of tries, or by a change of the account.
    TooLate,
}

/// Consumes the code and the challenge, and begins the session.
async fn check_code(
    console: &Console,
    challenge: &Token,
    account: AccountId,
    typed: &str,
    request: &ConsoleRequest,
) -> ConsoleResult<Checked> {
    let store = &console.store;
    let recovery = RecoveryCode::parse(typed);
    match store.sign_ins().count_code(challenge, recovery.is_none()).await? {
        CodeTry::Counted => {}
        CodeTry::ChallengeGone => return Ok(Checked::TooLate),
        CodeTry::TooManyWrong => return Ok(Checked::TooManyWrong),
    }
    let app = match &recovery {
        None => store.second_factors().authenticator_app(account).await?,
        Some(_) => None,
    };
    let app_code = app.as_ref().and_then(|app| {
        let step = AuthenticatorKey::parse(&app.key)?.step_of(typed, store.now())?;
        Some(SecondFactorCode::App { key: &app.key, step })
    });
    let Some(code) = recovery.as_ref().map(SecondFactorCode::Recovery).or(app_code) else { return Ok(Checked::Wrong) };
    match store.sessions().begin(account, &request.origin(), Proof::Code { challenge, code }).await {
        Ok(session) => Ok(Checked::Right(session)),
        Err(SignInError::WrongCode) => Ok(Checked::Wrong),
        Err(SignInError::Outdated) => Ok(Checked::TooLate),
        Err(SignInError::Store(error)) => Err(error.into()),
    }
}
