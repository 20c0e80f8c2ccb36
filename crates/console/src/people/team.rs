//! The team, for administrators: accounts, invitations, roles.

use std::time::Duration;

use maud::{Markup, html};
use store::{Account, AccountId, DeletedPerson, Link, LinkId, LinkPurpose, Role, Token};

use crate::page::{
    Area, Column, ConsoleError, ConsoleResult, Fields, Form, Order, Paging, SignedIn, button_form, copyable,
    csrf_field, data_table, empty, found, or_placeholder, parse_id, relative_time, search_input, select, table,
};
use crate::people::find_by_id;

/// The value in the form, its label, and days.
const EXPIRY_CHOICES: [(&str, &str, u64); 3] = [("1", "1 day", 1), ("7", "7 days", 7), ("30", "30 days", 30)];
const DEFAULT_EXPIRY: &str = "7";
const MAX_NOTE_CHARS: usize = 120;
/// Max. people in the list of those without a second factor.
const MAX_WITHOUT_FACTOR: usize = 100;
/// Max. pending links in the list. More than a few are a mistake.
const MAX_LINKS: usize = 50;
/// Max. deleted people in the list. `adriaticum accounts deleted` lists all.
const MAX_DELETED: usize = 50;

const COLUMNS: [Column<Account>; 6] = [
    Column::text("name", "Name", |account| account.name.to_lowercase()),
    Column::text("email", "E-mail", |account| account.email.to_string()),
    Column::text("role", "Role", |account| account.role.to_string()),
    Column::time("joined", "Joined", |account| Some(account.created_at)),
    Column::time("signed-in", "Last signed in", |account| account.signed_in_at),
    Column::text("state", "State", |account| state(account).to_owned()),
];

pub(crate) async fn page(user: &SignedIn<'_>, query: &Fields) -> ConsoleResult {
    page_with(user, query, html! {}).await
}

/// The page with a notice on top.
async fn page_with(user: &SignedIn<'_>, query: &Fields, notice: Markup) -> ConsoleResult {
    let admin = user.admin()?;
    let accounts = user.store().accounts().list(admin).await?;
    let links = user.store().links().list(admin).await?;
    let deleted = user.store().provider_accounts().deleted_people(admin).await?;
    // Without passwords, accounts come from the identity provider.
    let passwords = user.console.settings.passwords;
    let is_required = user.store().second_factors().is_required().await?;
    let without_factor = user.store().second_factors().accounts_without(admin).await?;
    let actions = html! { @if passwords { a.button.primary href="#invite" { "Invite" } } };
    let content = html! {
        (notice)
        (members(user, &accounts, query))
        section.card {
            h2 { "Pending links" }
            @if links.is_empty() {
                p.quiet {
                    "None. Invitations and password reset links are listed here until they are used or expire. "
                    a href="#invite" { "Invite a team member" } "."
                }
            } @else {
                (link_table(user, links.get(..MAX_LINKS).unwrap_or(&links)))
                @if links.len() > MAX_LINKS {
                    p.quiet { "The first " (MAX_LINKS) " of " (format::number(links.len() as u64)) " links." }
                }
            }
        }
        @if user.console.settings.identity_provider.is_some() && !deleted.is_empty() { (deleted_card(user, &deleted)) }
        @if passwords {
            (invite_form(user))
            (second_factor_card(user, is_required, &without_factor))
        }
    };
    Ok(user.page(Area::Team, "Team", actions, content))
}

/// People whom the identity provider may still know.
fn deleted_card(user: &SignedIn<'_>, deleted: &[DeletedPerson]) -> Markup {
    let rows = deleted.iter().take(MAX_DELETED).map(|person| {
        let path = format!("/team/deleted/{}/allow", person.account);
        [html! { (person.email) }, relative_time(person.deleted_at), button_form(user, &path, "Allow", "plain")]
    });
    html! {
        section.card {
            h2 { "Deleted people" }
            p.quiet { "They cannot return through the identity provider until you allow it, and get a new account then." }
            (table("Deleted people", ["E-mail", "Deleted", ""], rows))
            @if deleted.len() > MAX_DELETED {
                p.quiet { "The last " (MAX_DELETED) " of " (format::number(deleted.len() as u64)) " people." }
            }
        }
    }
}

