//! The team, for administrators: accounts, invitations, roles.

use std::time::Duration;

use http::StatusCode;
use maud::{Markup, html};
use store::{Account, AccountChange, AccountError, AccountId, Link, LinkId, LinkPurpose, Role};

use crate::components::{
    button_form, columns, copyable, csrf_field, data_table, form_error, heading, sentence, time, time_or,
};
use crate::error::{ConsoleError, ConsoleResult};
use crate::form::Form;
use crate::layout::Area;
use crate::session::SignedIn;

/// The value in the form, its label, and days.
const EXPIRY_CHOICES: [(&str, &str, u64); 3] = [("1", "1 day", 1), ("7", "7 days", 7), ("30", "30 days", 30)];
const DEFAULT_EXPIRY: &str = "7";
const MAX_NOTE_CHARS: usize = 120;

pub(crate) async fn page(user: &SignedIn<'_>) -> ConsoleResult {
    page_with(user, html! {}).await
}

/// The page with a notice on top.
async fn page_with(user: &SignedIn<'_>, notice: Markup) -> ConsoleResult {
    let admin = user.admin()?;
    let accounts = user.console.store.accounts(admin).await?;
    let links = user.console.store.links(admin).await?;
    let content = html! {
        (heading("Team", html! { a.button.primary href="#invite" { "Invite" } }))
        (notice)
        (member_table(user, &accounts))
        section.card {
            h2 { "Pending links" }
            @if links.is_empty() {
                p.quiet { "None. Invitations and password reset links are listed here until they are used or expire." }
            } @else {
                (link_table(user, &links))
            }
        }
        section.card #invite {
            h2 { "Invite a team member" }
            p.quiet { "This creates a link to share. Whoever opens it chooses their own e-mail address and password." }
            form.fields method="post" action="/team/invitations" {
                (csrf_field(user))
                label {
                    "For"
                    input name="note" required maxlength=(MAX_NOTE_CHARS) placeholder="name or e-mail address"
                        autocomplete="off";
                }
                label { "Role" select name="role" { @for role in Role::ALL { option value=(role) { (role) } } } }
                label { "Expires after"
                    select name="life" {
                        @for (value, label, _) in EXPIRY_CHOICES {
                            option value=(value) selected[value == DEFAULT_EXPIRY] { (label) }
                        }
                    }
                }
                button.primary type="submit" { "Create link" }
            }
        }
    };
    Ok(user.page(Area::Team, "Team", content))
}

fn member_table(user: &SignedIn<'_>, accounts: &[Account]) -> Markup {
    let me = user.viewer().account().map(|account| account.id);
    html! {
        @let head = columns(&["Name", "E-mail", "Role", "Joined", "Last signed in", "State", ""]);
        (data_table("Team members", head, html! {
            @for account in accounts {
                @let disabled = account.disabled_at.is_some();
                tr.over[disabled] {
                    th scope="row" data-label="Name" {
                        a href={ "/team/" (account.id) } { (account.name) }
                        @if me == Some(account.id) { " " span.quiet { "(you)" } }
                    }
                    td data-label="E-mail" { (account.email) }
                    td data-label="Role" { (account.role) }
                    td data-label="Joined" { (time(account.created_at)) }
                    td data-label="Last signed in" { (time_or(account.signed_in_at, "never")) }
                    td data-label="State" {
                        @if disabled { span.badge.revoked { "disabled" } } @else { span.badge.active { "active" } }
                    }
                    td.actions { (actions(user, account)) }
                }
            }
        }))
    }
}

fn actions(user: &SignedIn<'_>, account: &Account) -> Markup {
    let (other, label) = match account.role {
        Role::Admin => (Role::Developer, "Make developer"),
        Role::Developer => (Role::Admin, "Make admin"),
    };
    let disabled = account.disabled_at.is_some();
    let (action, able) = if disabled { ("enable", "Enable") } else { ("disable", "Disable") };
    html! {
        form.inline method="post" action={ "/team/" (account.id) "/role" } {
            (csrf_field(user))
            input type="hidden" name="role" value=(other);
            button.plain type="submit" { (label) span.hidden { " " (account.name) } }
        }
        (button_form(user, &format!("/team/{}/reset", account.id), "Reset password", "plain"))
        (button_form(user, &format!("/team/{}/{action}", account.id), able, "plain"))
    }
}

fn link_table(user: &SignedIn<'_>, links: &[Link]) -> Markup {
    html! {
        (data_table("Links", columns(&["For", "Purpose", "Created by", "Expires", ""]), html! {
            @for link in links {
                tr {
                    th scope="row" data-label="For" { (link.note) }
                    td data-label="Purpose" {
                        @match &link.purpose {
                            LinkPurpose::SetUp => "set up",
                            LinkPurpose::Join(role) => { "invitation as " (role) },
                            LinkPurpose::Reset(_) => "password reset",
                        }
                    }
                    td data-label="Created by" { (link.made_by) }
                    td data-label="Expires" { (time(link.expires_at)) }
                    td.actions { (button_form(user, &format!("/team/links/{}/withdraw", link.id), "Revoke", "plain")) }
                }
            }
        }))
    }
}

