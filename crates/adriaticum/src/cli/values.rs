//! Parsers of flag values that several commands share.

use std::time::Duration;

use chat::KeyId;

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| "it must be a duration, such as 30d, 12h or 90m".into())
}

/// The lifetime of a key or a link. Dates must stay within what a calendar shows.
pub(super) fn lifetime(text: &str) -> Result<Duration, String> {
    const MAX_LIFETIME: Duration = Duration::from_secs(100 * 365 * 86_400);
    let lifetime = duration(text)?;
    if lifetime.is_zero() || lifetime > MAX_LIFETIME {
        return Err("it must be above 0 and at most 100 years".into());
    }
    Ok(lifetime)
}

pub(super) fn key_id(text: &str) -> Result<KeyId, &'static str> {
    text.parse()
        .map_err(|_| "a key's public id is the 12 letters and digits after `adria_`; see `adriaticum keys list`")
}
