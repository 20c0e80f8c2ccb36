//! Signing in and out.

use http::StatusCode;
use maud::html;
use store::{AccountId, Email};

use crate::components::{anonymous_csrf_field, form_error};
use crate::console_request::ConsoleRequest;
use crate::cookies::Cookie;
use crate::error::{ConsoleError, ConsoleResult};
use crate::form::Form;
use crate::response::ConsoleResponse;
use crate::session::{Anonymous, SignedIn};

/// The same for an unknown account and a wrong password, so that nobody learns who has an account.
const WRONG_CREDENTIALS: &str = "The e-mail address or the password is incorrect.";
const TOO_MANY_ATTEMPTS: &str = "Too many sign-in attempts from your address. Please try again in a few seconds.";

/// Leads to the sign-in page, and from there back to what was asked for.
pub(crate) fn redirect_to_sign_in(request: &ConsoleRequest) -> ConsoleResponse {
    match request.target() {
        "/" => ConsoleResponse::redirect("/sign-in"),
        target => {
            let next: String = url::form_urlencoded::byte_serialize(target.as_bytes()).collect();
            ConsoleResponse::redirect(&format!("/sign-in?next={next}"))
        }
    }
}

pub(crate) fn page(visitor: &Anonymous<'_>, request: &ConsoleRequest) -> ConsoleResponse {
    page_with(visitor, "", request.query.get("next"), None)
}

fn page_with(visitor: &Anonymous<'_>, email: &str, next: &str, error: Option<&str>) -> ConsoleResponse {
    let content = html! {
        section.card.narrow {
            h1 { "Sign in" }
            (form_error(error))
            form.fields method="post" action="/sign-in" {
                (anonymous_csrf_field(visitor))
                input type="hidden" name="next" value=(next);
                label {
                    "E-mail"
                    input type="email" name="email" required value=(email) autocomplete="username" autofocus;
                }
                label { "Password" input type="password" name="password" required autocomplete="current-password"; }
                button.primary type="submit" { "Sign in" }
            }
            p.quiet.small {
                "No account, or forgot your password? Ask an administrator for a link. "
                "Operators can create one with " code { "adriaticum accounts" } "."
            }
        }
    };
    visitor.page("Sign in", content)
}

pub(crate) async fn sign_in(visitor: Anonymous<'_>, request: &mut ConsoleRequest) -> ConsoleResult {
    let form = visitor.form(request).await?;
    let refused = |status, error| {
        let page = page_with(&visitor, form.get("email"), form.get("next"), Some(error));
        Ok(page.with_status(status))
    };
    let console = visitor.console;
    let typed_email = form.get("email").to_lowercase();
    let Some(attempt) = console.sign_in_throttle.begin(request.client, &typed_email).await else {
        return refused(StatusCode::TOO_MANY_REQUESTS, TOO_MANY_ATTEMPTS);
    };
    let credentials = match typed_email.parse::<Email>() {
        Ok(email) => console.store.credentials(&email).await?,
        Err(_) => None,
    };
    let (account, hash) = credentials.map(|found| (found.account, found.password)).unzip();
    let is_right = console.passwords.verify(form.raw("password"), hash).await;
    match account.filter(|_| is_right) {
        Some(account) => {
            attempt.succeeded();
            let response = ConsoleResponse::redirect(local_path(form.get("next")));
            start_session(&visitor, account, request, response).await
        }
        None => {
            attempt.failed();
            refused(StatusCode::UNAUTHORIZED, WRONG_CREDENTIALS)
        }
    }
}

/// Always a new session: one that the browser may have had is not taken over.
pub(crate) async fn start_session(
    visitor: &Anonymous<'_>,
    account: AccountId,
    request: &ConsoleRequest,
    response: ConsoleResponse,
) -> ConsoleResult {
    let console = visitor.console;
    let session = console.store.begin_session(account, &request.origin()).await?.ok_or(ConsoleError::SignedOut)?;
    Ok(console.set_session_cookie(console.clear_cookie(response, Cookie::Anonymous), &session.token))
}

/// A path on this site; anything else becomes the overview.
fn local_path(target: &str) -> &str {
    let is_local = target.starts_with('/') && !target.starts_with("//") && !target.contains(['\\', '\n', '\r']);
    if is_local { target } else { "/" }
}

pub(crate) async fn sign_out(user: &SignedIn<'_>, _form: &Form) -> ConsoleResult {
    user.console.store.end_session(user.viewer(), user.session.id).await?;
    let response = user.redirect_with_message("/sign-in", "You are signed out.");
    Ok(user.console.clear_cookie(response, Cookie::Session))
}

#[cfg(test)]
mod tests {
    use super::local_path;

    #[test]
    fn nobody_is_sent_to_another_site() {
        for (target, to) in [
            ("/usage?range=7d", "/usage?range=7d"),
            ("", "/"),
            ("//evil.org", "/"),
            ("https://evil.org", "/"),
            ("/\\evil.org", "/"),
        ] {
            assert_eq!(local_path(target), to);
        }
    }
}
