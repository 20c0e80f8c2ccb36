//! A person's second factors: authenticator app, passkeys, recovery codes. Every change requires the password.

use maud::{Markup, html};
use store::{PasskeyRecord, RecoveryCode, SecondFactors};

use crate::credentials::AuthenticatorKey;
use crate::page::{
    Area, ConsoleError, ConsoleResponse, ConsoleResult, Draft, Form, Refusal, SignedIn, assets, csrf_field, found,
    or_placeholder, password_input, table, time,
};
use crate::sign_in::check_password;

pub(crate) const PATH: &str = "/account/second-factor";

/// Only for people with a password in this console.
async fn factors(user: &SignedIn<'_>) -> ConsoleResult<SecondFactors> {
    user.console.require_passwords()?;
    user.store().accounts().password(user.viewer()).await?.ok_or(ConsoleError::NotFound)?;
    Ok(user.store().second_factors().of(user.account()?.id).await?)
}

pub(crate) async fn page(user: &SignedIn<'_>, draft: &Draft) -> ConsoleResult {
    let factors = factors(user).await?;
    let content = html! {
        @if user.session.lacks_second_factor {
            p.message role="status" {
                "Your administrator requires a second factor. To continue, set up an authenticator app or a passkey."
            }
        }
        (draft.message())
        section.card {
            h2 { "Authenticator app" }
            @match factors.app_since {
                Some(since) => {
                    p { "Added " (time(since)) ". Sign-in requires a code after the password." }
                    p { a.button href="/account/second-factor/app" { "Replace" } }
                    (removal(user, "/account/second-factor/app/remove", "Remove the app"))
                }
                None => {
                    p.quiet { "Any app that shows six-digit codes, such as Aegis, Google Authenticator or 1Password." }
                    p { a.button.primary href="/account/second-factor/app" { "Add an app" } }
                }
            }
        }
        section.card {
            h2 { "Passkeys" }
            @if factors.passkeys.is_empty() {
                p.quiet { "A passkey on your phone, computer or security key signs you in without the password." }
            } @else {
                (passkey_table(user, &factors.passkeys))
            }
            @if user.console.passkeys.is_some() { (passkey_form(user)) } @else {
                p.quiet { "Browsers allow passkeys only at a host name, such as localhost, not at an IP address." }
            }
        }
        @if !factors.is_empty() { (codes_card(user, factors.recovery_codes)) }
    };
    Ok(user.page(Area::Account, "Second factor", html! {}, content).with_status(draft.status()))
}

/// A removal form, which requires the password.
fn removal(user: &SignedIn<'_>, action: &str, label: &str) -> Markup {
    html! {
        details {
            summary { (label) }
            form.fields method="post" action=(action) {
                (csrf_field(user))
                (password_field())
                button.danger type="submit" { (label) }
            }
        }
    }
}

fn password_field() -> Markup {
    password_input("Your password", "password", "current-password")
}

fn passkey_table(user: &SignedIn<'_>, passkeys: &[PasskeyRecord]) -> Markup {
    let rows = passkeys.iter().map(|passkey| {
        [
            html! { (passkey.name) },
            time(passkey.created_at),
            or_placeholder(passkey.used_at.map(time), "never"),
            removal(user, &format!("/account/passkeys/{}/remove", passkey.id), "Remove"),
        ]
    });
    table("Passkeys", ["Name", "Added", "Last used", ""], rows)
}

fn passkey_form(user: &SignedIn<'_>) -> Markup {
    html! {
        form.fields data-passkey="add" {
            (csrf_field(user))
            label { "Name" input name="name" required maxlength="60" placeholder="My phone" autocomplete="off"; }
            (password_field())
            button type="submit" disabled { "Add a passkey" }
            p.quiet.small role="status" {}
        }
        noscript { p.quiet { "Adding a passkey needs JavaScript." } }
        script src=(assets::PASSKEYS.path()) defer {}
    }
}

