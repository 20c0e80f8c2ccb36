//! `adriaticum keys`.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use chat::{ApiKey, KeyId, KeyName};
use clap::Subcommand;
use store::{Email, KeyNote, Limit, LimitKind, Project};

use super::values::{duration, key_id, lifetime};
use crate::settings::on_or_off;

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
        /// Lifetime of the key, such as `30d` or `12h`; without it, the key does not expire.
        #[arg(long, value_name = "TIME", value_parser = lifetime)]
        expires: Option<Duration>,
        /// A limit of the key, as in `limits set`, such as `tokens-per-month=1000000`; can be repeated.
        #[arg(long, value_name = "LIMIT=AMOUNT", value_parser = budget)]
        budget: Vec<(LimitKind, u64)>,
        /// Label by which usage is grouped and priced.
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
        /// The new name.
        #[arg(value_parser = KeyName::parse)]
        name: KeyName,
    },
    /// Gives a key a new secret and prints the new key. The old secret works until the overlap ends, so that clients can
    /// switch without an outage.
    Rotate {
        /// The key's public id.
        #[arg(value_parser = key_id)]
        id: KeyId,
        /// How long the old secret still works, such as `24h`; `0s` ends it immediately.
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
        /// New lifetime from now on, such as `30d`, or `never`.
        #[arg(long, value_name = "TIME", value_parser = |text: &str| OrNone::parse(text, "never", lifetime))]
        expires: Option<OrNone<Duration>>,
        /// Permission for completions: on or off.
        #[arg(long, value_name = "ON-OR-OFF", value_parser = on_or_off)]
        completions: Option<bool>,
        /// E-mail address of the new owner, or `nobody`.
        #[arg(long, value_name = "EMAIL", value_parser = |text: &str| OrNone::parse(text, "nobody", Email::from_str))]
        owner: Option<OrNone<Email>>,
        /// A note about the key.
        #[arg(long, value_name = "TEXT", value_parser = KeyNote::parse)]
        note: Option<KeyNote>,
        /// Label by which usage is grouped and priced, or `none`.
        #[arg(long, value_name = "NAME", value_parser = |text: &str| OrNone::parse(text, "none", Project::parse))]
        project: Option<OrNone<Project>>,
    },
    /// Revokes a key: the next request with it is refused.
    Revoke {
        /// The key's public id, or the whole key.
        #[arg(value_parser = key_or_id)]
        id: KeyOrId,
    },
}

/// A value, or the word for none. Not an `Option`, which clap takes for a flag that may be left out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OrNone<T>(pub(crate) Option<T>);

impl<T> OrNone<T> {
    fn parse<E: Display>(text: &str, none: &str, parse: impl FnOnce(&str) -> Result<T, E>) -> Result<Self, String> {
        if text == none {
            return Ok(Self(None));
        }
        parse(text).map(|value| Self(Some(value))).map_err(|error| error.to_string())
    }
}

/// `tokens-per-month=1000000`.
fn budget(text: &str) -> Result<(LimitKind, u64), String> {
    let (kind, amount) =
        text.split_once('=').ok_or("it must be a limit and an amount, such as tokens-per-month=1000000")?;
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
        false => Err("it must be at most a year".into()),
    })
}
