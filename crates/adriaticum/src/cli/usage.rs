//! `adriaticum usage`.

use std::time::Duration;

use chat::{KeyId, Timestamp};
use clap::Args;
use format::Group;
use store::{Email, StatusFilter};

use super::values::{duration, key_id};

#[derive(Args)]
pub(crate) struct UsageOptions {
    /// Length of the range up to now, such as `7d`, `24h` or `90d`.
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = duration)]
    pub(crate) since: Duration,
    /// Start of the range in UTC: `2026-11-01` or `2026-11-01T10:20`.
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with_all = ["since", "month"])]
    pub(crate) from: Option<Timestamp>,
    /// End of the range in UTC (exclusive); defaults to now.
    #[arg(long, value_name = "TIME", value_parser = time, requires = "from")]
    pub(crate) to: Option<Timestamp>,
    /// A month in UTC, such as `2026-11`.
    #[arg(long, value_name = "MONTH", value_parser = month, conflicts_with = "since")]
    pub(crate) month: Option<Month>,
    /// Groups by key, person, project or day, instead of by outcome and key.
    #[arg(long, value_name = "GROUP", value_parser = group, conflicts_with = "requests")]
    pub(crate) by: Option<Group>,
    /// As JSON.
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,
    /// As CSV.
    #[arg(long)]
    pub(crate) csv: bool,
    /// Lists individual requests, newest first, instead of totals.
    #[arg(long)]
    pub(crate) requests: bool,
    /// Max. number of requests.
    #[arg(long, value_name = "N", default_value_t = 50, requires = "requests")]
    pub(crate) limit: u32,
    /// Only requests of a key, by its public id.
    #[arg(long, value_name = "ID", value_parser = key_id, requires = "requests")]
    pub(crate) key: Option<KeyId>,
    /// Only requests of a person, by e-mail address.
    #[arg(long, value_name = "EMAIL", requires = "requests")]
    pub(crate) person: Option<Email>,
    /// Only requests with an HTTP status, or `failed`.
    #[arg(long, value_name = "STATUS", value_parser = status, requires = "requests")]
    pub(crate) status: Option<StatusFilter>,
    /// Only requests that took at least this long, such as `2s`.
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "requests")]
    pub(crate) slower_than: Option<Duration>,
}

/// The start of a month, and of the next one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Month(pub(crate) Timestamp, pub(crate) Timestamp);

fn month(text: &str) -> Result<Month, &'static str> {
    format::month(text).map(|(start, end)| Month(start, end)).ok_or("it must be a month, such as 2026-11")
}

fn time(text: &str) -> Result<Timestamp, &'static str> {
    format::parse_time(text).ok_or("it must be a time in UTC, such as 2026-11-01 or 2026-11-01T10:20")
}

fn group(text: &str) -> Result<Group, &'static str> {
    let groups = [Group::Key, Group::Person, Group::Project, Group::Day];
    groups.into_iter().find(|group| group.name() == text).ok_or("it must be key, person, project or day")
}

fn status(text: &str) -> Result<StatusFilter, &'static str> {
    match text {
        "failed" => Ok(StatusFilter::Failed),
        _ => text.parse().map(StatusFilter::Is).map_err(|_| "it must be an HTTP status, or failed"),
    }
}
