//! The `keys` commands.

use std::time::SystemTime;

use chat::{KeyId, Timestamp};
use format::{key_state, rfc3339_seconds};
use serde_json::{Value, json};
use store::{KeyChange, KeyRecord, Limit, NewKey, Project, Scope, Store, Viewer};

use crate::accounts::find_account;
use crate::cli::{KeyOrId, KeysCommand, OrNone};
use crate::error::CliError;
use crate::output::{print_line, print_list, print_note};
use crate::settings::Settings;
use crate::storage::{admin, open_store};

pub(crate) async fn run(settings: &Settings, command: KeysCommand) -> Result<(), CliError> {
    let store = open_store(settings).await?;
    let operator = Viewer::operator();
    let admin = admin(&operator)?;
    match command {
        KeysCommand::Create { name, without_completions, expires, budget, project } => {
            let expires_at = expires.map(|lifetime| store.now() + lifetime);
            let new = NewKey { name, completions: !without_completions, expires_at, project };
            let key = store.keys().create(&operator, new, settings.console.keys_per_person).await?;
            // Before the key is printed.
            for (kind, amount) in budget {
                let limit = Limit { scope: Scope::Key(key.id()), kind, amount };
                store.limits().set(admin, limit).await?;
            }
            print_line(key.reveal())?;
            let note = format!("This is the only time the key is shown. Its public id is {}.", key.id());
            print_note(&note);
            Ok(())
        }
        KeysCommand::List { json } => list(&store, json).await,
        KeysCommand::Rename { id, name } => match store.keys().rename(&operator, id, &name).await? {
            true => print_line(&format!("Renamed {id} to {:?}.", name.as_str())),
            false => Err(no_such_key(id)),
        },
        KeysCommand::Rotate { id, overlap } => {
            let key = store.keys().rotate(&operator, id, overlap).await?.ok_or_else(|| no_such_active_key(id))?;
            print_line(key.reveal())?;
            let until = rfc3339_seconds(store.now() + overlap);
            print_note(&match overlap.is_zero() {
                true => "This is the only time the new key is shown. The old one is refused from now on.".into(),
                false => format!("This is the only time the new key is shown. The old one works until {until}."),
            });
            Ok(())
        }
        KeysCommand::EndOverlap { id } => match store.keys().end_overlap(&operator, id).await? {
            true => print_line(&format!("The old secret of {id} is refused from now on.")),
            false => Err(CliError::new(format!("there is no key {id}, or it has no old secret that still works"))),
        },
        KeysCommand::Set { id, expires, completions, owner, note, project } => {
            let expiry = expires.map(|OrNone(lifetime)| KeyChange::Expiry(lifetime.map(|time| store.now() + time)));
            let project = project.map(|OrNone(project)| KeyChange::Project(project));
            let owner = match owner {
                Some(OrNone(None)) => Some(KeyChange::Owner(None)),
                Some(OrNone(Some(email))) => {
                    Some(KeyChange::Owner(Some(find_account(&store, admin, &email).await?.id)))
                }
                None => None,
            };
            let changes = [expiry, completions.map(KeyChange::Completions), note.map(KeyChange::Note), project, owner];
            let changes: Vec<_> = changes.into_iter().flatten().collect();
            if !store.keys().update(&operator, id, &changes).await? {
                return Err(no_such_key(id));
            }
            print_line(&format!("Changed {id}. This applies from the next request on."))
        }
        KeysCommand::Revoke { id: KeyOrId { id, is_secret } } => match store.keys().revoke(&operator, id).await? {
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
    let keys = store.keys().list(&Viewer::operator()).await?;
    let empty = "There are no keys yet. Create one with: adriaticum keys create NAME";
    let headings = ["ID", "NAME", "PROJECT", "STATE", "PERMISSIONS", "CREATED", "LAST USED", "EXPIRES"];
    let time = |at: Option<Timestamp>| at.map_or_else(|| "–".into(), rfc3339_seconds);
    print_list(&keys, json, as_json, empty, headings, |key| {
        [
            key.id.to_string(),
            key.name.clone(),
            key.project.as_ref().map_or_else(|| "–".into(), Project::to_string),
            key_state(key.state(now())).into(),
            if key.completions { "completions" } else { "–" }.into(),
            rfc3339_seconds(key.created_at),
            time(key.last_used_at),
            time(key.expires_at),
        ]
    })
}

fn no_such_key(id: KeyId) -> CliError {
    CliError::new(format!("there is no key {id}; `adriaticum keys list` lists all"))
}

fn no_such_active_key(id: KeyId) -> CliError {
    CliError::new(format!("there is no key {id}, or it is revoked; `adriaticum keys list` lists all"))
}

fn now() -> Timestamp {
    SystemTime::now().into()
}

fn as_json(key: &KeyRecord) -> Value {
    let permissions: &[_] = if key.completions { &["completions"] } else { &[] };
    json!({
        "id": key.id.as_str(),
        "name": key.name,
        "state": key_state(key.state(now())),
        "permissions": permissions,
        "created_at": rfc3339_seconds(key.created_at),
        "last_used_at": key.last_used_at.map(rfc3339_seconds),
        "expires_at": key.expires_at.map(rfc3339_seconds),
        "revoked_at": key.revoked_at.map(rfc3339_seconds),
        "owner": key.owner,
        // When the previous secret stops working.
        "previous_until": key.previous_until.filter(|until| *until > now()).map(rfc3339_seconds),
        "note": key.note,
        // The label by which usage is grouped and priced.
        "project": key.project.as_ref().map(Project::as_str),
    })
}