pub(crate) async fn allow_return(user: &SignedIn<'_>, id: &str, _form: &Form) -> ConsoleResult {
    let id: AccountId = parse_id(id)?;
    let email = user.store().provider_accounts().allow_return(user.admin()?, id).await?;
    user.redirect_with_message("/team", &format!("{email} can return with a new account."))
}

fn second_factor_card(user: &SignedIn<'_>, is_required: bool, without: &[Account]) -> Markup {
    html! {
        section.card {
            h2 { "Second factor" }
            p {
                @if is_required {
                    "Everyone who signs in with a password needs an authenticator app or a passkey."
                } @else {
                    "Optional: each person decides about their own account."
                }
            }
            @if without.is_empty() {
                p.quiet { "Everyone who signs in with a password has a second factor." }
            } @else {
                p { (format::count(without.len() as u64, "active account")) " without a second factor:" }
                ul #without-second-factor {
                    @for account in without.iter().take(MAX_WITHOUT_FACTOR) {
                        li { a href={ "/team/" (account.id) } { (account.name) } " " span.quiet { (account.email) } }
                    }
                }
                @if without.len() > MAX_WITHOUT_FACTOR { p.quiet { "The first " (MAX_WITHOUT_FACTOR) " are listed." } }
            }
            form.inline method="post" action="/team/second-factor" {
                (csrf_field(user))
                input type="hidden" name="required" value=(if is_required { "no" } else { "yes" });
                button type="submit" { @if is_required { "Make optional" } @else { "Require for everyone" } }
            }
        }
    }
}

fn invite_form(user: &SignedIn<'_>) -> Markup {
    html! {
        section.card #invite {
            h2 { "Invite a team member" }
            p.quiet { "Creates a link to share. The person who opens it chooses an e-mail address and a password." }
            form.fields method="post" action="/team/invitations" {
                (csrf_field(user))
                label {
                    "For"
                    input name="note" required maxlength=(MAX_NOTE_CHARS) placeholder="name or e-mail address"
                        autocomplete="off";
                }
                (select("Role", "role", Role::ALL.map(|role| (role.as_str(), role.as_str())), ""))
                (select("Expires after", "lifetime", EXPIRY_CHOICES.map(|(value, label, _)| (value, label)), DEFAULT_EXPIRY))
                button.primary type="submit" { "Create link" }
            }
        }
    }
}

fn members(user: &SignedIn<'_>, accounts: &[Account], query: &Fields) -> Markup {
    let wanted = query.get("find").to_lowercase();
    let is_found = |account: &&Account| {
        account.name.to_lowercase().contains(&wanted) || account.email.as_str().to_lowercase().contains(&wanted)
    };
    let order = Order::from_query(query, &COLUMNS, "joined");
    let mut found: Vec<&Account> = accounts.iter().filter(is_found).collect();
    order.sort(&mut found);
    let (paging, kept) = (Paging::new(query, found.len()), query.only(&["find", "sort"]));
    html! {
        form.filters method="get" action="/team" role="search" {
            (search_input("Search", "find", query.get("find"), "name or e-mail address"))
            (order.choice())
            button.plain type="submit" { "Apply" }
        }
        @if found.is_empty() {
            (empty("No matching members", html! {
                p { "No member has the search text in their name or e-mail address." }
                p { a.button href="/team" { "Show all members" } }
            }))
        } @else {
            (member_table(user, paging.cut(&found), order.head(&kept, "")))
            (paging.links(&kept, "member", ""))
        }
    }
}

fn state(account: &Account) -> &'static str {
    if account.disabled_at.is_some() { "disabled" } else { "active" }
}

