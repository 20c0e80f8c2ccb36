//! Signing in and out.

use http::{StatusCode, header};
use maud::{Markup, html};
use store::{Email, PasswordTry, Proof, SignInError, SignInMethod, StartedSession};

use crate::credentials::SignInOutcome;
use crate::page::{
    Anonymous, Console, ConsoleRequest, ConsoleResponse, ConsoleResult, Cookie, Draft, Form, FormSender, Refusal,
    SignedIn, assets, csrf_field, notice, password_input, signed_out_page,
};
use crate::sign_in::{provider, second_step};

/// The same for an unknown account and a wrong password, so that it does not disclose which accounts exist.
const WRONG_CREDENTIALS: &str = "The e-mail address or the password is incorrect.";
/// The password or the second factors were changed while the password was verified.
pub(crate) const OUTDATED: &str = "Your account was changed during the sign-in. Please sign in again.";
/// Max. length of a target to return to after sign-in.
const MAX_NEXT_BYTES: usize = 2048;

/// Redirects to the sign-in page, which leads back to the requested page.
pub(crate) fn redirect_to_sign_in(console: &Console, request: &ConsoleRequest) -> ConsoleResponse {
    match request.target() {
        _ if request.is_post() => {
            console.redirect_with_message("/sign-in", "You are signed out. Nothing was changed. Please sign in again.")
        }
        "/" => ConsoleResponse::redirect("/sign-in"),
        target if target.len() > MAX_NEXT_BYTES => ConsoleResponse::redirect("/sign-in"),
        target => ConsoleResponse::redirect(&with_next("/sign-in", target)),
    }
}

/// A path with `next`, the target to open afterwards.
pub(crate) fn with_next(path: &str, next: &str) -> String {
    let next: String = url::form_urlencoded::byte_serialize(next.as_bytes()).collect();
    format!("{path}?next={next}")
}

pub(crate) fn page(visitor: &Anonymous<'_>, request: &ConsoleRequest) -> ConsoleResponse {
    page_with(visitor, &Draft::with("next", request.query.get("next")))
}

fn page_with(visitor: &Anonymous<'_>, draft: &Draft) -> ConsoleResponse {
    let (settings, next) = (&visitor.console.settings, draft.get("next"));
    let content = html! {
        section.card.narrow {
            h1 { "Sign in" }
            (draft.message())
            @if let Some(provider) = &settings.identity_provider {
                p { a.button.primary.wide href=(provider_link(next)) { "Sign in with " (provider.name) } }
            }
            @if settings.passwords {
                (password_form(visitor, draft.get("email"), next))
                (passkey_button(visitor, next))
            }
        }
    };
    visitor.page("Sign in", content).with_status(draft.status())
}

/// Its script enables it, in browsers that support passkeys.
pub(crate) fn passkey_button(visitor: &Anonymous<'_>, next: &str) -> Markup {
    html! {
        @if visitor.console.passkeys.is_some() {
            div data-passkey="sign-in" data-form=(visitor.csrf_token()) data-next=(next) {
                button.wide type="button" disabled { "Sign in with a passkey" }
                p.quiet.small role="status" {}
            }
            script src=(assets::PASSKEYS.path()) defer {}
        }
    }
}

fn provider_link(next: &str) -> String {
    match next {
        "" => "/sign-in/provider".to_owned(),
        next => with_next("/sign-in/provider", next),
    }
}

fn password_form(visitor: &Anonymous<'_>, email: &str, next: &str) -> Markup {
    let is_main = visitor.console.settings.identity_provider.is_none();
    html! {
        form.fields method="post" action="/sign-in" {
            (csrf_field(visitor))
            input type="hidden" name="next" value=(next);
            label {
                "E-mail"
                input type="email" name="email" required value=(email) autocomplete="username" autofocus;
            }
            (password_input("Password", "password", "current-password"))
            button.primary[is_main] type="submit" { "Sign in" }
        }
        p.quiet.small {
            "No account, or forgot your password? Ask an administrator for a link. "
            "Operators can create one with " code { "adriaticum accounts" } "."
        }
    }
}

