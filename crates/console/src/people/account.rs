//! A person's own account: name, password, sessions.

use maud::{Markup, html};
use store::{Account, PersonName, SessionRecord, SignInMethod};

use crate::credentials::{MIN_CHARS, NewPassword};
use crate::page::{
    Area, ConsoleError, ConsoleResult, Draft, Form, Refusal, SignedIn, button_form, csrf_field, found, parse_id,
    password_input, table, time,
};
use crate::sign_in::check_password;

pub(crate) async fn page(user: &SignedIn<'_>, draft: &Draft) -> ConsoleResult {
    let account = user.account()?;
    let sessions = user.store().sessions().list(user.viewer()).await?;
    let has_password = user.store().accounts().password(user.viewer()).await?.is_some();
    let content = html! {
        (draft.message())
        section.card {
            h2 { "Profile" }
            form.fields method="post" action="/account/name" {
                (csrf_field(user))
                label {
                    "Name"
                    input name="name" required maxlength=(PersonName::MAX_CHARS) value=(account.name)
                        autocomplete="name";
                }
                button type="submit" { "Save name" }
            }
            dl.facts {
                dt { "E-mail" } dd { (account.email) }
                dt { "Role" } dd { (account.role) }
                dt { "Member since" } dd { (time(account.created_at)) }
            }
        }
        @if user.session.method == SignInMethod::Provider {
            section.card {
                h2 { "Sign-in" }
                p { "You signed in with " (provider_name(user)) ", which also manages second factors." }
            }
        }
        @if has_password && user.console.settings.passwords { (password_card(user, account)) }
        section.card {
            div.heading {
                h2 { "Sessions" }
                @if sessions.len() > 1 {
                    div.actions {
                        (button_form(user, "/account/sessions/end-others", "Sign out all other sessions", "plain"))
                    }
                }
            }
            (session_table(user, &sessions, "/account/sessions"))
        }
    };
    Ok(user.page(Area::Account, "Account", html! {}, content).with_status(draft.status()))
}

fn provider_name<'a>(user: &SignedIn<'a>) -> &'a str {
    user.console.settings.identity_provider.as_ref().map_or("an identity provider", |provider| &provider.name)
}

fn password_card(user: &SignedIn<'_>, account: &Account) -> Markup {
    html! {
        section.card {
            h2 { "Password" }
            form.fields method="post" action="/account/password" {
                (csrf_field(user))
                input type="hidden" name="username" value=(account.email) autocomplete="username";
                (password_input("Current password", "current", "current-password"))
                label { "New password"
                    input type="password" name="password" required minlength=(MIN_CHARS)
                        autocomplete="new-password";
                }
                label { "Repeat new password" input type="password" name="again" required autocomplete="new-password"; }
                button type="submit" { "Change password" }
            }
            p.quiet { "Changing the password signs you out of all other sessions." }
        }
        section.card {
            h2 { "Second factor" }
            p { "An authenticator app or a passkey protects the account if the password is stolen." }
            p { a.button href="/account/second-factor" { "Manage second factors" } }
        }
    }
}

/// The button of a row posts to `{path}/{session}/end`.
pub(crate) fn session_table(user: &SignedIn<'_>, sessions: &[SessionRecord], path: &str) -> Markup {
    let rows = sessions.iter().map(|session| {
        let action = match session.id == user.session.id {
            true => html! { span.badge.active { "this session" } },
            false => button_form(user, &format!("{path}/{}/end", session.id), "Sign out", "plain"),
        };
        [
            browser(&session.origin.agent),
            html! { (session.origin.address) },
            time(session.created_at),
            html! { (method_name(session.method)) },
            time(session.seen_at),
            action,
        ]
    });
    table("Sessions", ["Browser", "Address", "Signed in", "Method", "Last used", ""], rows)
}

fn method_name(method: SignInMethod) -> &'static str {
    match method {
        SignInMethod::Password => "password",
        SignInMethod::Passkey => "passkey",
        SignInMethod::Provider => "identity provider",
    }
}

/// Browser and operating system, with the full user agent on hover.
fn browser(agent: &str) -> Markup {
    let find = |names: &[(&'static str, &'static str)]| {
        names.iter().find(|(part, _)| agent.contains(part)).map(|(_, name)| *name)
    };
    let browsers = [("Firefox/", "Firefox"), ("Edg/", "Edge"), ("Chrome/", "Chrome"), ("Safari/", "Safari")];
    let systems = [
        ("Android", "Android"),
        ("iPhone", "iPhone"),
        ("iPad", "iPad"),
        ("Windows", "Windows"),
        ("Mac OS", "macOS"),
        ("Linux", "Linux"),
    ];
    let name = match (find(&browsers), find(&systems)) {
        (Some(browser), Some(system)) => format!("{browser} on {system}"),
        (Some(browser), None) => browser.to_owned(),
        _ => "Other client".to_owned(),
    };
    html! { span title=(agent) { (name) } }
}

pub(crate) async fn rename(user: &SignedIn<'_>, form: &Form) -> ConsoleResult {
    let name = PersonName::parse(form.get("name")).map_err(Refusal::from_error)?;
    user.store().accounts().set_own_name(user.viewer(), &name).await?;
    user.redirect_with_message("/account", &format!("Your name is now {}.", name.as_str()))
}

pub(crate) async fn change_password(user: &SignedIn<'_>, form: &Form) -> ConsoleResult {
    let email = user.account()?.email.as_str();
    let password = NewPassword::parse(form.raw("password"), form.raw("again"), email);
    let password = password.map_err(|error| Refusal::invalid(error.to_string()))?;
    let verified = check_password(user, form.raw("current")).await?;
    let hash = user.console.passwords.hash(&verified.attempt, password).await.ok_or(ConsoleError::Internal)?;
    if !user.store().accounts().set_password(user.viewer(), user.session.id, &verified.hash, &hash).await? {
        return Err(ConsoleError::SignedOut);
    }
    user.redirect_with_message("/account", "The password was changed. All your other sessions were signed out.")
}

pub(crate) async fn end_session(user: &SignedIn<'_>, id: &str, _form: &Form) -> ConsoleResult {
    found(user.store().sessions().end(user.viewer(), parse_id(id)?).await?)?;
    user.redirect_with_message("/account", "The session was signed out.")
}

pub(crate) async fn end_other_sessions(user: &SignedIn<'_>, _form: &Form) -> ConsoleResult {
    let ended = user.store().sessions().end_others(user.viewer(), user.session.id).await?;
    let sessions = format::count(ended as u64, "other session");
    user.redirect_with_message("/account", &format!("Signed out {sessions}."))
}
