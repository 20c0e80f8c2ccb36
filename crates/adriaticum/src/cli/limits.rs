//! `adriaticum limits`.

use chat::KeyId;
use clap::{Args, Subcommand};
use store::{Email, Limit, LimitKind};

use super::values::key_id;

#[derive(Subcommand)]
pub(crate) enum LimitsCommand {
    /// Lists all limits and their usage.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Sets or changes a limit. It applies from the next request on, on every replica.
    Set {
        #[command(flatten)]
        of: LimitScope,
        /// tokens-per-day, tokens-per-month, requests-per-day, requests-per-month (days and months are in UTC),
        /// requests-per-minute or requests-in-flight.
        #[arg(value_name = "LIMIT")]
        kind: LimitKind,
        /// The amount.
        #[arg(value_parser = Limit::parse_amount)]
        amount: u64,
    },
    /// Removes a limit.
    Remove {
        #[command(flatten)]
        of: LimitScope,
        /// The limit, as in `set`.
        #[arg(value_name = "LIMIT")]
        kind: LimitKind,
    },
}

/// The subject of a limit.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub(crate) struct LimitScope {
    /// The limit of a key, by its public id.
    #[arg(long, value_name = "ID", value_parser = key_id)]
    pub(crate) key: Option<KeyId>,
    /// The limit of all keys of a person, by e-mail address.
    #[arg(long, value_name = "EMAIL")]
    pub(crate) person: Option<Email>,
    /// The limit of each person, including those who join later; a person's own limit replaces it.
    #[arg(long)]
    pub(crate) each_person: bool,
    /// The limit of all keys together.
    #[arg(long)]
    pub(crate) everyone: bool,
}
