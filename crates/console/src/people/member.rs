//! The page of one team member, for administrators: profile, access, sessions, keys, deletion.

use maud::{Markup, html};
use store::{Access, Account, AccountId, Email, PersonName, Role, SecondFactors};

use crate::page::{
    Area, ConsoleError, ConsoleResult, Draft, Form, Refusal, SignedIn, button_form, csrf_field, found, or_placeholder,
    parse_id, time,
};
use crate::people::account::session_table;
use crate::people::find_by_id;

pub(crate) async fn page(user: &SignedIn<'_>, id: &str, draft: &Draft) -> ConsoleResult {
    let account = &find_by_id(user, id).await?;
    let keys = user.store().accounts().count_active_keys(user.admin()?, account.id).await?;
    let factors = user.store().second_factors().of(account.id).await?;
    let sessions = user.store().sessions().list_of(user.admin()?, account.id).await?;
    let is_me = user.viewer().account().is_some_and(|me| me.id == account.id);
    let actions = html! { a.button href={ "/keys?find=" (account.email) } { "Keys" } };
    let content = html! {
        section.card {
            (draft.message())
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
                dt { "Last signed in" } dd { (or_placeholder(account.signed_in_at.map(time), "never")) }
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
    Ok(user.page(Area::Team, &account.name, actions, content).with_status(draft.status()))
}

fn second_factors(factors: &SecondFactors) -> String {
    let app = factors.app_since.map(|_| "authenticator app".to_owned());
    let passkeys = factors.passkeys.len() as u64;
    let passkeys = (passkeys > 0).then(|| format::count(passkeys, "passkey"));
    let all: Vec<_> = app.into_iter().chain(passkeys).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
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
    let account = find_by_id(user, id).await?;
    let name = PersonName::parse(form.get("name")).map_err(Refusal::from_error)?;
    let email = form.get("email").parse::<Email>().map_err(Refusal::from_error)?;
    let saved = user.store().accounts().set_profile(user.admin()?, account.id, &name, &email).await?;
    user.redirect_with_message(&path(account.id), &format!("{} was saved.", saved.name))
}

pub(crate) async fn set_role(user: &SignedIn<'_>, id: &str, form: &Form) -> ConsoleResult {
    let role: Role = form.get("role").parse().map_err(|_| ConsoleError::Unreadable)?;
    let changed = user.store().accounts().set_role(user.admin()?, parse_id(id)?, role).await?;
    let role = match role {
        Role::Admin => "an admin",
        Role::Developer => "a developer",
    };
    let message = format!("{} is now {role}.{}", changed.account.name, revoked_links(changed.withdrawn_links));
    user.redirect_with_message(&path(changed.account.id), &message)
}

pub(crate) async fn disable(user: &SignedIn<'_>, id: &str, form: &Form) -> ConsoleResult {
    let access = Access::Disabled { revokes_keys: form.has("revoke-keys") };
    let changed = user.store().accounts().set_access(user.admin()?, parse_id(id)?, access).await?;
    let keys = match changed.revoked_keys {
        0 => String::new(),
        count => format!(" Revoked {}.", format::count(count, "key")),
    };
    let (name, links) = (&changed.account.name, revoked_links(changed.withdrawn_links));
    user.redirect_with_message(&path(changed.account.id), &format!("{name} can no longer sign in.{keys}{links}"))
}

pub(crate) async fn enable(user: &SignedIn<'_>, id: &str, _form: &Form) -> ConsoleResult {
    let account = user.store().accounts().set_access(user.admin()?, parse_id(id)?, Access::Enabled).await?.account;
    user.redirect_with_message(&path(account.id), &format!("{} can sign in again.", account.name))
}

/// A sentence, or empty if there were none.
fn revoked_links(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => " 1 pending link was revoked.".into(),
        count => format!(" {} were revoked.", format::count(count as u64, "pending link")),
    }
}

pub(crate) async fn sign_out(user: &SignedIn<'_>, id: &str, _form: &Form) -> ConsoleResult {
    let account = find_by_id(user, id).await?;
    let ended = user.store().accounts().end_sessions(user.admin()?, account.id).await?;
    let message = format!("Signed {} out of {}.", account.name, format::count(ended, "session"));
    user.redirect_with_message(&path(account.id), &message)
}

pub(crate) async fn end_session(user: &SignedIn<'_>, id: &str, session: &str, _form: &Form) -> ConsoleResult {
    let account: AccountId = parse_id(id)?;
    found(user.store().accounts().end_session(user.admin()?, account, parse_id(session)?).await?)?;
    user.redirect_with_message(&path(account), "The session was signed out.")
}

pub(crate) async fn remove_second_factors(user: &SignedIn<'_>, id: &str, _form: &Form) -> ConsoleResult {
    let account = find_by_id(user, id).await?;
    user.store().second_factors().reset(user.admin()?, account.id).await?;
    let message = format!("Removed the second factors of {} and ended all sessions.", account.name);
    user.redirect_with_message(&path(account.id), &message)
}

pub(crate) async fn revoke_keys(user: &SignedIn<'_>, id: &str, _form: &Form) -> ConsoleResult {
    let account = find_by_id(user, id).await?;
    let revoked = user.store().accounts().revoke_keys(user.admin()?, account.id).await?;
    let message = format!("Revoked {} of {}.", format::count(revoked, "key"), account.name);
    user.redirect_with_message(&path(account.id), &message)
}

pub(crate) async fn delete(user: &SignedIn<'_>, id: &str, form: &Form) -> ConsoleResult {
    let account = find_by_id(user, id).await?;
    if !form.get("confirm").eq_ignore_ascii_case(account.email.as_str()) {
        return Err(Refusal::invalid("The e-mail address does not match. Nothing was deleted.").into());
    }
    let revoked = user.store().accounts().delete(user.admin()?, account.id).await?;
    let message = format!("Deleted {} and revoked {}.", account.name, format::count(revoked, "key"));
    user.redirect_with_message("/team", &message)
}

/// The path of the person's page.
fn path(account: AccountId) -> String {
    format!("/team/{account}")
}
