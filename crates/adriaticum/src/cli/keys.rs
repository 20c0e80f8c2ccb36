//! `adriaticum keys`.

use std::time::Duration;

use chat::{ApiKey, KeyId, KeyName};
use clap::Subcommand;
use store::{Email, KeyNote, Limit, LimitKind, Project};

use super::values::{duration, key_id, lifetime, on_or_off};

#[derive(Subcommand)]
pub(crate) enum KeysCommand {
    /// Creates a key and prints it. It cannot be shown again.
    Create {
        /// The key's name.
        #[arg(value_parser = KeyName::parse)]
        name: KeyName,
        /// Creates the key without permission for completions.
        #[arg(long)]
        without_completions: bool,
        /// The time until the key expires, such as `30d` or `12h`; never unless given.
        #[arg(long, value_name = "TIME", value_parser = lifetime)]
        expires: Option<Duration>,
        /// A limit of the key, such as `tokens-per-month=1000000`, as `limits set` takes them; may be given several times.
        #[arg(long, value_name = "LIMIT=AMOUNT", value_parser = budget)]
        budget: Vec<(LimitKind, u64)>,
        /// A label, by which usage is grouped and priced.
        #[arg(long, value_name = "NAME", value_parser = Project::parse)]
        project: Option<Project>,
    },
    /// Lists all keys. Their secrets are not stored and cannot be shown.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Renames a key.
    Rename {
        /// The key's public id.
        #[arg(value_parser = key_id)]
        id: KeyId,
        /// The key's name.
        #[arg(value_parser = KeyName::parse)]
        name: KeyName,
    },
    /// Gives a key another secret and prints the new key. The old one works for a while, so that nothing has to stop.
    Rotate {
        /// The key's public id.
        #[arg(value_parser = key_id)]
        id: KeyId,
        /// How long the old secret still works, such as `24h`; `0s` ends it at once.
        #[arg(long, value_name = "TIME", default_value = "24h", value_parser = overlap)]
        overlap: Duration,
    },
    /// Ends the overlap of a rotation early: the old secret is refused from now on.
    EndOverlap {
        /// The key's public id.
        #[arg(value_parser = key_id)]
        id: KeyId,
    },
    /// Changes a key: expiry, permission, owner, note or project.
    #[command(arg_required_else_help = true)]
    Set {
        /// The key's public id.
        #[arg(value_parser = key_id)]
        id: KeyId,
        /// The time from now until it expires, such as `30d`, or `never`.
        #[arg(long, value_name = "TIME", value_parser = lifetime_or_never)]
        expires: Option<Lifetime>,
        /// Whether it may execute completions: on or off.
        #[arg(long, value_name = "ON-OR-OFF", value_parser = on_or_off)]
        completions: Option<bool>,
        /// The e-mail address of the person who gets it, or `nobody`.
        #[arg(long, value_name = "EMAIL", value_parser = owner)]
        owner: Option<NewOwner>,
        /// A note for people.
        #[arg(long, value_name = "TEXT", value_parser = KeyNote::parse)]
        note: Option<KeyNote>,
        /// The label by which its usage is grouped and priced, or `none`.
        #[arg(long, value_name = "NAME", value_parser = project_or_none)]
        project: Option<ProjectOrNone>,
    },
    /// Revokes a key: the very next request with it is refused.
    Revoke {
        /// The key's public id, or the whole key.
        #[arg(value_parser = key_or_id)]
        id: KeyOrId,
    },
}

/// How long a key lives from now on.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Lifetime {
    Never,
    After(Duration),
}

fn lifetime_or_never(text: &str) -> Result<Lifetime, String> {
    match text {
        "never" => Ok(Lifetime::Never),
        _ => lifetime(text).map(Lifetime::After),
    }
}

#[derive(Debug, Clone)]
pub(crate) enum NewOwner {
    Nobody,
    Person(Email),
}

fn owner(text: &str) -> Result<NewOwner, String> {
    match text {
        "nobody" => Ok(NewOwner::Nobody),
        _ => text.parse().map(NewOwner::Person).map_err(|error: store::EmailError| error.to_string()),
    }
}

#[derive(Debug, Clone)]
pub(crate) struct ProjectOrNone(pub(crate) Option<Project>);

fn project_or_none(text: &str) -> Result<ProjectOrNone, String> {
    match text {
        "none" => Ok(ProjectOrNone(None)),
        _ => Project::parse(text).map(|project| ProjectOrNone(Some(project))).map_err(|error| error.to_string()),
    }
}

/// `tokens-per-month=1000000`.
fn budget(text: &str) -> Result<(LimitKind, u64), String> {
    let (kind, amount) = text.split_once('=').ok_or("it is a limit and an amount, as in tokens-per-month=1000000")?;
    let kind = kind.parse().map_err(|error: store::LimitKindError| error.to_string())?;
    Ok((kind, Limit::parse_amount(amount).map_err(|error| error.to_string())?))
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyOrId {
    pub(crate) id: KeyId,
    /// Whether the whole key was given, which is then in the shell's history.
    pub(crate) is_secret: bool,
}

fn key_or_id(text: &str) -> Result<KeyOrId, &'static str> {
    match ApiKey::parse(text) {
        Ok(key) => Ok(KeyOrId { id: key.id(), is_secret: true }),
        Err(_) => key_id(text).map(|id| KeyOrId { id, is_secret: false }),
    }
}

fn overlap(text: &str) -> Result<Duration, String> {
    const MAX_OVERLAP: Duration = Duration::from_secs(366 * 86_400);
    duration(text).and_then(|overlap| match overlap <= MAX_OVERLAP {
        true => Ok(overlap),
        false => Err("it is at most a year".into()),
    })
}
