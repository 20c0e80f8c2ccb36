//! The `accounts` commands, which also work when no user can sign in to the console.

use format::rfc3339_seconds;
use serde_json::{Value, json};
use store::{
    Access, Account, AccountError, Admin, DeletedPerson, Email, Link, LinkId, LinkPurpose, PersonName, Store, Token,
    Viewer,
};

use crate::cli::AccountsCommand;
use crate::error::CliError;
use crate::output::{print_line, print_list, print_note};
use crate::settings::Settings;
use crate::storage::{admin, open_store};

pub(crate) async fn run(settings: &Settings, command: AccountsCommand) -> Result<(), CliError> {
    let store = open_store(settings).await?;
    let operator = Viewer::operator();
    let admin = admin(&operator)?;
    match command {
        AccountsCommand::List { json } => list(&store.accounts().list(admin).await?, json),
        AccountsCommand::Invite { note, role, expires } => {
            let token = store.links().invite(admin, role, &note, expires).await?;
            show_link(settings, &token)
        }
        AccountsCommand::SetUp => match store.links().create_setup().await? {
            Some(token) => show_link(settings, &token),
            None => Err(CliError::new("there is an administrator already: invite others with `accounts invite`.")),
        },
        AccountsCommand::Reset { email } => {
            let token = store.links().create_reset(admin, &email).await;
            show_link(settings, &token.map_err(|error| cli_error(error, &email))?)
        }
        AccountsCommand::Role { email, role } => {
            let account = find_account(&store, admin, &email).await?;
            let changed = store.accounts().set_role(admin, account.id, role).await?;
            print_line(&format!("{email} is now {role}."))?;
            note_withdrawn(changed.withdrawn_links);
            Ok(())
        }
        AccountsCommand::Disable { email, revoke_keys } => {
            set_access(&store, admin, &email, Access::Disabled { revokes_keys: revoke_keys }).await
        }
        AccountsCommand::Set { email, name, new_email } => {
            let account = find_account(&store, admin, &email).await?;
            let stored_name = || PersonName::parse(&account.name).map_err(CliError::from_error);
            let name = name.map_or_else(stored_name, Ok)?;
            let new_email = new_email.unwrap_or_else(|| account.email.clone());
            let changed = store.accounts().set_profile(admin, account.id, &name, &new_email).await?;
            print_line(&format!("{email} is now {}, {}.", changed.name, changed.email))
        }
        AccountsCommand::Delete { email } => {
            let account = find_account(&store, admin, &email).await?;
            let revoked = store.accounts().delete(admin, account.id).await?;
            print_line(&format!("Deleted {email}."))?;
            note_revoked(revoked);
            Ok(())
        }
        AccountsCommand::SignOut { email } => {
            let account = find_account(&store, admin, &email).await?;
            let ended = store.accounts().end_sessions(admin, account.id).await?;
            print_line(&format!("{email} was signed out of {}.", format::count(ended, "session")))
        }
        AccountsCommand::RemoveSecondFactors { email } => {
            let account = find_account(&store, admin, &email).await?;
            store.second_factors().reset(admin, account.id).await?;
            print_line(&format!("{email} now signs in with the password alone, and was signed out."))
        }
        AccountsCommand::Disconnect { email, everyone: _ } => {
            let account = match &email {
                Some(email) => Some(find_account(&store, admin, email).await?.id),
                None => None,
            };
            let removed = store.provider_accounts().disconnect(admin, account).await?;
            print_line(&format!("Removed: {}.", format::count(removed, "connection")))
        }
        AccountsCommand::Deleted { json } => {
            list_deleted(&store.provider_accounts().deleted_people(admin).await?, json)
        }
        AccountsCommand::Allow { email } => {
            let deleted = store.provider_accounts().deleted_people(admin).await?.into_iter();
            let accounts: Vec<_> =
                deleted.filter(|person| person.email == email).map(|person| person.account).collect();
            if accounts.is_empty() {
                return Err(CliError::new(format!("{email} was not deleted; `adriaticum accounts deleted` lists all")));
            }
            for account in accounts {
                store.provider_accounts().allow_return(admin, account).await?;
            }
            print_line(&format!("{email} can sign in again through the identity provider."))
        }
        AccountsCommand::RequireSecondFactor { required } => {
            store.second_factors().require(admin, required).await?;
            print_line(if required { "A second factor is required." } else { "Second factors are optional." })
        }
        AccountsCommand::Enable { email } => set_access(&store, admin, &email, Access::Enabled).await,
        AccountsCommand::Links { json } => list_links(&store.links().list(admin).await?, json),
        AccountsCommand::Withdraw { id } => withdraw(&store, admin, &id).await,
    }
}