/// The page with a new link, which is shown only now.
async fn page_with_link(user: &SignedIn<'_>, message: &str, token: &store::Token) -> ConsoleResult {
    let link = format!("{}/welcome/{}", user.console.settings.origin, token.reveal());
    let notice = html! {
        p.message role="status" { (message) }
        section.card {
            h2 { "Share this link" }
            p { "It is shown only once and works once." }
            (copyable("link", &link))
        }
    };
    page_with(user, notice).await
}

pub(crate) async fn invite(user: &SignedIn<'_>, form: &Form) -> ConsoleResult {
    let admin = user.admin()?;
    let role: Role = form.get("role").parse().map_err(|_| ConsoleError::Unreadable)?;
    let days = EXPIRY_CHOICES.iter().find(|(value, ..)| *value == form.get("life")).map_or(7, |(.., days)| *days);
    let note: String =
        form.get("note").chars().filter(|character| !character.is_control()).take(MAX_NOTE_CHARS).collect();
    match user.console.store.invite(admin, role, &note, Duration::from_secs(days * 86_400)).await {
        Ok(token) => page_with_link(user, &format!("Created an invitation for {note} as {role}."), &token).await,
        Err(declined) => declined_page(user, declined).await,
    }
}

pub(crate) async fn reset(user: &SignedIn<'_>, id: &str, _form: &Form) -> ConsoleResult {
    let admin = user.admin()?;
    let id: AccountId = id.parse().map_err(|_| ConsoleError::NotFound)?;
    let accounts = user.console.store.accounts(admin).await?;
    let account = accounts.into_iter().find(|account| account.id == id).ok_or(ConsoleError::NotFound)?;
    match user.console.store.create_reset_link(admin, &account.email).await {
        Ok(token) => {
            page_with_link(user, &format!("Created a password reset link for {}.", account.name), &token).await
        }
        Err(declined) => declined_page(user, declined).await,
    }
}

pub(crate) async fn withdraw(user: &SignedIn<'_>, id: &str, _form: &Form) -> ConsoleResult {
    let id: LinkId = id.parse().map_err(|_| ConsoleError::NotFound)?;
    match user.console.store.revoke_link(user.admin()?, id).await {
        Ok(true) => Ok(user.redirect_with_message("/team", "The link was revoked.")),
        Ok(false) => Err(ConsoleError::NotFound),
        Err(declined) => declined_page(user, declined).await,
    }
}

pub(crate) async fn set_role(user: &SignedIn<'_>, id: &str, form: &Form) -> ConsoleResult {
    let id: AccountId = id.parse().map_err(|_| ConsoleError::NotFound)?;
    let role: Role = form.get("role").parse().map_err(|_| ConsoleError::Unreadable)?;
    match user.console.store.set_role(user.admin()?, id, role).await {
        Ok(AccountChange { account, withdrawn_links }) => {
            let withdrawn = revoked_links(withdrawn_links);
            let message = format!("{} is now {}.{withdrawn}", account.name, with_article(role));
            Ok(user.redirect_with_message("/team", &message))
        }
        Err(declined) => declined_page(user, declined).await,
    }
}

pub(crate) async fn set_disabled(user: &SignedIn<'_>, id: &str, disabled: bool, _form: &Form) -> ConsoleResult {
    let id: AccountId = id.parse().map_err(|_| ConsoleError::NotFound)?;
    match user.console.store.set_disabled(user.admin()?, id, disabled).await {
        Ok(AccountChange { account, withdrawn_links }) if disabled => {
            let keys = user.console.store.count_active_keys(user.admin()?, id).await?;
            let message = format!("{} can no longer sign in.{}", account.name, revoked_links(withdrawn_links));
            // Their page offers to revoke the keys that still work.
            Ok(match keys {
                0 => user.redirect_with_message("/team", &message),
                _ => user.redirect_with_message(&format!("/team/{id}"), &message),
            })
        }
        Ok(AccountChange { account, .. }) => {
            Ok(user.redirect_with_message("/team", &format!("{} can sign in again.", account.name)))
        }
        Err(declined) => declined_page(user, declined).await,
    }
}

/// A sentence, if there were any.
fn revoked_links(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => " 1 pending link was revoked.".into(),
        count => format!(" {} were revoked.", format::count(count as u64, "pending link")),
    }
}

fn with_article(role: Role) -> &'static str {
    match role {
        Role::Admin => "an admin",
        Role::Developer => "a developer",
    }
}

pub(crate) async fn declined_page(user: &SignedIn<'_>, declined: AccountError) -> ConsoleResult {
    match declined {
        AccountError::NoSuchAccount => Err(ConsoleError::NotFound),
        AccountError::NotAdmin => Err(ConsoleError::NotAllowed),
        AccountError::Store(error) => Err(error.into()),
        other => {
            let notice = form_error(Some(&sentence(&other)));
            Ok(page_with(user, notice).await?.with_status(StatusCode::CONFLICT))
        }
    }
}
