//! The id of one request: the same string in the completion, the error envelope, the `x-request-id` header and the
//! ledger. Its 32 digits are a UUIDv7, so that ids sort by time of arrival and the ledger grows at its end.

use std::fmt;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use uuid::{Builder, Uuid};

use crate::Timestamp;

const PREFIX: &str = "chatcmpl_";
const DIGITS: usize = 32;

/// `chatcmpl_` and 32 hexadecimal digits, ordered by time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(Uuid);

impl RequestId {
    /// A regular expression for ids.
    pub const PATTERN: &str = "chatcmpl_[0-9a-f]{32}";

    /// The id of a request that arrives now. It is unique, not secret, so the random bits need not be unguessable.
    pub fn now() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::arrived_at(since_epoch.as_micros() as u64)
    }

    /// The id of a request that arrived at a time in microseconds since 1970, by the caller's clock.
    pub fn arrived_at(micros: u64) -> Self {
        Self::at_micros(micros, fastrand::u64(..))
    }

    /// The id at a time in microseconds since 1970 with this random part. UUIDv7's first random field holds the fraction
    /// of the millisecond in 4096ths, so that ids of one millisecond are also ordered.
    pub fn at_micros(micros: u64, random: u64) -> Self {
        let fraction = ((micros % 1000) * 4096 / 1000) as u16;
        let mut random_fields = [0; 10];
        random_fields[..2].copy_from_slice(&fraction.to_be_bytes());
        random_fields[2..].copy_from_slice(&random.to_be_bytes());
        Self(Builder::from_unix_timestamp_millis(micros / 1000, &random_fields).into_uuid())
    }

    /// The smallest id at a time; for ranges of the ledger.
    pub fn first_at(time: Timestamp) -> Self {
        Self::at_micros(time.as_millis().saturating_mul(1000), 0)
    }

    /// When the request arrived, to the millisecond.
    pub fn timestamp(self) -> Timestamp {
        Timestamp::from_micros(self.unix_micros())
    }

    /// When the request arrived, in microseconds since 1970.
    pub fn unix_micros(self) -> u64 {
        let bits = self.0.as_u128();
        let millis = (bits >> 80) as u64;
        let fraction = (bits >> 64) as u64 & 0xfff;
        // Rounded up, to restore the fraction of a microsecond that `at_micros` cuts off.
        millis * 1000 + (fraction * 1000).div_ceil(4096)
    }

    /// When the request arrived, in whole seconds since 1970.
    pub fn unix_seconds(self) -> u64 {
        self.unix_micros() / 1_000_000
    }

    pub fn to_bytes(self) -> [u8; 16] {
        self.0.into_bytes()
    }

    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.0.simple())
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for RequestId {
    type Err = RequestIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // At this length, the parser accepts only plain digits.
        let digits = text.strip_prefix(PREFIX).filter(|digits| digits.len() == DIGITS).ok_or(RequestIdError)?;
        Uuid::try_parse(digits).map(Self).map_err(|_| RequestIdError)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a request id is `{PREFIX}` and {DIGITS} hexadecimal digits")]
pub struct RequestIdError;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_id_round_trips(micros in 0u64..1 << 57, random: u64) {
            let id = RequestId::at_micros(micros, random);
            prop_assert_eq!(id.to_string().parse(), Ok(id));
            prop_assert_eq!(RequestId::from_bytes(id.to_bytes()), id);
            prop_assert_eq!(id.unix_micros(), micros);
        }

        #[test]
        fn ids_sort_by_time(a in 0u64..1 << 57, b in 0u64..1 << 57, x: u64, y: u64) {
            prop_assume!(a < b);
            prop_assert!(RequestId::at_micros(a, x).to_string() < RequestId::at_micros(b, y).to_string());
            prop_assert!(RequestId::first_at(Timestamp::from_micros(a)) <= RequestId::at_micros(a, x));
        }

        #[test]
        fn an_id_is_a_uuid_version_7(micros in 0u64..1 << 57, random: u64) {
            let shown = RequestId::at_micros(micros, random).to_string();
            let digits = &shown[PREFIX.len()..];
            prop_assert_eq!(&digits[12..13], "7");
            prop_assert!("89ab".contains(&digits[16..17]));
        }
    }

    #[test]
    fn concurrent_ids_differ() {
        let ids: std::collections::HashSet<_> = (0..100_000).map(|_| RequestId::now()).collect();
        assert_eq!(ids.len(), 100_000);
    }

    #[test]
    fn other_strings_are_refused() {
        let good = RequestId::now().to_string();
        let plus = good.replace("chatcmpl_0", "chatcmpl_+");
        for bad in ["", "chatcmpl_", &good[..40], &good[9..], &format!("{good}0"), &plus] {
            assert_eq!(bad.parse::<RequestId>(), Err(RequestIdError), "{bad}");
        }
    }
}