fn show_link(settings: &Settings, token: &Token) -> Result<(), CliError> {
    print_line(&format!("{}/welcome/{}", settings.console.base_url, token.reveal()))?;
    print_note("This link is shown once and works once.");
    Ok(())
}

async fn set_access(store: &Store, admin: Admin<'_>, email: &Email, access: Access) -> Result<(), CliError> {
    let account = find_account(store, admin, email).await?;
    let changed = store.accounts().set_access(admin, account.id, access).await?;
    print_line(&format!("{email} {} sign in.", if access == Access::Enabled { "can again" } else { "can no longer" }))?;
    note_withdrawn(changed.withdrawn_links);
    note_revoked(changed.revoked_keys);
    Ok(())
}

fn note_revoked(keys: u64) {
    if keys > 0 {
        print_note(&format!("Revoked: {}.", format::count(keys, "key")));
    }
}

fn note_withdrawn(links: usize) {
    if links > 0 {
        print_note(&format!("Withdrawn: {}.", format::count(links as u64, "pending link")));
    }
}

async fn withdraw(store: &Store, admin: Admin<'_>, id: &str) -> Result<(), CliError> {
    let id: Option<LinkId> = id.parse().ok();
    let withdrawn = match id {
        Some(id) => store.links().revoke(admin, id).await?,
        None => false,
    };
    match withdrawn {
        true => print_line("The link no longer works."),
        false => Err(CliError::new("there is no such link; `adriaticum accounts links` lists all")),
    }
}

fn list_links(links: &[Link], json: bool) -> Result<(), CliError> {
    let headings = ["ID", "FOR", "PURPOSE", "CREATED BY", "EXPIRES"];
    print_list(links, json, link_as_json, "There are no pending links.", headings, |link| {
        let purpose = match &link.purpose {
            LinkPurpose::SetUp => "set up".into(),
            LinkPurpose::Join(role) => format!("invitation as {role}"),
            LinkPurpose::Reset(_) => "password reset".into(),
        };
        [link.id.to_string(), link.note.clone(), purpose, link.made_by.clone(), rfc3339_seconds(link.expires_at)]
    })
}

fn list_deleted(people: &[DeletedPerson], json: bool) -> Result<(), CliError> {
    let as_json = |person: &DeletedPerson| json!({ "email": person.email.as_str(), "deleted_at": rfc3339_seconds(person.deleted_at) });
    let empty = "No deleted person is barred from signing in.";
    print_list(people, json, as_json, empty, ["E-MAIL", "DELETED"], |person| {
        [person.email.to_string(), rfc3339_seconds(person.deleted_at)]
    })
}

pub(crate) async fn find_account(store: &Store, admin: Admin<'_>, email: &Email) -> Result<Account, CliError> {
    let found = store.accounts().list(admin).await?.into_iter().find(|account| account.email == *email);
    found.ok_or_else(|| cli_error(AccountError::NoSuchAccount, email))
}

fn list(accounts: &[Account], json: bool) -> Result<(), CliError> {
    let empty = "There are no accounts yet. `serve` prints a link for the first one when it starts.";
    let headings = ["E-MAIL", "NAME", "ROLE", "STATE", "CREATED", "LAST SIGNED IN"];
    print_list(accounts, json, account_as_json, empty, headings, |account| {
        [
            account.email.to_string(),
            account.name.clone(),
            account.role.to_string(),
            if account.disabled_at.is_some() { "disabled" } else { "active" }.into(),
            rfc3339_seconds(account.created_at),
            account.signed_in_at.map_or_else(|| "never".into(), rfc3339_seconds),
        ]
    })
}

fn cli_error(error: AccountError, email: &Email) -> CliError {
    match error {
        AccountError::NoSuchAccount => {
            CliError::new(format!("there is no account {email}; `adriaticum accounts list` lists all"))
        }
        other => other.into(),
    }
}

fn link_as_json(link: &Link) -> Value {
    let (purpose, role) = match &link.purpose {
        LinkPurpose::SetUp => ("set_up", None),
        LinkPurpose::Join(role) => ("invitation", Some(role.as_str())),
        LinkPurpose::Reset(_) => ("password_reset", None),
    };
    json!({
        "id": link.id.as_str(),
        "for": link.note,
        "purpose": purpose,
        "role": role,
        "created_by": link.made_by,
        "created_at": rfc3339_seconds(link.created_at),
        "expires_at": rfc3339_seconds(link.expires_at),
    })
}

fn account_as_json(account: &Account) -> Value {
    json!({
        "id": account.id.as_str(),
        "email": account.email.as_str(),
        "name": account.name,
        "role": account.role.as_str(),
        "created_at": rfc3339_seconds(account.created_at),
        "signed_in_at": account.signed_in_at.map(rfc3339_seconds),
        "disabled_at": account.disabled_at.map(rfc3339_seconds),
    })
}
