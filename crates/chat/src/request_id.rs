//! The id of one request: the same string in the completion, the error envelope, the `x-request-id` header and the
//! ledger. Its 32 digits are laid out as UUIDv7, so ids sort by the time they were made and the ledger grows at its end.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

const PREFIX: &str = "chatcmpl_";
const DIGITS: usize = 32;
const LEN: usize = PREFIX.len() + DIGITS;

/// `chatcmpl_` and 32 hexadecimal digits, ordered by time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(u128);

impl RequestId {
    /// What every id looks like, as a regular expression.
    pub const PATTERN: &str = "chatcmpl_[0-9a-f]{32}";

    /// The id of a request that arrives now.
    pub fn now() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::at_micros(since_epoch.as_micros() as u64, next_random())
    }

    /// The id of a request that arrived at a time in microseconds since 1970, told apart from others by 62 random bits.
    ///
    /// 48 bits of milliseconds, the version, 12 bits of the millisecond's fraction, the variant, the random bits.
    pub fn at_micros(micros: u64, random: u64) -> Self {
        let millis = u128::from(micros / 1000) & 0xffff_ffff_ffff;
        let fraction = u128::from((micros % 1000) * 4096 / 1000);
        let random = u128::from(random >> 2);
        Self(millis << 80 | 0x7 << 76 | fraction << 64 | 0b10 << 62 | random)
    }

    /// The smallest id that a request arriving at that millisecond can have; for ranges of the ledger.
    pub fn first_of_millis(millis: u64) -> Self {
        Self::at_micros(millis.saturating_mul(1000), 0)
    }

    /// When the request arrived, in microseconds since 1970.
    pub fn unix_micros(self) -> u64 {
        let millis = (self.0 >> 80) as u64;
        let fraction = (self.0 >> 64) as u64 & 0xfff;
        // Rounded up, so that the fraction of a microsecond lost on the way in comes back.
        millis * 1000 + (fraction * 1000).div_ceil(4096)
    }

    /// When the request arrived, in whole seconds since 1970.
    pub fn unix_seconds(self) -> u64 {
        self.unix_micros() / 1_000_000
    }

    /// The id as text, without the detour over formatting: every answer carries it twice.
    pub fn to_text(self) -> RequestIdText {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; LEN];
        text[..PREFIX.len()].copy_from_slice(PREFIX.as_bytes());
        for (pair, byte) in text[PREFIX.len()..].chunks_exact_mut(2).zip(self.to_bytes()) {
            pair[0] = HEX[usize::from(byte >> 4)];
            pair[1] = HEX[usize::from(byte & 15)];
        }
        RequestIdText(text)
    }

    /// The 16 bytes behind the digits, in their order.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// The id with these 16 bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }
}

/// A number that this process has not given out before and that no other is likely to: SplitMix64, begun at a random
/// place. Ids need to be told apart, not to be unguessable, and a system call for each would cost more than all the rest.
fn next_random() -> u64 {
    static STATE: LazyLock<AtomicU64> = LazyLock::new(|| {
        // Without the system's random numbers the process id still tells two replicas apart.
        AtomicU64::new(getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()) << 32))
    });
    let mut mixed = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.to_text().as_str())
    }
}

/// A request id's text.
#[derive(Clone, Copy)]
pub struct RequestIdText([u8; LEN]);

impl RequestIdText {
    /// The text.
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).expect("a request id is ASCII by construction")
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for RequestId {
    type Err = MalformedRequestId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.strip_prefix(PREFIX).ok_or(MalformedRequestId)?;
        let hexadecimal = digits.len() == DIGITS && digits.bytes().all(|b| b.is_ascii_hexdigit());
        if !hexadecimal {
            return Err(MalformedRequestId);
        }
        u128::from_str_radix(digits, 16).map(Self).map_err(|_| MalformedRequestId)
    }
}

/// Not a request id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a request id is `{PREFIX}` and {DIGITS} hexadecimal digits")]
pub struct MalformedRequestId;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn reads_back_what_it_shows(micros in 0u64..1 << 57, random: u64) {
            let id = RequestId::at_micros(micros, random);
            prop_assert_eq!(id.to_string().parse(), Ok(id));
            prop_assert_eq!(RequestId::from_bytes(id.to_bytes()), id);
            prop_assert_eq!(id.unix_micros(), micros);
        }

        #[test]
        fn sorts_by_time(a in 0u64..1 << 57, b in 0u64..1 << 57, x: u64, y: u64) {
            prop_assume!(a < b);
            prop_assert!(RequestId::at_micros(a, x).to_string() < RequestId::at_micros(b, y).to_string());
            prop_assert!(RequestId::first_of_millis(a / 1000) <= RequestId::at_micros(a, x));
        }

        #[test]
        fn is_laid_out_as_uuid_version_7(micros in 0u64..1 << 57, random: u64) {
            let shown = RequestId::at_micros(micros, random).to_string();
            let digits = &shown[PREFIX.len()..];
            prop_assert_eq!(&digits[12..13], "7");
            prop_assert!("89ab".contains(&digits[16..17]));
        }
    }

    #[test]
    fn many_at_once_differ() {
        let ids: std::collections::HashSet<_> = (0..100_000).map(|_| RequestId::now()).collect();
        assert_eq!(ids.len(), 100_000);
    }

    #[test]
    fn refuses_other_strings() {
        let good = RequestId::now().to_string();
        let plus = good.replace("chatcmpl_0", "chatcmpl_+");
        for bad in ["", "chatcmpl_", &good[..40], &good[9..], &format!("{good}0"), &plus] {
            assert_eq!(bad.parse::<RequestId>(), Err(MalformedRequestId), "{bad}");
        }
    }
}
