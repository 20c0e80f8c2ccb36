//! What the ledger tells when it is read: sums from the roll-ups, and single rows.

use chat::{KeyId, RequestId, TokenUsage};

use crate::latency::Latencies;
use crate::rollup::Figures;

/// Sums since a time, each grouping from the same roll-ups.
#[derive(Debug, Clone, Default)]
pub struct UsageReport {
    /// The start of the first hour counted, in milliseconds since 1970.
    pub since: u64,
    /// When the report was made, in milliseconds since 1970.
    pub until: u64,
    /// Everything together.
    pub totals: Figures,
    /// Latencies of everything together.
    pub latencies: Latencies,
    /// By status and code.
    pub by_outcome: Vec<OutcomeUsage>,
    /// By key; the most used first.
    pub by_key: Vec<KeyUsage>,
}

/// Sums of one outcome.
#[derive(Debug, Clone)]
pub struct OutcomeUsage {
    /// The HTTP status.
    pub status: u16,
    /// The error's code; `None` for a success.
    pub code: Option<String>,
    /// The sums.
    pub figures: Figures,
}

/// Sums of one key.
#[derive(Debug, Clone)]
pub struct KeyUsage {
    /// The key's public id.
    pub key: KeyId,
    /// What its owner calls it.
    pub name: String,
    /// The sums.
    pub figures: Figures,
    /// How many of its requests succeeded.
    pub succeeded: u64,
}

/// One recorded request. Times are microseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestRecord {
    /// The request's id.
    pub request_id: RequestId,
    /// The caller's key.
    pub key: KeyId,
    /// The HTTP status that the caller was given.
    pub status: u16,
    /// The error's code; `None` for a success.
    pub code: Option<String>,
    /// Token figures as measured.
    pub usage: TokenUsage,
    /// From arrival to the start of work.
    pub queue_us: Option<u64>,
    /// Asking Search.
    pub search_us: Option<u64>,
    /// Waiting for the runtime.
    pub inference_us: Option<u64>,
    /// From arrival to the hand-over to the ledger.
    pub total_us: u64,
    /// Making the row durable; known a moment after the row is.
    pub persist_us: Option<u64>,
}
