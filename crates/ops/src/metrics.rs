//! The figures that operators watch, in the text form that Prometheus reads.
//!
//! What the parts know of themselves is asked for when somebody reads, by the tables below: a figure more is a line more. What
//! has to be counted while it happens (how long something took, say) is added up from every thread's counters. Where
//! OpenTelemetry has a name for a figure of language models, that is its name; the others begin with `adriaticum_`.

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

use crate::encode::{Figure, Labels, family, histograms, table};
use crate::process::{OF_THE_PROCESS, Process};
use crate::readiness::Readiness;

/// What `Metrics::text` is.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Of the service as a whole.
const OF_THE_SERVICE: &[Figure<Reading>] = &[
    Figure {
        name: "process_start_time_seconds",
        help: "When the process started, in seconds since 1970",
        kind: MetricType::Gauge,
        of: |reading| reading.started,
    },
    Figure {
        name: "adriaticum_ready",
        help: "Whether requests can be served",
        kind: MetricType::Gauge,
        of: |reading| reading.readiness.is_ready().into(),
    },
    Figure {
        name: "adriaticum_ledger_healthy",
        help: "Whether usage can be recorded",
        kind: MetricType::Gauge,
        of: |reading| reading.health.is_ledger_healthy.into(),
    },
    Figure {
        name: "adriaticum_requests_in_flight",
        help: "Completions under way",
        kind: MetricType::Gauge,
        of: |reading| reading.in_flight as f64,
    },
    Figure {
        name: "adriaticum_requests_in_flight_limit",
        help: "Completions that may be under way",
        kind: MetricType::Gauge,
        of: |reading| reading.limit as f64,
    },
];

/// Of the ledger.
const OF_THE_LEDGER: &[Figure<LedgerStats>] = &[
    Figure {
        name: "adriaticum_ledger_queue_rows",
        help: "Rows that wait for the ledger's writer",
        kind: MetricType::Gauge,
        of: |ledger| ledger.queued as f64,
    },
    Figure {
        name: "adriaticum_ledger_commits_failed",
        help: "Commits of the ledger that failed",
        kind: MetricType::Counter,
        of: |ledger| ledger.failed_commits as f64,
    },
    Figure {
        name: "adriaticum_requests_not_recorded",
        help: "Requests whose row could not be written; none of them was answered with 200",
        kind: MetricType::Counter,
        of: |ledger| ledger.not_recorded as f64,
    },
];

/// Of each runtime that is our own engine.
const OF_AN_ENGINE: &[Figure<EngineStatus>] = &[
    Figure {
        name: "adriaticum_engine_requests_running",
        help: "Requests that the engine computes together",
        kind: MetricType::Gauge,
        of: |engine| engine.running as f64,
    },
    Figure {
        name: "adriaticum_engine_requests_waiting",
        help: "Requests that wait for room in the engine",
        kind: MetricType::Gauge,
        of: |engine| engine.waiting as f64,
    },
    Figure {
        name: "adriaticum_engine_cells",
        help: "Tokens that the engine's cache has room for",
        kind: MetricType::Gauge,
        of: |engine| engine.cells as f64,
    },
    Figure {
        name: "adriaticum_engine_cells_used",
        help: "Tokens of the cache that are taken or promised",
        kind: MetricType::Gauge,
        of: |engine| engine.cells_used as f64,
    },
    Figure {
        name: "adriaticum_engine_cells_shared",
        help: "Tokens of the cache that several requests under way use, each counted once",
        kind: MetricType::Gauge,
        of: |engine| engine.cells_shared as f64,
    },
    Figure {
        name: "adriaticum_engine_steps",
        help: "Batches that the engine has computed",
        kind: MetricType::Counter,
        of: |engine| engine.steps as f64,
    },
    Figure {
        name: "adriaticum_engine_step_tokens",
        help: "Tokens in these batches; over the steps, it is the size of a batch",
        kind: MetricType::Counter,
        of: |engine| engine.step_tokens as f64,
    },
    Figure {
        name: "adriaticum_engine_prompt_tokens",
        help: "Tokens of prompts that the engine has answered",
        kind: MetricType::Counter,
        of: |engine| engine.prompt_tokens as f64,
    },
    Figure {
        name: "adriaticum_engine_prompt_tokens_cached",
        help: "Those of them that were found in the cache; over all of them, it is the hit rate",
        kind: MetricType::Counter,
        of: |engine| engine.shared_tokens as f64,
    },
    Figure {
        name: "adriaticum_engine_generated_tokens",
        help: "Tokens that the engine has generated",
        kind: MetricType::Counter,
        of: |engine| engine.generated_tokens as f64,
    },
    Figure {
        name: "adriaticum_engine_requests_cancelled",
        help: "Requests that the engine gave up because whoever asked has gone",
        kind: MetricType::Counter,
        of: |engine| engine.cancelled as f64,
    },
];

