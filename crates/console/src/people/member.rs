//! The page of one team member, for administrators: profile, access, sessions, keys, deletion.

use http::StatusCode;
use maud::{Markup, html};
use store::{Account, AccountError, AccountId, Email, PersonName, Role, SecondFactors};

use crate::page::components::{button_form, csrf_field, form_error, heading, sentence, time, time_or};
use crate::page::error::{ConsoleError, ConsoleResult};
use crate::page::form::Form;
use crate::page::layout::Area;
use crate::page::session::SignedIn;
use crate::people::account::session_table;
use crate::people::team::declined_page;

pub(crate) async fn page(user: &SignedIn<'_>, id: &str) -> ConsoleResult {
    let account = find(user, id).await?;
    page_with(user, &account, None).await
}

async fn page_with(user: &SignedIn<'_>, account: &Account, error: Option<&str>) -> ConsoleResult {
    let keys = user.console.store.count_active_keys(user.admin()?, account.id).await?;
    let factors = user.console.store.second_factors(account.id).await?;
    let sessions = user.console.store.sessions_of(user.admin()?, account.id).await?;
    let is_me = user.viewer().account().is_some_and(|me| me.id == account.id);
    let content = html! {
        (heading(&account.name, html! { a.button href={ "/keys?find=" (account.email) } { "Keys" } }))
        section.card {
            (form_error(error))
            form.fields method="post" action={ "/team/" (account.id) "/profile" } {
                (csrf_field(user))
                label { "Name"
                    input name="name" required maxlength=(PersonName::MAX_CHARS) value=(account.name) autocomplete="off";
                }
                label { "E-mail"
                    input type="email" name="email" required value=(account.email) autocomplete="off";
                }
                button type="submit" { "Save" }
            }
            dl.facts {
                dt { "Role" } dd { (account.role) }
                dt { "Joined" } dd { (time(account.created_at)) }
                dt { "Last signed in" } dd { (time_or(account.signed_in_at, "never")) }
                @if let Some(at) = account.disabled_at { dt { "Disabled" } dd { (time(at)) } }
                dt { "Active keys" } dd { (format::number(keys)) }
                dt { "Second factors" } dd { (second_factors(&factors)) }
            }
        }
        (access(user, account, &factors, keys, is_me))
        section.card #sessions {
            div.heading {
                h2 { "Sessions" }
                div.actions {
                    (button_form(user, &format!("/team/{}/sign-out", account.id), "Sign out everywhere", "plain"))
                }
            }
            @if sessions.is_empty() {
                p.quiet { (account.name) " is not signed in." }
            } @else {
                (session_table(user, &sessions, &format!("/team/{}/sessions", account.id)))
            }
        }
        @if keys > 0 {
            section.card {
                h2 { "Revoke all keys" }
                p {
                    "Requests with " (format::count(keys, "key")) " of " (account.name)
                    " will be rejected from the next request on. This cannot be undone. A key that others need can be "
                    "transferred to another person on its page instead."
                }
                (button_form(user, &format!("/team/{}/revoke-keys", account.id), "Revoke all keys", "danger"))
            }
        }
        @if !is_me { (deletion(user, account)) }
    };
    Ok(user.page(Area::Team, &account.name, content))
}

