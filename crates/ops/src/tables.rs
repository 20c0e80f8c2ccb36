//! The metrics of the ledger, the runtimes and the embedded engine: name, help, and where each is read.

use std::time::Duration;

use prometheus_client::metrics::MetricType;
use runtimes::{EngineStatus, MemberStatus};
use store::LedgerStats;

use crate::encode::Metric;

pub(crate) const LEDGER_METRICS: &[Metric<LedgerStats>] = &[
    Metric {
        name: "adriaticum_ledger_queue_rows",
        help: "Rows in the queue of the ledger's writer",
        kind: MetricType::Gauge,
        read: |ledger| ledger.queued as f64,
    },
    Metric {
        name: "adriaticum_ledger_commits_failed",
        help: "Commits of the ledger that failed",
        kind: MetricType::Counter,
        read: |ledger| ledger.failed_commits as f64,
    },
    Metric {
        name: "adriaticum_ledger_panics",
        help: "Panics of the ledger's writer, after each of which it started again",
        kind: MetricType::Counter,
        read: |ledger| ledger.panics as f64,
    },
    Metric {
        name: "adriaticum_requests_not_recorded",
        help: "Requests whose row could not be written; none of them was answered with 200",
        kind: MetricType::Counter,
        read: |ledger| ledger.not_recorded as f64,
    },
    Metric {
        name: "adriaticum_ledger_unfolded_rows",
        help: "Rows that are not in the sums yet; readers add them",
        kind: MetricType::Gauge,
        read: |ledger| ledger.unfolded_rows as f64,
    },
    Metric {
        name: "adriaticum_ledger_fold_lag_seconds",
        help: "How long the oldest row that is not in the sums has waited",
        kind: MetricType::Gauge,
        read: |ledger| ledger.fold_lag_seconds,
    },
    Metric {
        name: "adriaticum_ledger_unreadable_commits",
        help: "Commits that cannot be read and were set aside; their rows are in no sum",
        kind: MetricType::Counter,
        read: |ledger| ledger.unreadable_commits as f64,
    },
    Metric {
        name: "adriaticum_ledger_clock_disagreement_seconds",
        help: "How far the database's clock is ahead of the time by which old rows are deleted",
        kind: MetricType::Gauge,
        read: |ledger| ledger.clock_disagreement_seconds as f64,
    },
    Metric {
        name: "adriaticum_clock_ahead_seconds",
        help: "How far this machine's clock is ahead of the PostgreSQL server's",
        kind: MetricType::Gauge,
        read: |ledger| ledger.machine_clock_ahead_seconds,
    },
];

/// Of each runtime that is our own engine.
pub(crate) const ENGINE_METRICS: &[Metric<EngineStatus>] = &[
    Metric {
        name: "adriaticum_engine_requests_running",
        help: "Requests that the engine runs in one batch",
        kind: MetricType::Gauge,
        read: |engine| engine.running as f64,
    },
    Metric {
        name: "adriaticum_engine_requests_waiting",
        help: "Requests in the engine's queue",
        kind: MetricType::Gauge,
        read: |engine| engine.waiting as f64,
    },
    Metric {
        name: "adriaticum_engine_requests_tokenizing",
        help: "Requests whose prompt the engine makes, or that wait for it",
        kind: MetricType::Gauge,
        read: |engine| engine.tokenizing as f64,
    },
    Metric {
        name: "adriaticum_engine_cells",
        help: "The capacity of the engine's KV cache, in tokens",
        kind: MetricType::Gauge,
        read: |engine| engine.cells as f64,
    },
    Metric {
        name: "adriaticum_engine_cells_used",
        help: "Tokens of the KV cache that are in use or reserved",
        kind: MetricType::Gauge,
        read: |engine| engine.cells_used as f64,
    },
    Metric {
        name: "adriaticum_engine_cells_shared",
        help: "Tokens of the KV cache that several running requests share, each counted once",
        kind: MetricType::Gauge,
        read: |engine| engine.cells_shared as f64,
    },
    Metric {
        name: "adriaticum_engine_threads",
        help: "Threads that the engine computes with: fewer while other processes need the CPUs",
        kind: MetricType::Gauge,
        read: |engine| engine.threads as f64,
    },
    Metric {
        name: "adriaticum_engine_gpu_layers",
        help: "Layers of the model that GPUs compute",
        kind: MetricType::Gauge,
        read: |engine| f64::from(engine.gpu_layers),
    },
    Metric {
        name: "adriaticum_engine_gpu_memory_bytes",
        help: "The memory of these GPUs",
        kind: MetricType::Gauge,
        read: |engine| engine.gpu_memory as f64,
    },
    Metric {
        name: "adriaticum_engine_generating_steps",
        help: "Batches with tokens that were generated",
        kind: MetricType::Counter,
        read: |engine| engine.generating_steps as f64,
    },
    Metric {
        name: "adriaticum_engine_slow_generating_steps",
        help: "Batches with tokens that were generated, and that took longer than 0.25 s",
        kind: MetricType::Counter,
        read: |engine| engine.slow_generating_steps as f64,
    },
    Metric {
        name: "adriaticum_engine_steps",
        help: "Batches that the engine has computed",
        kind: MetricType::Counter,
        read: |engine| engine.steps as f64,
    },
    Metric {
        name: "adriaticum_engine_decoding_seconds",
        help: "How long these batches took to compute",
        kind: MetricType::Counter,
        read: |engine| engine.decoding_seconds,
    },
    Metric {
        name: "adriaticum_engine_sampling_seconds",
        help: "How long it took to draw their tokens",
        kind: MetricType::Counter,
        read: |engine| engine.sampling_seconds,
    },
    Metric {
        name: "adriaticum_engine_step_tokens",
        help: "Tokens in these batches; divided by the steps, the mean size of a batch",
        kind: MetricType::Counter,
        read: |engine| engine.step_tokens as f64,
    },
    Metric {
        name: "adriaticum_engine_prompt_tokens",
        help: "Tokens of prompts that the engine has answered",
        kind: MetricType::Counter,
        read: |engine| engine.prompt_tokens as f64,
    },
    Metric {
        name: "adriaticum_engine_prompt_tokens_cached",
        help: "Prompt tokens found in the KV cache; divided by all prompt tokens, the hit rate",
        kind: MetricType::Counter,
        read: |engine| engine.shared_tokens as f64,
    },
    Metric {
        name: "adriaticum_engine_generated_tokens",
        help: "Tokens that the engine has generated",
        kind: MetricType::Counter,
        read: |engine| engine.generated_tokens as f64,
    },
    Metric {
        name: "adriaticum_engine_requests_cancelled",
        help: "Requests that were cancelled because the client disconnected",
        kind: MetricType::Counter,
        read: |engine| engine.cancelled as f64,
    },
];

