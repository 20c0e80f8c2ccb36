//! The `keys` commands.

use std::time::SystemTime;

use chat::{KeyId, Timestamp};
use format::{key_state, rfc3339_seconds};
use serde::Serialize;
use store::{KeyRecord, NewKey, Store, Viewer};

use crate::cli::{KeyOrId, KeysCommand};
use crate::error::CliError;
use crate::output::{print_json, print_line, print_note};
use crate::settings::Settings;
use crate::storage::open_store;
use crate::table::Table;

pub(crate) async fn run(settings: &Settings, command: KeysCommand) -> Result<(), CliError> {
    let store = open_store(settings).await?;
    match command {
        KeysCommand::Create { name, without_completions, expires } => {
            let expires_at = expires.map(|life| store.now() + life);
            let new = NewKey { name, completions: !without_completions, expires_at };
            let key = store.create_key(&Viewer::operator(), new).await?;
            print_line(key.reveal())?;
            let note = format!("This is the only time the key is shown. Its public id is {}.", key.id());
            print_note(&note);
            Ok(())
        }
        KeysCommand::List { json } => list(&store, json).await,
        KeysCommand::Rename { id, name } => match store.rename_key(&Viewer::operator(), id, &name).await? {
            true => print_line(&format!("Renamed {id} to {:?}.", name.as_str())),
            false => Err(no_such_key(id)),
        },
        KeysCommand::Revoke { id: KeyOrId { id, is_secret } } => match store.revoke_key(&Viewer::operator(), id).await?
        {
            Some(at) => {
                if is_secret {
                    let advice = "The public id is enough: a key that is typed in full stays in the shell's history.";
                    print_note(advice);
                }
                print_line(&format!("Revoked {id} at {}. The next request with it is refused.", rfc3339_seconds(at)))
            }
            None => Err(no_such_key(id)),
        },
    }
}

async fn list(store: &Store, json: bool) -> Result<(), CliError> {
    let keys = store.list_keys(&Viewer::operator()).await?;
    if json {
        let rows: Vec<_> = keys.iter().map(JsonKey::from).collect();
        return print_json(&rows);
    }
    if keys.is_empty() {
        return print_line("There are no keys yet. Create one with: adriaticum keys create NAME");
    }
    let mut table = Table::new(&["ID", "NAME", "STATE", "PERMISSIONS", "CREATED", "LAST USED", "EXPIRES"]);
    let time = |at: Option<Timestamp>| at.map_or_else(|| "–".into(), rfc3339_seconds);
    for key in &keys {
        table.row([
            key.id.to_string(),
            key.name.clone(),
            key_state(key.state(now())).into(),
            if key.completions { "completions" } else { "–" }.into(),
            rfc3339_seconds(key.created_at),
            time(key.last_used_at),
            time(key.expires_at),
        ]);
    }
    print_line(table.to_string().trim_end())
}

fn no_such_key(id: KeyId) -> CliError {
    CliError::new(format!("there is no key {id}; `adriaticum keys list` lists all"))
}

fn now() -> Timestamp {
    SystemTime::now().into()
}

#[derive(Serialize)]
struct JsonKey<'a> {
    id: &'a str,
    name: &'a str,
    state: &'static str,
    permissions: &'static [&'static str],
    created_at: String,
    last_used_at: Option<String>,
    expires_at: Option<String>,
    revoked_at: Option<String>,
}

impl<'a> From<&'a KeyRecord> for JsonKey<'a> {
    fn from(key: &'a KeyRecord) -> Self {
        Self {
            id: key.id.as_str(),
            name: &key.name,
            state: key_state(key.state(now())),
            permissions: if key.completions { &["completions"] } else { &[] },
            created_at: rfc3339_seconds(key.created_at),
            last_used_at: key.last_used_at.map(rfc3339_seconds),
            expires_at: key.expires_at.map(rfc3339_seconds),
            revoked_at: key.revoked_at.map(rfc3339_seconds),
        }
    }
}
