//! The team, for administrators: who there is, invitations, roles.

use std::time::Duration;

use maud::{Markup, html};
use store::{Account, AccountError, AccountId, Link, LinkId, LinkPurpose, Role};

use crate::form::Form;
use crate::page::{self, Area, button_form, copyable, token};
use crate::reply::{Problem, Reply};
use crate::room::Room;
use crate::show::{time, time_or};

/// How long an invitation can be used, by choice.
const LIVES: [(&str, &str, u64); 3] = [("1", "1 day", 1), ("7", "7 days", 7), ("30", "30 days", 30)];
const LONGEST_NOTE: usize = 120;

pub(crate) async fn page(room: &Room<'_>) -> Result<Reply, Problem> {
    Ok(Reply::page(content(room, html! {}).await?))
}

async fn content(room: &Room<'_>, first: Markup) -> Result<Markup, Problem> {
    let admin = room.admin()?;
    let accounts = room.console.store.accounts(admin).await?;
    let links = room.console.store.links(admin).await?;
    let content = html! {
        (page::heading("Team", html! { a.button.primary href="#invite" { "Invite somebody" } }))
        (first)
        (people(room, &accounts))
        section.card {
            h2 { "Links that still work" }
            @if links.is_empty() { p.quiet { "None. Invitations and links to reset a password are listed here until they are used." } }
            @else { (link_table(room, &links)) }
        }
        section.card #invite {
            h2 { "Invite somebody" }
            p.quiet { "You get a link to pass on. Whoever opens it chooses their own e-mail address and password." }
            form.fields method="post" action="/team/invitations" {
                (token(room))
                label { "For whom" input name="note" required maxlength=(LONGEST_NOTE) placeholder="name or e-mail address" autocomplete="off"; }
                label { "Role" select name="role" { @for role in Role::ALL { option value=(role) { (role) } } } }
                label { "Can be used for"
                    select name="life" { @for (value, says, _) in LIVES { option value=(value) selected[value == "7"] { (says) } } }
                }
                button.primary type="submit" { "Make the link" }
            }
        }
    };
    Ok(page::page(room, Area::Team, "Team", content))
}

fn people(room: &Room<'_>, accounts: &[Account]) -> Markup {
    let me = room.viewer().account().map(|account| account.id);
    html! {
        div.scroll tabindex="0" role="region" aria-label="People" {
            table.rows {
                thead { tr {
                    th scope="col" { "Name" } th scope="col" { "E-mail" } th scope="col" { "Role" } th scope="col" { "Joined" }
                    th scope="col" { "Last signed in" } th scope="col" { "State" } th scope="col" { span.hidden { "Actions" } }
                } }
                tbody {
                    @for account in accounts {
                        @let disabled = account.disabled_at.is_some();
                        tr.over[disabled] {
                            th scope="row" data-label="Name" { (account.name) @if me == Some(account.id) { " " span.quiet { "(you)" } } }
                            td data-label="E-mail" { (account.email) }
                            td data-label="Role" { (account.role) }
                            td data-label="Joined" { (time(account.created_at)) }
                            td data-label="Last signed in" { (time_or(account.signed_in_at, "never")) }
                            td data-label="State" {
                                @if disabled { span.badge.revoked { "disabled" } } @else { span.badge.active { "active" } }
                            }
                            td.actions { (actions(room, account)) }
                        }
                    }
                }
            }
        }
    }
}

fn actions(room: &Room<'_>, account: &Account) -> Markup {
    let (other, label) = match account.role {
        Role::Admin => (Role::Developer, "Make developer"),
        Role::Developer => (Role::Admin, "Make admin"),
    };
    let disabled = account.disabled_at.is_some();
    let (action, able) = if disabled { ("enable", "Enable") } else { ("disable", "Disable") };
    html! {
        form.inline method="post" action={ "/team/" (account.id) "/role" } {
            (token(room))
            input type="hidden" name="role" value=(other);
            button.plain type="submit" { (label) span.hidden { " " (account.name) } }
        }
        (button_form(room, &format!("/team/{}/reset", account.id), "Reset password", "plain"))
        (button_form(room, &format!("/team/{}/{action}", account.id), able, "plain"))
    }
}

fn link_table(room: &Room<'_>, links: &[Link]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Links" {
            table.rows {
                thead { tr {
                    th scope="col" { "For" } th scope="col" { "What" } th scope="col" { "Made by" } th scope="col" { "Until" }
                    th scope="col" { span.hidden { "Actions" } }
                } }
                tbody {
                    @for link in links {
                        tr {
                            th scope="row" data-label="For" { (link.note) }
                            td data-label="What" {
                                @match &link.purpose {
                                    LinkPurpose::SetUp => "set-up",
                                    LinkPurpose::Join(role) => { "join as " (role) },
                                    LinkPurpose::Reset(_) => "reset the password",
                                }
                            }
                            td data-label="Made by" { (link.made_by) }
                            td data-label="Until" { (time(link.expires_at)) }
                            td.actions { (button_form(room, &format!("/team/links/{}/withdraw", link.id), "Withdraw", "plain")) }
                        }
                    }
                }
            }
        }
    }
}