pub(crate) const RUNTIME_METRICS: &[Metric<MemberStatus>] = &[
    Metric {
        name: "adriaticum_runtime_up",
        help: "Whether the runtime is healthy",
        kind: MetricType::Gauge,
        read: |member| member.healthy.into(),
    },
    Metric {
        name: "adriaticum_runtime_requests_in_flight",
        help: "Requests in flight at the runtime",
        kind: MetricType::Gauge,
        read: |member| member.in_flight as f64,
    },
    Metric {
        name: "adriaticum_runtime_requests_completed",
        help: "Requests that the runtime completed",
        kind: MetricType::Counter,
        read: |member| member.completed as f64,
    },
    Metric {
        name: "adriaticum_runtime_requests_retried",
        help: "Requests that were retried on another runtime",
        kind: MetricType::Counter,
        read: |member| member.retried as f64,
    },
    Metric {
        name: "adriaticum_runtime_requests_moved",
        help: "Requests that were moved to another runtime because this one kept them waiting",
        kind: MetricType::Counter,
        read: |member| member.moved as f64,
    },
    Metric {
        name: "adriaticum_runtime_unexpected_responses",
        help: "Responses that no request had asked for, or that were for another request",
        kind: MetricType::Counter,
        read: |member| member.unexpected as f64,
    },
    Metric {
        name: "adriaticum_runtime_share",
        help: "The runtime's part of a full share of requests: less than 1 if it is slow, 0 if it hangs",
        kind: MetricType::Gauge,
        read: |member| member.share,
    },
    Metric {
        name: "adriaticum_runtime_request_seconds",
        help: "Recent latency of a completion, a decayed mean; absent without completions",
        kind: MetricType::Gauge,
        read: |member| seconds(member.latency),
    },
    Metric {
        name: "adriaticum_runtime_token_seconds",
        help: "Recent latency per completion token, a decayed mean; absent without completions",
        kind: MetricType::Gauge,
        read: |member| seconds(member.latency_per_token),
    },
    Metric {
        name: "adriaticum_runtime_full_seconds",
        help: "How long the runtime is still avoided because it reported that it is full",
        kind: MetricType::Gauge,
        read: |member| member.saturated_for.map_or(0.0, |left| left.as_secs_f64()),
    },
    Metric {
        name: "adriaticum_runtime_draining",
        help: "Whether the runtime was removed and only finishes its requests",
        kind: MetricType::Gauge,
        read: |member| member.draining.into(),
    },
];

/// NaN is left out of the text.
fn seconds(time: Option<Duration>) -> f64 {
    time.map_or(f64::NAN, |time| time.as_secs_f64())
}
