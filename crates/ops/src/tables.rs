//! The metrics of the ledger, the runtimes and the embedded engine: name, help, and where each is read.

use std::time::Duration;

use runtimes::{EngineStatus, MemberStatus};
use store::LedgerStats;

use crate::encode::{Metric, counter, gauge};

pub(crate) const LEDGER_METRICS: &[Metric<LedgerStats>] = &[
    gauge("adriaticum_ledger_queue_rows", "Rows in the queue of the ledger's writer", |ledger| ledger.queued as f64),
    counter("adriaticum_ledger_commits_failed", "Commits of the ledger that failed", |ledger| {
        ledger.failed_commits as f64
    }),
    counter(
        "adriaticum_ledger_panics",
        "Panics of the ledger's writer, which restarts after each: a bug, please report it",
        |ledger| ledger.panics as f64,
    ),
    counter(
        "adriaticum_requests_not_recorded",
        "Requests whose row could not be written; none was answered with 200",
        |ledger| ledger.not_recorded as f64,
    ),
    gauge("adriaticum_ledger_unfolded_rows", "Rows not yet in the roll-ups; readers add them", |ledger| {
        ledger.unfolded_rows as f64
    }),
    gauge("adriaticum_ledger_fold_lag_seconds", "Age of the oldest row that is not in the roll-ups", |ledger| {
        ledger.fold_lag_seconds
    }),
    counter(
        "adriaticum_ledger_unreadable_commits",
        "Unreadable commits that were set aside; adriaticum check --deep counts their rows",
        |ledger| ledger.unreadable_commits as f64,
    ),
    gauge(
        "adriaticum_ledger_clock_disagreement_seconds",
        "How far the database's clock is ahead of the time that retention uses",
        |ledger| ledger.clock_disagreement_seconds as f64,
    ),
    gauge(
        "adriaticum_clock_ahead_seconds",
        "How far this machine's clock is ahead of the PostgreSQL server's; 0 with SQLite",
        |ledger| ledger.machine_clock_ahead_seconds,
    ),
];

/// Of each runtime that is our own engine.
pub(crate) const ENGINE_METRICS: &[Metric<EngineStatus>] = &[
    gauge("adriaticum_engine_requests_running", "Requests in the current batch", |engine| engine.running as f64),
    gauge("adriaticum_engine_requests_waiting", "Requests in the engine's queue", |engine| engine.waiting as f64),
    gauge(
        "adriaticum_engine_requests_tokenizing",
        "Requests whose prompt is being tokenized, or waits for that",
        |engine| engine.tokenizing as f64,
    ),
    gauge("adriaticum_engine_cells", "The capacity of the engine's KV cache, in tokens", |engine| engine.cells as f64),
    gauge("adriaticum_engine_cells_used", "Tokens of the KV cache in use or reserved", |engine| {
        engine.cells_used as f64
    }),
    gauge(
        "adriaticum_engine_cells_shared",
        "Tokens of the KV cache shared by several running requests, each counted once",
        |engine| engine.cells_shared as f64,
    ),
    gauge("adriaticum_engine_threads", "Threads that compute; fewer while other processes need the CPUs", |engine| {
        engine.threads as f64
    }),
    gauge("adriaticum_engine_gpu_layers", "Layers of the model on GPUs", |engine| f64::from(engine.gpu_layers)),
    gauge("adriaticum_engine_gpu_memory_bytes", "Memory of the GPUs in use", |engine| engine.gpu_memory as f64),
    counter("adriaticum_engine_generating_steps", "Batches that generated tokens", |engine| {
        engine.generating_steps as f64
    }),
    counter(
        "adriaticum_engine_slow_generating_steps",
        "Batches that generated tokens and took longer than 0.25 s",
        |engine| engine.slow_generating_steps as f64,
    ),
    counter("adriaticum_engine_steps", "Batches that the engine has computed", |engine| engine.steps as f64),
    counter("adriaticum_engine_decoding_seconds", "Time spent on computing batches", |engine| engine.decoding_seconds),
    counter("adriaticum_engine_sampling_seconds", "Time spent on sampling tokens", |engine| engine.sampling_seconds),
    counter(
        "adriaticum_engine_step_tokens",
        "Tokens in these batches; divided by the steps, the mean size of a batch",
        |engine| engine.step_tokens as f64,
    ),
    counter("adriaticum_engine_prompt_tokens", "Prompt tokens of completed requests", |engine| {
        engine.prompt_tokens as f64
    }),
    counter(
        "adriaticum_engine_prompt_tokens_cached",
        "Prompt tokens found in the KV cache; divided by all prompt tokens, the hit rate",
        |engine| engine.shared_tokens as f64,
    ),
    counter("adriaticum_engine_generated_tokens", "Tokens that the engine has generated", |engine| {
        engine.generated_tokens as f64
    }),
    counter("adriaticum_engine_requests_cancelled", "Requests cancelled because the client disconnected", |engine| {
        engine.cancelled as f64
    }),
];

pub(crate) const RUNTIME_METRICS: &[Metric<MemberStatus>] = &[
    gauge("adriaticum_runtime_up", "Whether the runtime is healthy", |member| member.healthy.into()),
    gauge("adriaticum_runtime_requests_in_flight", "Requests in flight at the runtime", |member| {
        member.in_flight as f64
    }),
    counter("adriaticum_runtime_requests_completed", "Requests that the runtime completed", |member| {
        member.completed as f64
    }),
    counter("adriaticum_runtime_requests_retried", "Requests retried on another runtime", |member| {
        member.retried as f64
    }),
    counter(
        "adriaticum_runtime_requests_moved",
        "Requests moved to another runtime because they waited too long at this one",
        |member| member.moved as f64,
    ),
    counter("adriaticum_runtime_unexpected_responses", "Responses to no request, or to another request", |member| {
        member.unexpected as f64
    }),
    gauge(
        "adriaticum_runtime_share",
        "Share of requests relative to a fast runtime: below 1 if slow, 0 if it hangs",
        |member| member.share,
    ),
    gauge(
        "adriaticum_runtime_request_seconds",
        "Latency of recent completions, a decayed mean; absent without completions",
        |member| seconds(member.latency),
    ),
    gauge(
        "adriaticum_runtime_token_seconds",
        "Latency per token of recent completions, a decayed mean; absent without completions",
        |member| seconds(member.latency_per_token),
    ),
    gauge(
        "adriaticum_runtime_at_capacity_seconds",
        "Seconds for which the runtime is avoided because it reported that it is at capacity",
        |member| member.saturated_for.map_or(0.0, |left| left.as_secs_f64()),
    ),
    gauge("adriaticum_runtime_draining", "Whether the runtime was removed and is finishing its requests", |member| {
        member.draining.into()
    }),
];

/// NaN is left out of the text.
fn seconds(time: Option<Duration>) -> f64 {
    time.map_or(f64::NAN, |time| time.as_secs_f64())
}