/// The page with a link that was just made, which is shown once.
async fn with_link(room: &Room<'_>, said: &str, token: &store::Token) -> Result<Reply, Problem> {
    let link = format!("{}/welcome/{}", room.console.settings.origin, token.reveal());
    let first = html! {
        p.message role="status" { (said) }
        section.card { h2 { "Pass this link on" } p { "It is shown this once and works once." } (copyable("link", &link)) }
    };
    Ok(Reply::page(content(room, first).await?))
}

pub(crate) async fn invite(room: &Room<'_>, form: &Form) -> Result<Reply, Problem> {
    let admin = room.admin()?;
    let role: Role = form.get("role").parse().map_err(|_| Problem::Unreadable)?;
    let days = LIVES.iter().find(|(value, ..)| *value == form.get("life")).map_or(7, |(.., days)| *days);
    let note: String =
        form.get("note").chars().filter(|character| !character.is_control()).take(LONGEST_NOTE).collect();
    let token = room.console.store.invite(admin, role, &note, Duration::from_secs(days * 86_400)).await?;
    with_link(room, &format!("The invitation for {note} as {role} was made."), &token).await
}

pub(crate) async fn reset(room: &Room<'_>, id: &str, _form: &Form) -> Result<Reply, Problem> {
    let admin = room.admin()?;
    let id: AccountId = id.parse().map_err(|_| Problem::NotFound)?;
    let accounts = room.console.store.accounts(admin).await?;
    let account = accounts.into_iter().find(|account| account.id == id).ok_or(Problem::NotFound)?;
    match room.console.store.create_reset_link(admin, &account.email).await {
        Ok(token) => {
            with_link(room, &format!("A link for {} to choose another password was made.", account.name), &token).await
        }
        Err(declined) => declined_as(room, declined).await,
    }
}

pub(crate) async fn withdraw(room: &Room<'_>, id: &str, _form: &Form) -> Result<Reply, Problem> {
    let id: LinkId = id.parse().map_err(|_| Problem::NotFound)?;
    match room.console.store.revoke_link(room.admin()?, id).await? {
        true => Ok(room.redirect_saying("/team", "The link was withdrawn.")),
        false => Err(Problem::NotFound),
    }
}

pub(crate) async fn set_role(room: &Room<'_>, id: &str, form: &Form) -> Result<Reply, Problem> {
    let id: AccountId = id.parse().map_err(|_| Problem::NotFound)?;
    let role: Role = form.get("role").parse().map_err(|_| Problem::Unreadable)?;
    match room.console.store.set_role(room.admin()?, id, role).await {
        Ok(account) => Ok(room.redirect_saying("/team", &format!("{} is now {}.", account.name, with_article(role)))),
        Err(declined) => declined_as(room, declined).await,
    }
}

pub(crate) async fn set_disabled(room: &Room<'_>, id: &str, disabled: bool, _form: &Form) -> Result<Reply, Problem> {
    let id: AccountId = id.parse().map_err(|_| Problem::NotFound)?;
    match room.console.store.set_disabled(room.admin()?, id, disabled).await {
        Ok(account) if disabled => {
            let message = format!(
                "{} can no longer sign in. Their keys go on working; revoke those that should not.",
                account.name
            );
            Ok(room.redirect_saying("/team", &message))
        }
        Ok(account) => Ok(room.redirect_saying("/team", &format!("{} can sign in again.", account.name))),
        Err(declined) => declined_as(room, declined).await,
    }
}

fn with_article(role: Role) -> &'static str {
    match role {
        Role::Admin => "an admin",
        Role::Developer => "a developer",
    }
}

/// Says on the page why a change was not made.
async fn declined_as(room: &Room<'_>, declined: AccountError) -> Result<Reply, Problem> {
    match declined {
        AccountError::NoSuchAccount => Err(Problem::NotFound),
        AccountError::Store(error) => Err(error.into()),
        other => {
            let mut sentence = other.to_string();
            if let Some(first) = sentence.get_mut(..1) {
                first.make_ascii_uppercase();
            }
            let first = page::complaint(Some(&format!("{sentence}.")));
            Ok(Reply::page_as(http::StatusCode::CONFLICT, content(room, first).await?))
        }
    }
}