fn second_factors(factors: &SecondFactors) -> String {
    let app = factors.app_since.map(|_| "authenticator app".to_owned());
    let passkeys = factors.passkeys.len() as u64;
    let passkeys = (passkeys > 0).then(|| format::count(passkeys, "passkey"));
    let all: Vec<_> = app.into_iter().chain(passkeys).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

pub(crate) async fn sign_out(user: &SignedIn<'_>, id: &str, _form: &Form) -> ConsoleResult {
    let account = find(user, id).await?;
    match user.console.store.end_sessions_of(user.admin()?, account.id).await {
        Ok(ended) => {
            let message = format!("Signed {} out of {}.", account.name, format::count(ended, "session"));
            Ok(user.redirect_with_message(&format!("/team/{}", account.id), &message))
        }
        Err(declined) => declined_page(user, declined).await,
    }
}

pub(crate) async fn end_session(user: &SignedIn<'_>, id: &str, session: &str, _form: &Form) -> ConsoleResult {
    let account = find(user, id).await?;
    let session = session.parse().map_err(|_| ConsoleError::NotFound)?;
    match user.console.store.end_session_of(user.admin()?, account.id, session).await {
        Ok(true) => Ok(user.redirect_with_message(&format!("/team/{}", account.id), "The session was signed out.")),
        Ok(false) => Err(ConsoleError::NotFound),
        Err(declined) => declined_page(user, declined).await,
    }
}

pub(crate) async fn remove_second_factors(user: &SignedIn<'_>, id: &str, _form: &Form) -> ConsoleResult {
    let account = find(user, id).await?;
    match user.console.store.reset_second_factors(user.admin()?, account.id).await {
        Ok(()) => {
            let message = format!("Removed the second factors of {} and ended all sessions.", account.name);
            Ok(user.redirect_with_message(&format!("/team/{}", account.id), &message))
        }
        Err(declined) => declined_page(user, declined).await,
    }
}

/// Role, password, second factors, and whether the person may sign in.
fn access(user: &SignedIn<'_>, account: &Account, factors: &SecondFactors, keys: u64, is_me: bool) -> Markup {
    let (other, label) = match account.role {
        Role::Admin => (Role::Developer, "Make developer"),
        Role::Developer => (Role::Admin, "Make admin"),
    };
    html! {
        section.card {
            h2 { "Access" }
            div.actions {
                @if is_me { a.button href="/account" { "Your account" } } @else {
                    form.inline method="post" action={ "/team/" (account.id) "/role" } {
                        (csrf_field(user))
                        input type="hidden" name="role" value=(other);
                        button type="submit" { (label) }
                    }
                    @if user.console.settings.passwords {
                        (button_form(user, &format!("/team/{}/reset", account.id), "Reset password", ""))
                    }
                }
                @if !is_me && !factors.is_empty() {
                    @let action = format!("/team/{}/remove-second-factors", account.id);
                    (button_form(user, &action, "Remove second factors", ""))
                }
            }
            @if account.disabled_at.is_some() {
                p.quiet { "The account is disabled, so its owner cannot sign in." }
                (button_form(user, &format!("/team/{}/enable", account.id), "Enable", ""))
            } @else {
                form.fields method="post" action={ "/team/" (account.id) "/disable" } {
                    (csrf_field(user))
                    p.quiet { "A disabled person cannot sign in. Their keys keep working unless you revoke them." }
                    @if keys > 0 {
                        label.check {
                            input type="checkbox" name="revoke-keys" value="yes";
                            span { "Also revoke " (format::count(keys, "active key")) ", which cannot be undone" }
                        }
                    }
                    button type="submit" { "Disable" }
                }
            }
        }
    }
}

fn deletion(user: &SignedIn<'_>, account: &Account) -> Markup {
    html! {
        section.card {
            h2 { "Delete account" }
            p {
                "Removes name, address, password and sessions, and revokes all keys. Recorded usage stays, without a "
                "name, and so does the audit log. The address stays in the list of deleted people, so that the person "
                "cannot return through an identity provider. This cannot be undone. To keep the account, disable it instead."
            }
            form.fields method="post" action={ "/team/" (account.id) "/delete" } {
                (csrf_field(user))
                label { "Type the e-mail address to confirm"
                    input name="confirm" required autocomplete="off" placeholder=(account.email);
                }
                button.danger type="submit" { "Delete " (account.name) }
            }
        }
    }
}

pub(crate) async fn save(user: &SignedIn<'_>, id: &str, form: &Form) -> ConsoleResult {
    let account = find(user, id).await?;
    let parsed = PersonName::parse(form.get("name")).map_err(|error| sentence(&error));
    let parsed =
        parsed.and_then(|name| Ok((name, form.get("email").parse::<Email>().map_err(|error| sentence(&error))?)));
    let error = match parsed {
        Ok((name, email)) => match user.console.store.set_profile(user.admin()?, account.id, &name, &email).await {
            Ok(changed) => {
                let message = format!("{} was saved.", changed.name);
                return Ok(user.redirect_with_message(&format!("/team/{}", account.id), &message));
            }
            Err(AccountError::EmailTaken) => sentence(&AccountError::EmailTaken),
            Err(declined) => return declined_page(user, declined).await,
        },
        Err(sentence) => sentence,
    };
    Ok(page_with(user, &account, Some(&error)).await?.with_status(StatusCode::BAD_REQUEST))
}

pub(crate) async fn revoke_keys(user: &SignedIn<'_>, id: &str, _form: &Form) -> ConsoleResult {
    let account = find(user, id).await?;
    match user.console.store.revoke_keys_of(user.admin()?, account.id).await {
        Ok(revoked) => {
            let message = format!("Revoked {} of {}.", format::count(revoked, "key"), account.name);
            Ok(user.redirect_with_message(&format!("/team/{}", account.id), &message))
        }
        Err(declined) => declined_page(user, declined).await,
    }
}

pub(crate) async fn delete(user: &SignedIn<'_>, id: &str, form: &Form) -> ConsoleResult {
    let account = find(user, id).await?;
    if !form.get("confirm").eq_ignore_ascii_case(account.email.as_str()) {
        let error = "The e-mail address does not match. Nothing was deleted.";
        return Ok(page_with(user, &account, Some(error)).await?.with_status(StatusCode::BAD_REQUEST));
    }
    match user.console.store.delete_account(user.admin()?, account.id).await {
        Ok(revoked) => {
            let message = format!("Deleted {} and revoked {}.", account.name, format::count(revoked, "key"));
            Ok(user.redirect_with_message("/team", &message))
        }
        Err(declined) => declined_page(user, declined).await,
    }
}

async fn find(user: &SignedIn<'_>, id: &str) -> ConsoleResult<Account> {
    let id: AccountId = id.parse().map_err(|_| ConsoleError::NotFound)?;
    let accounts = user.console.store.accounts(user.admin()?).await?;
    accounts.into_iter().find(|account| account.id == id).ok_or(ConsoleError::NotFound)
}
