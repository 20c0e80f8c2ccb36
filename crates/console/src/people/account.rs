//! A person's own account: name, password, sessions.

use http::StatusCode;
use maud::{Markup, html};
use store::{Account, PasswordTry, PersonName, SessionRecord, SignInMethod};

use crate::credentials::password::{self, NewPassword};
use crate::credentials::throttle::Attempt;
use crate::page::components::{button_form, columns, csrf_field, data_table, form_error, heading, sentence, time};
use crate::page::error::{ConsoleError, ConsoleResult};
use crate::page::form::Form;
use crate::page::layout::Area;
use crate::page::session::SignedIn;

#[derive(Default)]
struct FormErrors<'a> {
    name: Option<&'a str>,
    password: Option<&'a str>,
}

pub(crate) async fn page(user: &SignedIn<'_>) -> ConsoleResult {
    page_with(user, &FormErrors::default()).await
}

async fn page_with(user: &SignedIn<'_>, errors: &FormErrors<'_>) -> ConsoleResult {
    let account = user.viewer().account().ok_or(ConsoleError::SignedOut)?;
    let sessions = user.console.store.sessions(user.viewer()).await?;
    let has_password = user.console.store.password(user.viewer()).await?.is_some();
    let content = html! {
        (heading("Account", html! {}))
        section.card {
            h2 { "Profile" }
            (form_error(errors.name))
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
        @if has_password && user.console.settings.passwords { (password_card(user, account, errors.password)) }
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
    Ok(user.page(Area::Account, "Account", content))
}

fn provider_name<'a>(user: &SignedIn<'a>) -> &'a str {
    user.console.settings.identity_provider.as_ref().map_or("an identity provider", |provider| &provider.name)
}

fn password_card(user: &SignedIn<'_>, account: &Account, error: Option<&str>) -> Markup {
    html! {
        section.card {
            h2 { "Password" }
            (form_error(error))
            form.fields method="post" action="/account/password" {
                (csrf_field(user))
                input type="hidden" name="username" value=(account.email) autocomplete="username";
                label {
                    "Current password"
                    input type="password" name="current" required autocomplete="current-password";
                }
                label { "New password"
                    input type="password" name="password" required minlength=(password::MIN_CHARS)
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
    html! {
        (data_table("Sessions", columns(&["Browser", "Address", "Signed in", "Method", "Last used", ""]), html! {
            @for session in sessions {
                tr {
                    th scope="row" data-label="Browser" { (browser(&session.origin.agent)) }
                    td data-label="Address" { (session.origin.address) }
                    td data-label="Signed in" { (time(session.created_at)) }
                    td data-label="Method" { (method_name(session.method)) }
                    td data-label="Last used" { (time(session.seen_at)) }
                    td.actions {
                        @if session.id == user.session.id { span.badge.active { "this session" } } @else {
                            (button_form(user, &format!("{path}/{}/end", session.id), "Sign out", "plain"))
                        }
                    }
                }
            }
        }))
    }
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

async fn refused(user: &SignedIn<'_>, errors: &FormErrors<'_>) -> ConsoleResult {
    Ok(page_with(user, errors).await?.with_status(StatusCode::BAD_REQUEST))
}

pub(crate) async fn rename(user: &SignedIn<'_>, form: &Form) -> ConsoleResult {
    let name = match PersonName::parse(form.get("name")) {
        Ok(name) => name,
        Err(error) => {
            return refused(user, &FormErrors { name: Some(&sentence(&error)), ..FormErrors::default() }).await;
        }
    };
    user.console.store.set_own_name(user.viewer(), &name).await?;
    Ok(user.redirect_with_message("/account", &format!("Your name is now {}.", name.as_str())))
}

pub(crate) async fn change_password(user: &SignedIn<'_>, form: &Form) -> ConsoleResult {
    let account = user.viewer().account().ok_or(ConsoleError::SignedOut)?;
    let refuse = |status, error: String| async move {
        let errors = FormErrors { password: Some(&error), ..FormErrors::default() };
        Ok(page_with(user, &errors).await?.with_status(status))
    };
    let password = match NewPassword::parse(form.raw("password"), form.raw("again"), account.email.as_str()) {
        Ok(password) => password,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, error.to_string()).await,
    };
    let verified = match check_password(user, form.raw("current")).await? {
        Ok(verified) => verified,
        Err(refused) => return refuse(refused.status, refused.text).await,
    };
    let hash = user.console.passwords.hash(&verified.attempt, password).await.ok_or(ConsoleError::Internal)?;
    if !user.console.store.set_password(user.viewer(), user.session.id, &verified.hash, &hash).await? {
        return Err(ConsoleError::SignedOut);
    }
    Ok(user.redirect_with_message("/account", "The password was changed. All your other sessions were signed out."))
}

/// Why a password was refused, for the person who typed it.
pub(crate) struct Refused {
    pub(crate) status: StatusCode,
    pub(crate) text: String,
}

/// Proof that the password was verified.
pub(crate) struct VerifiedPassword<'a> {
    attempt: Attempt<'a>,
    /// The stored hash at the time of verification.
    pub(crate) hash: String,
}

/// Verifies the password of a signed-in person. It is throttled like a sign-in, so that a stolen session does not allow
/// faster guessing.
pub(crate) async fn check_password<'a>(
    user: &SignedIn<'a>,
    typed: &str,
) -> ConsoleResult<Result<VerifiedPassword<'a>, Refused>> {
    let account = user.viewer().account().ok_or(ConsoleError::SignedOut)?;
    let attempt = match user.console.sign_in_throttle.begin(user.client, Some(&account.email)).await? {
        Ok(attempt) => attempt,
        Err(refusal) => return Ok(Err(Refused { status: refusal.status(), text: refusal.message().into() })),
    };
    let current = user.console.store.password(user.viewer()).await?;
    let is_right = user.console.passwords.verify(&attempt, typed, current.clone()).await;
    if let Some(hash) = current.filter(|_| is_right) {
        return Ok(Ok(VerifiedPassword { attempt, hash }));
    }
    attempt.failed().await?;
    user.console.wrong_passwords.add(PasswordTry::Confirmation, Some(account.email.clone()), user.client);
    Ok(Err(Refused { status: StatusCode::BAD_REQUEST, text: "The current password is incorrect.".into() }))
}

pub(crate) async fn end_session(user: &SignedIn<'_>, id: &str, _form: &Form) -> ConsoleResult {
    let id = id.parse().map_err(|_| ConsoleError::NotFound)?;
    match user.console.store.end_session(user.viewer(), id).await? {
        true => Ok(user.redirect_with_message("/account", "The session was signed out.")),
        false => Err(ConsoleError::NotFound),
    }
}

pub(crate) async fn end_other_sessions(user: &SignedIn<'_>, _form: &Form) -> ConsoleResult {
    let ended = user.console.store.end_other_sessions(user.viewer(), user.session.id).await?;
    let sessions = format::count(ended as u64, "other session");
    Ok(user.redirect_with_message("/account", &format!("Signed out {sessions}.")))
}
