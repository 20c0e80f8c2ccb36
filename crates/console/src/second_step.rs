//! The second step of signing in: the password was right, and a code of an authenticator app or a recovery code is to
//! follow. A passkey, which needs no password, is offered as well.

use http::StatusCode;
use maud::html;
use store::{AccountId, Challenge, ChallengePurpose, Email, PasswordTry, RecoveryCode, SignInMethod, Token};

use crate::Console;
use crate::authenticator::AuthenticatorKey;
use crate::components::{anonymous_csrf_field, form_error};
use crate::console_request::ConsoleRequest;
use crate::cookies::Cookie;
use crate::error::ConsoleResult;
use crate::response::ConsoleResponse;
use crate::session::Anonymous;
use crate::sign_in::{local_path, passkey_button, start_session};

/// As long as the challenge.
const COOKIE_SECONDS: u32 = 300;
/// Wrong codes of an app, half of which are forgotten after five minutes: some 2,000 guesses a day.
const MAX_WRONG_CODES: f64 = 10.0;
const TOO_LATE: &str = "This took too long, or too many codes were wrong. Please sign in again.";

/// Remembers that the password of an account was right.
pub(crate) async fn begin(
    visitor: &Anonymous<'_>,
    account: AccountId,
    email: &Email,
    next: &str,
    request: &ConsoleRequest,
) -> ConsoleResult {
    let (console, purpose) = (visitor.console, ChallengePurpose::SecondFactor);
    let network = transport::network(request.client).to_string();
    // An e-mail address has no line breaks.
    let body = format!("{email}\n{}", local_path(next));
    let token = console.store.create_challenge(purpose, Some(account), &network, &body).await?;
    let response = ConsoleResponse::redirect("/sign-in/second-factor");
    Ok(console.set_cookie(response, Cookie::SecondFactor, token.reveal(), COOKIE_SECONDS))
}

pub(crate) fn page(visitor: &Anonymous<'_>) -> ConsoleResponse {
    page_with(visitor, None)
}

fn page_with(visitor: &Anonymous<'_>, error: Option<&str>) -> ConsoleResponse {
    let content = html! {
        section.card.narrow {
            h1 { "Second factor" }
            (form_error(error))
            form.fields method="post" action="/sign-in/second-factor" {
                (anonymous_csrf_field(visitor))
                label {
                    "Code"
                    input name="code" required autofocus autocomplete="one-time-code" inputmode="text" maxlength="40"
                        aria-describedby="code-hint";
                    span.hint #code-hint { "Six digits from your authenticator app, or one of your recovery codes." }
                }
                button.primary type="submit" { "Sign in" }
            }
            (passkey_button(visitor, ""))
            p.quiet.small { "Lost everything? Ask an administrator to remove your second factors." }
        }
    };
    visitor.page("Second factor", content)
}

pub(crate) async fn sign_in(visitor: Anonymous<'_>, request: &mut ConsoleRequest) -> ConsoleResult {
    let form = visitor.form(request).await?;
    let console = visitor.console;
    console.require_passwords()?;
    let token = console.cookie(request, Cookie::SecondFactor).and_then(Token::parse);
    let challenge = match &token {
        Some(token) => console.store.challenge(ChallengePurpose::SecondFactor, token).await?,
        None => None,
    };
    let (Some(token), Some(Challenge { account: Some(account), body })) = (token, challenge) else {
        return Ok(too_late(console));
    };
    let (email, next) = body.split_once('\n').unwrap_or_default();
    let email: Option<Email> = email.parse().ok();
    let attempt = match console.sign_in_throttle.begin(request.client, email.as_ref()).await? {
        Ok(attempt) => attempt,
        Err(crowded) => return Ok(page_with(&visitor, Some(crowded.message())).with_status(crowded.status())),
    };
    // Only a try that waited its turn is counted.
    if console.store.try_challenge(ChallengePurpose::SecondFactor, &token).await?.is_none() {
        return Ok(too_late(console));
    }
    let refusal = match check_code(console, account, form.get("code"), request).await? {
        Checked::Right => None,
        Checked::Wrong => Some("This code is wrong, or was used already."),
        Checked::TooManyWrong => {
            Some("Too many codes were wrong. Use a passkey or a recovery code, or try again in some minutes.")
        }
    };
    if let Some(refusal) = refusal {
        attempt.failed().await?;
        console.sign_ins.failed.add();
        console.wrong_passwords.add(PasswordTry::SecondFactor, email, request.client);
        return Ok(page_with(&visitor, Some(refusal)).with_status(StatusCode::UNAUTHORIZED));
    }
    console.store.take_challenge(ChallengePurpose::SecondFactor, &token).await?;
    attempt.succeeded().await?;
    console.sign_ins.succeeded.add();
    let response = console.clear_cookie(ConsoleResponse::redirect(local_path(next)), Cookie::SecondFactor);
    start_session(&visitor, account, SignInMethod::Password, request, response).await
}

fn too_late(console: &Console) -> ConsoleResponse {
    let response = console.redirect_with_message("/sign-in", TOO_LATE);
    console.clear_cookie(response, Cookie::SecondFactor)
}

enum Checked {
    Right,
    Wrong,
    /// Whoever knows the password could guess six digits in time. A recovery code is not guessed.
    TooManyWrong,
}

/// Uses the code up.
async fn check_code(
    console: &Console,
    account: AccountId,
    typed: &str,
    request: &ConsoleRequest,
) -> ConsoleResult<Checked> {
    let store = &console.store;
    let checked = |is_right| if is_right { Checked::Right } else { Checked::Wrong };
    if let Some(code) = RecoveryCode::parse(typed) {
        return Ok(checked(store.use_recovery_code(account, &code, &request.client.to_string()).await?));
    }
    let Some(app) = store.authenticator_app(account).await? else { return Ok(Checked::Wrong) };
    let subject = format!("codes of {account}");
    if store.sign_in_failures(&[&subject]).await? > MAX_WRONG_CODES {
        return Ok(Checked::TooManyWrong);
    }
    let step = AuthenticatorKey::parse(&app.key).and_then(|key| key.step_of(typed, store.now()));
    let is_right = match step.filter(|step| *step > app.last_step) {
        Some(step) => store.use_app_step(account, step).await?,
        None => false,
    };
    if !is_right {
        store.add_sign_in_failure(&[&subject]).await?;
    }
    Ok(checked(is_right))
}