pub(crate) async fn sign_in(visitor: Anonymous<'_>, request: &mut ConsoleRequest) -> ConsoleResult {
    let form = visitor.form(request).await?;
    visitor.console.require_passwords()?;
    let refused = |refusal| Ok(page_with(&visitor, &form.refused(refusal)));
    let console = visitor.console;
    let email = form.get("email").parse::<Email>().ok();
    let attempt = match console.sign_in_throttle.begin(request.client, email.as_ref()).await? {
        Ok(attempt) => attempt,
        Err(refusal) => {
            console.count_sign_in(SignInOutcome::Refused);
            return refused(refusal.into());
        }
    };
    let credentials = match &email {
        Some(email) => console.store.accounts().credentials(email).await?,
        None => None,
    };
    let hash = credentials.as_ref().map(|found| found.password.clone());
    let is_right = console.passwords.verify(&attempt, form.raw("password"), hash).await;
    let email = email.filter(|_| credentials.is_some());
    match (credentials.filter(|_| is_right), email) {
        (Some(found), Some(email)) if found.has_second_factor => {
            second_step::begin(&visitor, &found, &email, form.get("next")).await
        }
        (Some(found), _) => {
            let proof = Proof::Password(&found.password);
            let session = match console.store.sessions().begin(found.account, &request.origin(), proof).await {
                Ok(session) => session,
                Err(SignInError::Store(error)) => return Err(error.into()),
                Err(_) => return refused(Refusal::new(StatusCode::CONFLICT, OUTDATED)),
            };
            attempt.succeeded().await?;
            console.count_sign_in(SignInOutcome::Succeeded);
            Ok(console.signed_in(ConsoleResponse::redirect(local_path(form.get("next"))), &session))
        }
        (None, email) => {
            attempt.failed().await?;
            console.count_sign_in(SignInOutcome::Failed);
            console.wrong_passwords.add(PasswordTry::SignIn, email, request.client);
            refused(Refusal::new(StatusCode::UNAUTHORIZED, WRONG_CREDENTIALS))
        }
    }
}

impl Console {
    /// Always a new session: an earlier session of the browser is not reused.
    pub(crate) fn signed_in(&self, response: ConsoleResponse, session: &StartedSession) -> ConsoleResponse {
        self.set_session_cookie(self.clear_cookie(response, Cookie::Anonymous), &session.token)
    }
}

/// A path on this site; anything else becomes the overview. Browsers drop tabs and line breaks from a URL and read a
/// backslash as a slash, so only printable ASCII without backslashes is accepted.
pub(crate) fn local_path(target: &str) -> &str {
    let is_plain = target.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    let base = url::Url::parse("https://console.invalid").ok();
    let stays = base.is_some_and(|base| base.join(target).is_ok_and(|joined| joined.origin() == base.origin()));
    if target.starts_with('/') && is_plain && stays { target } else { "/" }
}

pub(crate) async fn sign_out(user: &SignedIn<'_>, _form: &Form) -> ConsoleResult {
    user.store().sessions().end(user.viewer(), user.session.id).await?;
    let at_provider = match user.session.method {
        SignInMethod::Provider => provider::sign_out_url(user).await,
        _ => None,
    };
    let response = match at_provider {
        // The content security policy (`form-action`) would block a redirect.
        Some((name, url)) => {
            let label = format!("Sign out of {name} too");
            let content = notice("You are signed out", html! {}, url.as_str(), &label);
            let page = ConsoleResponse::page(signed_out_page("Signed out", content));
            page.with_header(header::REFRESH, &format!("0; url={url}"))
        }
        None => user.console.redirect_with_message("/sign-in", "You are signed out."),
    };
    Ok(user.console.clear_cookie(response, Cookie::Session))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::local_path;

    #[test]
    fn targets_on_other_sites_become_the_overview() {
        for (target, to) in [
            ("/usage?range=7d", "/usage?range=7d"),
            ("/requests?key=4kQ9Zx7LmN2p&status=503", "/requests?key=4kQ9Zx7LmN2p&status=503"),
            ("/.//evil.org", "/.//evil.org"), // a path of this site, which does not exist
            ("", "/"),
            ("usage", "/"),
            ("//evil.org", "/"),
            ("///evil.org", "/"),
            ("https://evil.org", "/"),
            ("javascript:alert(1)", "/"),
            ("/\\evil.org", "/"),
            ("/\t/evil.org", "/"),
            ("\t//evil.org", "/"),
            ("/\n/evil.org", "/"),
            ("/\r\n/evil.org", "/"),
            ("/\u{a0}/evil.org", "/"),
        ] {
            assert_eq!(local_path(target), to, "{target:?}");
        }
    }

    proptest! {
        /// As browsers resolve it, with the rules of the WHATWG that `url` implements.
        #[test]
        fn every_target_stays_on_this_site(target in "[/\\\\\t\n\r .:@?#%a-c09-]{0,12}") {
            let here = url::Url::parse("http://console.example.com:8081/sign-in").unwrap();
            let to = here.join(local_path(&target)).unwrap();
            prop_assert_eq!(to.origin(), here.origin(), "{:?}", target);
        }
    }
}
