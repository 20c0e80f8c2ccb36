//! Confirmations: a change that could be used to take over an account or a key is declined until the password or passkey
//! is entered again. The confirmation page carries the fields of the declined form and posts them to the same path.

use http::StatusCode;
use maud::{Markup, html};
use store::SignInMethod;

use crate::page::{
    Area, ConsoleError, ConsoleResponse, ConsoleResult, Form, FormSender, Refusal, SignedIn, assets, csrf_field,
    error_message, heading,
};
use crate::sign_in::first_step::with_next;
use crate::sign_in::{check_password, passkeys};

/// The password, added to the fields of the declined form.
pub(crate) const PASSWORD_FIELD: &str = "confirm-password";

/// Verifies the password in a form, if any.
pub(crate) async fn check(user: &SignedIn<'_>, form: &Form) -> ConsoleResult<()> {
    if !form.has(PASSWORD_FIELD) {
        return Ok(());
    }
    let verified = check_password(user, form.raw(PASSWORD_FIELD)).await?;
    match user.store().sign_ins().confirm_with_password(user.viewer(), &verified.hash).await? {
        true => Ok(()),
        false => Err(ConsoleError::SignedOut),
    }
}

/// The confirmation page for a form that was posted to `path`.
pub(crate) async fn page(user: &SignedIn<'_>, path: &str, form: &Form, refusal: Option<Refusal>) -> ConsoleResult {
    let (account, store) = (user.account()?, user.store());
    let has_password = user.console.settings.passwords && store.accounts().password(user.viewer()).await?.is_some();
    let has_passkeys =
        user.console.passkeys.is_some() && !store.second_factors().of(account.id).await?.passkeys.is_empty();
    // Forms are posted to the path of their page plus one segment.
    let page = path.rsplit_once('/').map_or("/", |(page, _)| page);
    let content = html! {
        (heading("Confirm your identity", html! {}))
        section.card.narrow {
            p { "This change requires you to authenticate again. You will not be asked again for five minutes." }
            (error_message(refusal.as_ref().map(|refusal| refusal.text.as_str())))
            form.fields #confirm method="post" action=(path) {
                (csrf_field(user))
                @for (name, value) in form.fields().filter(|(name, _)| *name != PASSWORD_FIELD) {
                    input type="hidden" name=(name) value=(value);
                }
                @if has_password {
                    input type="hidden" name="username" value=(account.email) autocomplete="username";
                    label {
                        "Your password"
                        input type="password" name=(PASSWORD_FIELD) required autofocus autocomplete="current-password";
                    }
                    button.primary type="submit" { "Confirm" }
                }
            }
            @if has_passkeys { (passkey_button(user)) }
            @if user.session.method == SignInMethod::Provider { (provider_link(user, page)) }
            p { a.button href=(page) { "Cancel" } }
        }
    };
    let status = refusal.map_or(StatusCode::FORBIDDEN, |refusal| refusal.status);
    Ok(user.bare_page(Area::from_path(path), "Confirm", content).with_status(status))
}

fn passkey_button(user: &SignedIn<'_>) -> Markup {
    html! {
        div data-passkey="confirm" data-form=(user.csrf_token()) {
            button.wide type="button" disabled { "Confirm with a passkey" }
            p.quiet.small role="status" {}
        }
        script src=(assets::PASSKEYS.path()) defer {}
    }
}

/// The form's fields are lost on the way to the provider and back.
fn provider_link(user: &SignedIn<'_>, page: &str) -> Markup {
    let name = user.console.settings.identity_provider.as_ref().map_or("", |provider| &provider.name);
    html! {
        p { a.button.wide href={ (with_next("/sign-in/provider", page)) "&again=yes" } { "Sign in again with " (name) } }
        p.quiet.small { "You then return to the previous page and make the change again." }
    }
}

/// Verifies the passkey's response, which the script posts.
pub(crate) async fn finish_passkey(user: &SignedIn<'_>, body: &[u8]) -> ConsoleResult {
    let account = user.account()?;
    let attempt = user.console.sign_in_throttle.begin(user.client, Some(&account.email)).await??;
    let used = passkeys::verify(user.console, &passkeys::parse(body)?).await?;
    let used = used.filter(|(owner, _)| *owner == account.id);
    let is_confirmed = match used {
        Some((_, used)) => user.store().sign_ins().confirm_with_passkey(user.viewer(), &used).await?,
        None => false,
    };
    if !is_confirmed {
        attempt.failed().await?;
        return Err(Refusal::invalid(passkeys::NOT_ACCEPTED).into());
    }
    Ok(ConsoleResponse::json("{}".into()))
}