/// Of each runtime.
const OF_A_RUNTIME: &[Figure<MemberStatus>] = &[
    Figure {
        name: "adriaticum_runtime_up",
        help: "Whether the runtime counts as working",
        kind: MetricType::Gauge,
        of: |member| member.healthy.into(),
    },
    Figure {
        name: "adriaticum_runtime_requests_in_flight",
        help: "Requests under way at the runtime",
        kind: MetricType::Gauge,
        of: |member| member.in_flight as f64,
    },
    Figure {
        name: "adriaticum_runtime_requests_completed",
        help: "Requests that the runtime answered properly",
        kind: MetricType::Counter,
        of: |member| member.completed as f64,
    },
    Figure {
        name: "adriaticum_runtime_requests_retried",
        help: "Requests for which another runtime was asked after this one",
        kind: MetricType::Counter,
        of: |member| member.retried as f64,
    },
    Figure {
        name: "adriaticum_runtime_share",
        help: "The part of a full share of requests that the runtime gets: less than 1 if it is slow, 0 if it hangs",
        kind: MetricType::Gauge,
        of: |member| member.share,
    },
    Figure {
        name: "adriaticum_runtime_request_seconds",
        help: "What a completion takes of late, a decayed mean; nothing if none was made",
        kind: MetricType::Gauge,
        of: |member| seconds(member.latency),
    },
    Figure {
        name: "adriaticum_runtime_token_seconds",
        help: "What a token of a completion takes of late, a decayed mean; nothing if none was made",
        kind: MetricType::Gauge,
        of: |member| seconds(member.latency_per_token),
    },
    Figure {
        name: "adriaticum_runtime_full_seconds",
        help: "How long the runtime is still avoided because it has said that it is full",
        kind: MetricType::Gauge,
        of: |member| member.full_for.map_or(0.0, |left| left.as_secs_f64()),
    },
    Figure {
        name: "adriaticum_runtime_draining",
        help: "Whether the runtime has left and only finishes what it has",
        kind: MetricType::Gauge,
        of: |member| member.draining.into(),
    },
];

/// Whole seconds, as clocks count them.
fn since_1970(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()) as f64
}

/// A time, or no number where there is none.
fn seconds(time: Option<Duration>) -> f64 {
    time.map_or(f64::NAN, |time| time.as_secs_f64())
}