fn codes_card(user: &SignedIn<'_>, left: u64) -> Markup {
    html! {
        section.card {
            h2 { "Recovery codes" }
            p {
                @match left {
                    0 => "You have none. Create some, so that you can still sign in if you lose your device.",
                    _ => { (format::count(left, "code")) " left. Each replaces your second factor once." }
                }
            }
            form.fields method="post" action="/account/second-factor/codes" {
                (csrf_field(user))
                (password_field())
                button type="submit" { @if left == 0 { "Create codes" } @else { "Replace all codes" } }
            }
        }
    }
}

/// Shows a new key each time, unless a form was refused. It takes effect once one of its codes was entered.
pub(crate) async fn app_page(user: &SignedIn<'_>, draft: &Draft) -> ConsoleResult {
    factors(user).await?;
    let key = match AuthenticatorKey::parse(draft.get("key")) {
        Some(key) => key,
        None => AuthenticatorKey::generate()?,
    };
    let email = user.viewer().account().map_or("", |account| account.email.as_str());
    let content = html! {
        section.card {
            ol {
                li {
                    "Scan this with the app, or type the key into it."
                    @if let Some(picture) = key.qr_code(email) {
                        div.qr role="img" aria-label="QR code for the authenticator app" { (picture) }
                    }
                    p { code #key { (key.text()) } " " button.plain type="button" data-copy="key" { "Copy" } }
                }
                li { "Type the code that the app shows, and your password." }
            }
            (draft.message())
            form.fields method="post" action="/account/second-factor/app" {
                (csrf_field(user))
                input type="hidden" name="key" value=(key.text());
                label { "Code"
                    input name="code" required inputmode="numeric" autocomplete="one-time-code" maxlength="12";
                }
                (password_field())
                button.primary type="submit" { "Add the app" }
                a.button href=(PATH) { "Cancel" }
            }
        }
    };
    Ok(user.page(Area::Account, "Add an authenticator app", html! {}, content).with_status(draft.status()))
}

pub(crate) async fn add_app(user: &SignedIn<'_>, form: &Form) -> ConsoleResult {
    factors(user).await?;
    let key = AuthenticatorKey::parse(form.get("key")).ok_or(ConsoleError::Unreadable)?;
    check_password(user, form.raw("password")).await?;
    let step = key.step_of(form.get("code"), user.store().now());
    let step = step.ok_or_else(|| Refusal::invalid("This code is wrong. Check that your phone's clock is right."))?;
    let codes = RecoveryCode::generate_all()?;
    let (store, session) = (user.store(), user.session.id);
    match store.second_factors().set_authenticator_app(user.viewer(), session, &key.text(), step, &codes).await? {
        true => Ok(codes_page(user, &codes, "The authenticator app was added.")),
        false => user.redirect_with_message(PATH, "The authenticator app was added."),
    }
}

pub(crate) async fn remove_app(user: &SignedIn<'_>, form: &Form) -> ConsoleResult {
    factors(user).await?;
    check_password(user, form.raw("password")).await?;
    found(user.store().second_factors().remove_authenticator_app(user.viewer()).await?)?;
    user.redirect_with_message(PATH, "The authenticator app was removed.")
}

pub(crate) async fn create_codes(user: &SignedIn<'_>, form: &Form) -> ConsoleResult {
    found(!factors(user).await?.is_empty())?;
    check_password(user, form.raw("password")).await?;
    let codes = RecoveryCode::generate_all()?;
    user.store().second_factors().set_recovery_codes(user.viewer(), &codes).await?;
    Ok(codes_page(user, &codes, "Recovery codes were created."))
}

/// The codes are shown only on this page.
fn codes_page(user: &SignedIn<'_>, codes: &[RecoveryCode], message: &str) -> ConsoleResponse {
    let content = html! {
        p.message role="status" { (message) }
        section.card {
            p { "Store these codes where you can find them without your device. They are shown only once." }
            pre #codes { @for code in codes { (code.reveal()) "\n" } }
            p {
                button type="button" data-copy="codes" { "Copy" } " "
                a.button.primary href=(PATH) { "I have saved them" }
            }
        }
    };
    user.page(Area::Account, "Recovery codes", html! {}, content)
}