/// Actions on a member are on the member's page.
fn member_table(user: &SignedIn<'_>, accounts: &[&Account], head: Markup) -> Markup {
    let me = user.viewer().account().map(|account| account.id);
    data_table(
        "Team members",
        head,
        html! {
            @for account in accounts {
                @let disabled = account.disabled_at.is_some();
                tr.over[disabled] {
                    th scope="row" data-label="Name" {
                        a href={ "/team/" (account.id) } { (account.name) }
                        @if me == Some(account.id) { " " span.quiet { "(you)" } }
                    }
                    td data-label="E-mail" { (account.email) }
                    td data-label="Role" { (account.role) }
                    td data-label="Joined" { (relative_time(account.created_at)) }
                    td data-label="Last signed in" { (or_placeholder(account.signed_in_at.map(relative_time), "never")) }
                    td data-label="State" {
                        @if disabled { span.badge.revoked { "disabled" } } @else { span.badge.active { "active" } }
                    }
                }
            }
        },
    )
}

fn link_table(user: &SignedIn<'_>, links: &[Link]) -> Markup {
    let rows = links.iter().map(|link| {
        let purpose = match &link.purpose {
            LinkPurpose::SetUp => "set up".to_owned(),
            LinkPurpose::Join(role) => format!("invitation as {role}"),
            LinkPurpose::Reset(_) => "password reset".to_owned(),
        };
        [
            html! { (link.note) },
            html! { (purpose) },
            html! { (link.made_by) },
            relative_time(link.expires_at),
            button_form(user, &format!("/team/links/{}/withdraw", link.id), "Revoke", "plain"),
        ]
    });
    table("Links", ["For", "Purpose", "Created by", "Expires", ""], rows)
}

/// The page with a new link, which no other page shows.
async fn page_with_link(user: &SignedIn<'_>, message: &str, token: &Token) -> ConsoleResult {
    let link = format!("{}/welcome/{}", user.console.settings.origin, token.reveal());
    let notice = html! {
        p.message role="status" { (message) }
        section.card {
            h2 { "Share this link" }
            p { "It is shown only once and works once." }
            (copyable("link", &link))
        }
    };
    page_with(user, &Fields::default(), notice).await
}

pub(crate) async fn invite(user: &SignedIn<'_>, form: &Form) -> ConsoleResult {
    let admin = user.admin()?;
    user.console.require_passwords()?;
    let role: Role = form.get("role").parse().map_err(|_| ConsoleError::Unreadable)?;
    let days = EXPIRY_CHOICES.iter().find(|(value, ..)| *value == form.get("lifetime")).map_or(7, |(.., days)| *days);
    let note: String =
        form.get("note").chars().filter(|character| !character.is_control()).take(MAX_NOTE_CHARS).collect();
    let token = user.store().links().invite(admin, role, &note, Duration::from_secs(days * 86_400)).await?;
    page_with_link(user, &format!("Created an invitation for {note} as {role}."), &token).await
}

pub(crate) async fn reset(user: &SignedIn<'_>, id: &str, _form: &Form) -> ConsoleResult {
    user.console.require_passwords()?;
    let account = find_by_id(user, id).await?;
    let token = user.store().links().create_reset(user.admin()?, &account.email).await?;
    page_with_link(user, &format!("Created a password reset link for {}.", account.name), &token).await
}

pub(crate) async fn require_second_factor(user: &SignedIn<'_>, form: &Form) -> ConsoleResult {
    let is_required = form.get("required") == "yes";
    user.store().second_factors().require(user.admin()?, is_required).await?;
    let message = match is_required {
        true => "A second factor is now required. People without one set it up on the next page that they open.",
        false => "Second factors are now optional.",
    };
    user.redirect_with_message("/team", message)
}

pub(crate) async fn withdraw(user: &SignedIn<'_>, id: &str, _form: &Form) -> ConsoleResult {
    let id: LinkId = parse_id(id)?;
    found(user.store().links().revoke(user.admin()?, id).await?)?;
    user.redirect_with_message("/team", "The link was revoked.")
}
