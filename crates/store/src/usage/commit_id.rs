//! Ids of ledger commits: ordered by time, so that the table grows at its end, with a random part, so that replicas rarely
//! choose the same one.

use chat::RequestId;

const RANDOM_BITS: u32 = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CommitId(i64);

impl CommitId {
    /// An id for a commit at a time in microseconds since 1970.
    pub(crate) fn new(now_micros: u64) -> Self {
        let id = RequestId::arrived_at(now_micros);
        let random = u16::from_be_bytes([id.to_bytes()[14], id.to_bytes()[15]]) & ((1 << RANDOM_BITS) - 1);
        Self(Self::first_at(id.unix_micros()).0 | i64::from(random))
    }

    /// The smallest id at a time.
    pub(crate) fn first_at(micros: u64) -> Self {
        Self((micros << RANDOM_BITS) as i64)
    }

    pub(crate) fn from_number(number: i64) -> Self {
        Self(number)
    }

    pub(crate) fn number(self) -> i64 {
        self.0
    }

    pub(crate) fn micros(self) -> u64 {
        self.0 as u64 >> RANDOM_BITS
    }
}
