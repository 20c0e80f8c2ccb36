//! Metrics in OpenMetrics text.
//!
//! Gauges are read from the parts when somebody scrapes, by the tables below: one more metric is one more entry. What
//! has to be counted while it happens comes from the workers' counters. Where OpenTelemetry has a name for a metric of
//! language models, that is its name; the others begin with `adriaticum_`.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::{Api, Health, PHASE_NAMES, SEARCH_OUTCOMES, Totals};
use chat::MODEL;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use runtimes::{EngineStatus, FailureCounts, MemberStatus};
use store::LedgerStats;

use crate::encode::{Labels, Metric, family, histograms, table};
use crate::process::{PROCESS_METRICS, Process};
use crate::readiness::Readiness;

pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const SERVICE_METRICS: &[Metric<Scrape>] = &[
    Metric {
        name: "process_start_time_seconds",
        help: "When the process started, in seconds since 1970",
        kind: MetricType::Gauge,
        read: |scrape| scrape.started,
    },
    Metric {
        name: "adriaticum_ready",
        help: "Whether requests can be served",
        kind: MetricType::Gauge,
        read: |scrape| scrape.readiness.is_ready().into(),
    },
    Metric {
        name: "adriaticum_ledger_healthy",
        help: "Whether usage can be recorded",
        kind: MetricType::Gauge,
        read: |scrape| scrape.health.is_ledger_healthy.into(),
    },
    Metric {
        name: "adriaticum_requests_in_flight",
        help: "Requests in flight",
        kind: MetricType::Gauge,
        read: |scrape| scrape.in_flight as f64,
    },
    Metric {
        name: "adriaticum_requests_in_flight_limit",
        help: "The limit of requests in flight",
        kind: MetricType::Gauge,
        read: |scrape| scrape.limit as f64,
    },
    Metric {
        name: "adriaticum_body_memory_bytes",
        help: "Memory taken by the bodies of requests that arrive or are in flight",
        kind: MetricType::Gauge,
        read: |scrape| scrape.body_memory as f64,
    },
    Metric {
        name: "adriaticum_body_memory_limit_bytes",
        help: "The limit of memory for bodies",
        kind: MetricType::Gauge,
        read: |scrape| scrape.body_memory_limit as f64,
    },
];

