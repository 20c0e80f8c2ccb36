//! The `accounts` commands, which also work when nobody can sign in to the console.

use format::rfc3339_seconds;
use serde::Serialize;
use store::{Account, AccountError, Admin, Email, Store, Token, Viewer};

use crate::cli::AccountsCommand;
use crate::error::CliError;
use crate::output::{print_json, print_line, print_note};
use crate::settings::Settings;
use crate::storage::open_store;
use crate::table::Table;

pub(crate) async fn run(settings: &Settings, command: AccountsCommand) -> Result<(), CliError> {
    let store = open_store(settings).await?;
    let operator = Viewer::operator();
    let admin = operator.admin().ok_or_else(|| CliError::new("the operator may do everything"))?;
    match command {
        AccountsCommand::List { json } => list(&store.accounts(admin).await?, json),
        AccountsCommand::Invite { note, role, expires } => {
            let token = store.invite(admin, role, &note, expires).await?;
            show_link(settings, &token)
        }
        AccountsCommand::Reset { email } => {
            let token = store.create_reset_link(admin, &email).await.map_err(|error| cli_error(&error, &email))?;
            show_link(settings, &token)
        }
        AccountsCommand::Role { email, role } => {
            let account = find(&store, admin, &email).await?;
            store.set_role(admin, account.id, role).await.map_err(|error| cli_error(&error, &email))?;
            print_line(&format!("{email} is now {role}."))
        }
        AccountsCommand::Disable { email } => set_disabled(&store, admin, &email, true).await,
        AccountsCommand::Enable { email } => set_disabled(&store, admin, &email, false).await,
    }
}

fn show_link(settings: &Settings, token: &Token) -> Result<(), CliError> {
    print_line(&format!("{}/welcome/{}", settings.console.base_url, token.reveal()))?;
    print_note("This link is shown once and works once.");
    Ok(())
}

async fn set_disabled(store: &Store, admin: Admin<'_>, email: &Email, disabled: bool) -> Result<(), CliError> {
    let account = find(store, admin, email).await?;
    store.set_disabled(admin, account.id, disabled).await.map_err(|error| cli_error(&error, email))?;
    print_line(&format!("{email} {} sign in.", if disabled { "can no longer" } else { "can again" }))
}

async fn find(store: &Store, admin: Admin<'_>, email: &Email) -> Result<Account, CliError> {
    let found = store.accounts(admin).await?.into_iter().find(|account| account.email == *email);
    found.ok_or_else(|| cli_error(&AccountError::NoSuchAccount, email))
}

fn list(accounts: &[Account], json: bool) -> Result<(), CliError> {
    if json {
        let rows: Vec<_> = accounts.iter().map(JsonAccount::from).collect();
        return print_json(&rows);
    }
    if accounts.is_empty() {
        return print_line("There are no accounts yet. `serve` prints a link for the first one when it starts.");
    }
    let mut table = Table::new(&["E-MAIL", "NAME", "ROLE", "STATE", "CREATED", "LAST SIGNED IN"]);
    for account in accounts {
        table.row([
            account.email.to_string(),
            account.name.clone(),
            account.role.to_string(),
            if account.disabled_at.is_some() { "disabled" } else { "active" }.into(),
            rfc3339_seconds(account.created_at),
            account.signed_in_at.map_or_else(|| "never".into(), rfc3339_seconds),
        ]);
    }
    print_line(table.to_string().trim_end())
}

fn cli_error(error: &AccountError, email: &Email) -> CliError {
    match error {
        AccountError::NoSuchAccount => {
            CliError::new(format!("there is no account {email}; `adriaticum accounts list` lists all"))
        }
        other => CliError::new(other.to_string()),
    }
}

#[derive(Serialize)]
struct JsonAccount<'a> {
    id: &'a str,
    email: &'a str,
    name: &'a str,
    role: &'a str,
    created_at: String,
    signed_in_at: Option<String>,
    disabled_at: Option<String>,
}

impl<'a> From<&'a Account> for JsonAccount<'a> {
    fn from(account: &'a Account) -> Self {
        Self {
            id: account.id.as_str(),
            email: account.email.as_str(),
            name: &account.name,
            role: account.role.as_str(),
            created_at: rfc3339_seconds(account.created_at),
            signed_in_at: account.signed_in_at.map(rfc3339_seconds),
            disabled_at: account.disabled_at.map(rfc3339_seconds),
        }
    }
}