/// How often a runtime failed a request, by why.
fn by_why(failures: &FailureCounts) -> [(&'static str, u64); 7] {
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

/// What the figures are told with.
pub(crate) struct Metrics {
    version: &'static str,
    started: f64,
}

impl Metrics {
    pub(crate) fn new(version: &'static str) -> Self {
        Self { version, started: since_1970(SystemTime::now()) }
    }

    /// All figures as they are now.
    pub(crate) fn text(
        &self,
        api: &Api,
        health: Health,
        readiness: Readiness,
        engines: Vec<(String, EngineStatus)>,
        expiries: Vec<(PathBuf, SystemTime)>,
    ) -> String {
        let (in_flight, limit) = api.in_flight();
        let reading = Reading {
            version: self.version,
            started: self.started,
            process: Process::now(),
            health,
            readiness,
            in_flight,
            limit,
            totals: api.totals(),
            ledger: api.ledger_figures(),
            engines,
            expiries: expiries.into_iter().map(|(file, at)| (file.display().to_string(), since_1970(at))).collect(),
        };
        let mut registry = Registry::default();
        registry.register_collector(Box::new(reading));
        let mut text = String::new();
        text::encode(&mut text, &registry).expect("a string takes everything");
        text
    }
}

/// What the parts said, all at the same moment.
struct Reading {
    version: &'static str,
    started: f64,
    process: Process,
    health: Health,
    readiness: Readiness,
    in_flight: usize,
    limit: usize,
    totals: Totals,
    ledger: LedgerStats,
    engines: Vec<(String, EngineStatus)>,
    /// Certificates' files, and when they expire, in seconds since 1970.
    expiries: Vec<(String, f64)>,
}

impl Collector for Reading {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let version: Labels<'_> = &[("version", self.version)];
        family(encoder, "adriaticum_build_info", "What runs here", MetricType::Gauge, [(version, 1.0)])?;
        table(encoder, OF_THE_PROCESS, once(&self.process))?;
        table(encoder, OF_THE_SERVICE, once(self))?;
        let parts: Vec<_> = self.readiness.parts().iter().map(|part| ([("part", part.name)], part.wrong)).collect();
        let parts = parts.iter().map(|(labels, wrong)| (labels.as_slice(), wrong.is_none().into()));
        let help = "Whether that part of the service is well";
        family(encoder, "adriaticum_part_ready", help, MetricType::Gauge, parts)?;
        let expiries: Vec<_> = self.expiries.iter().map(|(file, at)| ([("file", file.as_str())], *at)).collect();
        let expiries = expiries.iter().map(|(labels, at)| (labels.as_slice(), *at));
        let help = "When the certificate in that file expires, in seconds since 1970";
        family(encoder, "adriaticum_certificate_expiry_time_seconds", help, MetricType::Gauge, expiries)?;
        encode_requests(encoder, &self.totals)?;
        encode_ledger(encoder, &self.ledger)?;
        encode_runtimes(encoder, &self.health.runtimes)?;
        let named: Vec<_> = self.engines.iter().map(|(name, engine)| ([("runtime", name.as_str())], engine)).collect();
        table(encoder, OF_AN_ENGINE, named.iter().map(|(labels, engine)| (labels.as_slice(), *engine)))
    }
}

fn once<Of>(of: &Of) -> impl Iterator<Item = (Labels<'_>, &Of)> + Clone {
    std::iter::once((&[] as Labels<'_>, of))
}

/// How requests ended, where their time went, and what they used.
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
    family(encoder, "adriaticum_requests", "Requests, by how they ended", MetricType::Counter, rows)?;

    let labels = totals
        .ended
        .iter()
        .map(|(outcome, _)| LABELS.into_iter().chain(with_code("error_type", outcome.code)).collect::<Vec<_>>());
    let labels: Vec<_> = labels.collect();
    let rows = labels.iter().zip(&totals.ended).map(|(labels, (_, took))| (labels.as_slice(), took));
    let help = "From a request's arrival to its answer";
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
    family(encoder, "adriaticum_searches", "Searches for facts, by how they ended", MetricType::Counter, rows)
}

fn encode_ledger(encoder: &mut DescriptorEncoder<'_>, ledger: &LedgerStats) -> fmt::Result {
    table(encoder, OF_THE_LEDGER, once(ledger))?;
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
    let help = "The model that the runtime says it has";
    family(encoder, "adriaticum_runtime_info", help, MetricType::Gauge, rows)?;

    let labels: Vec<_> = members.iter().map(|member| [("runtime", member.url.as_str())]).collect();
    table(encoder, OF_A_RUNTIME, labels.iter().map(|label| label.as_slice()).zip(members))?;

    let failures = members.iter().flat_map(|member| {
        by_why(&member.failures).map(|(why, count)| ([("runtime", member.url.as_str()), ("why", why)], count))
    });
    let failures: Vec<_> = failures.collect();
    let rows = failures.iter().map(|(labels, count)| (labels.as_slice(), *count as f64));
    let help = "Requests that the runtime did not answer properly, by why";
    family(encoder, "adriaticum_runtime_requests_failed", help, MetricType::Counter, rows)
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reading").finish_non_exhaustive()
    }
}