const LEDGER_METRICS: &[Metric<LedgerStats>] = &[
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
const ENGINE_METRICS: &[Metric<EngineStatus>] = &[
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

const RUNTIME_METRICS: &[Metric<MemberStatus>] = &[
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

/// In whole seconds.
fn since_1970(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()) as f64
}

/// NaN is left out of the text.
fn seconds(time: Option<Duration>) -> f64 {
    time.map_or(f64::NAN, |time| time.as_secs_f64())
}

fn failures_by_reason(failures: &FailureCounts) -> [(&'static str, u64); 7] {
    [
        ("refused", failures.refused),
        ("broken_off", failures.broken_off),
        ("status", failures.status),
        ("malformed", failures.malformed),
        ("timed_out", failures.timed_out),
        ("no_room", failures.no_room),
        ("bad_request", failures.bad_request),
    ]
}

pub(crate) struct Metrics {
    version: &'static str,
    started: f64,
}

impl Metrics {
    pub(crate) fn new(version: &'static str) -> Self {
        Self { version, started: since_1970(SystemTime::now()) }
    }

    pub(crate) fn text(
        &self,
        api: &Api,
        health: Health,
        readiness: Readiness,
        engines: Vec<(String, EngineStatus)>,
        expiries: Vec<(PathBuf, SystemTime)>,
        sign_ins: [(&'static str, u64); 3],
    ) -> String {
        let (in_flight, limit) = api.in_flight();
        let (body_memory, body_memory_limit) = api.body_memory();
        let scrape = Scrape {
            version: self.version,
            started: self.started,
            process: Process::now(),
            health,
            readiness,
            in_flight,
            limit,
            body_memory,
            body_memory_limit,
            totals: api.totals(),
            ledger: api.ledger_stats(),
            engines,
            sign_ins,
            expiries: expiries.into_iter().map(|(file, at)| (file.display().to_string(), since_1970(at))).collect(),
        };
        let mut registry = Registry::default();
        registry.register_collector(Box::new(scrape));
        let mut text = String::new();
        text::encode(&mut text, &registry).expect("a string takes everything");
        text
    }
}

struct Scrape {
    version: &'static str,
    started: f64,
    process: Process,
    health: Health,
    readiness: Readiness,
    in_flight: usize,
    limit: usize,
    body_memory: usize,
    body_memory_limit: usize,
    totals: Totals,
    ledger: LedgerStats,
    engines: Vec<(String, EngineStatus)>,
    /// To the console, by outcome.
    sign_ins: [(&'static str, u64); 3],
    /// Certificates' files, and when they expire, in seconds since 1970.
    expiries: Vec<(String, f64)>,
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let version: Labels<'_> = &[("version", self.version)];
        family(encoder, "adriaticum_build_info", "The version that is running", MetricType::Gauge, [(version, 1.0)])?;
        table(encoder, PROCESS_METRICS, once(&self.process))?;
        table(encoder, SERVICE_METRICS, once(self))?;
        let parts: Vec<_> = self.readiness.parts().iter().map(|part| ([("part", part.name)], part.problem)).collect();
        let parts = parts.iter().map(|(labels, problem)| (labels.as_slice(), problem.is_none().into()));
        let help = "Whether that part of the service is healthy";
        family(encoder, "adriaticum_part_ready", help, MetricType::Gauge, parts)?;
        let expiries: Vec<_> = self.expiries.iter().map(|(file, at)| ([("file", file.as_str())], *at)).collect();
        let expiries = expiries.iter().map(|(labels, at)| (labels.as_slice(), *at));
        let help = "When the certificate in that file expires, in seconds since 1970";
        family(encoder, "adriaticum_certificate_expiry_time_seconds", help, MetricType::Gauge, expiries)?;
        encode_requests(encoder, &self.totals)?;
        encode_ledger(encoder, &self.ledger)?;
        let sign_ins = self.sign_ins.map(|(outcome, count)| ([("outcome", outcome)], count));
        let sign_ins = sign_ins.iter().map(|(labels, count)| (labels.as_slice(), *count as f64));
        let help = "Attempts to sign in to the console, by outcome";
        family(encoder, "adriaticum_console_sign_ins", help, MetricType::Counter, sign_ins)?;
        encode_runtimes(encoder, &self.health.runtimes)?;
        let named: Vec<_> = self.engines.iter().map(|(name, engine)| ([("runtime", name.as_str())], engine)).collect();
        table(encoder, ENGINE_METRICS, named.iter().map(|(labels, engine)| (labels.as_slice(), *engine)))
    }
}

fn once<T>(item: &T) -> impl Iterator<Item = (Labels<'_>, &T)> + Clone {
    std::iter::once((&[] as Labels<'_>, item))
}

/// Outcomes, durations, phases, tokens and searches.
fn encode_requests(encoder: &mut DescriptorEncoder<'_>, totals: &Totals) -> fmt::Result {
    const LABELS: [(&str, &str); 3] =
        [("gen_ai_operation_name", "chat"), ("gen_ai_provider_name", MODEL), ("gen_ai_request_model", MODEL)];
    let statuses: Vec<_> = totals.ended.iter().map(|(outcome, _)| outcome.status.to_string()).collect();
    let with_code = |label, code: Option<&'static str>| code.map(|code| (label, code)).into_iter();

    let labels = totals.ended.iter().zip(&statuses).map(|((outcome, _), status)| {
        std::iter::once(("status", status.as_str())).chain(with_code("code", outcome.code)).collect::<Vec<_>>()
    });
    let labels: Vec<_> = labels.collect();
    let rows = labels.iter().zip(&totals.ended).map(|(labels, (_, took))| (labels.as_slice(), took.count() as f64));
    family(encoder, "adriaticum_requests", "Requests by outcome", MetricType::Counter, rows)?;

    let labels = totals
        .ended
        .iter()
        .map(|(outcome, _)| LABELS.into_iter().chain(with_code("error_type", outcome.code)).collect::<Vec<_>>());
    let labels: Vec<_> = labels.collect();
    let rows = labels.iter().zip(&totals.ended).map(|(labels, (_, took))| (labels.as_slice(), took));
    let help = "From a request's arrival to its response";
    histograms(encoder, "gen_ai_server_request_duration_seconds", help, 1e6, rows)?;

    let labels = PHASE_NAMES.map(|phase| [("phase", phase)]);
    let rows = labels.iter().zip(&totals.phases).map(|(label, took)| (label.as_slice(), took));
    let help = "Where a request's time went: before any work, at Search, at the runtime, until its row was durable";
    histograms(encoder, "adriaticum_request_phase_seconds", help, 1e6, rows)?;

    let [operation, provider, model] = LABELS;
    let labels = ["input", "output"].map(|kind| [operation, provider, model, ("gen_ai_token_type", kind)]);
    let rows = labels.iter().zip([&totals.prompt, &totals.completion]);
    let help = "Tokens of prompts and completions, as far as runtimes measured them";
    histograms(
        encoder,
        "gen_ai_client_token_usage",
        help,
        1.0,
        rows.map(|(label, tokens)| (label.as_slice(), tokens)),
    )?;

    let labels = SEARCH_OUTCOMES.map(|outcome| [("outcome", outcome)]);
    let rows = labels.iter().zip(totals.searches).map(|(label, count)| (label.as_slice(), count as f64));
    family(encoder, "adriaticum_searches", "Searches by outcome", MetricType::Counter, rows)
}

fn encode_ledger(encoder: &mut DescriptorEncoder<'_>, ledger: &LedgerStats) -> fmt::Result {
    table(encoder, LEDGER_METRICS, once(ledger))?;
    let help = "Rows that the ledger committed together";
    histograms(encoder, "adriaticum_ledger_group_rows", help, 1.0, [(&[] as Labels<'_>, &ledger.group_rows)])?;
    let help = "How long the ledger's commits took";
    histograms(encoder, "adriaticum_ledger_commit_seconds", help, 1e6, [(&[] as Labels<'_>, &ledger.commit_micros)])
}

fn encode_runtimes(encoder: &mut DescriptorEncoder<'_>, members: &[MemberStatus]) -> fmt::Result {
    let models = members
        .iter()
        .map(|member| [("runtime", member.url.as_str()), ("model", member.model.as_deref().unwrap_or_default())]);
    let models: Vec<_> = models.collect();
    let rows = models.iter().map(|labels| (labels.as_slice(), 1.0));
    let help = "The model that the runtime reports";
    family(encoder, "adriaticum_runtime_info", help, MetricType::Gauge, rows)?;

    let labels: Vec<_> = members.iter().map(|member| [("runtime", member.url.as_str())]).collect();
    table(encoder, RUNTIME_METRICS, labels.iter().map(|label| label.as_slice()).zip(members))?;

    let failures = members.iter().flat_map(|member| {
        failures_by_reason(&member.failures)
            .map(|(why, count)| ([("runtime", member.url.as_str()), ("why", why)], count))
    });
    let failures: Vec<_> = failures.collect();
    let rows = failures.iter().map(|(labels, count)| (labels.as_slice(), *count as f64));
    let help = "Requests that the runtime failed, by reason";
    family(encoder, "adriaticum_runtime_requests_failed", help, MetricType::Counter, rows)
}

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scrape").finish_non_exhaustive()
    }
}
