//! Metrics in OpenMetrics text.
//!
//! The tables below read gauges at each scrape: one more metric is one more entry. Events are counted by the workers.
//! A metric of language models that OpenTelemetry names has that name; the others begin with `adriaticum_`.

use std::fmt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use api::{Api, Health, PHASE_NAMES, SEARCH_OUTCOMES, Totals};
use chat::MODEL;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use runtimes::{EngineStatus, FailureCounts, MemberStatus};
use store::LedgerStats;

use crate::alerts::Alerts;
use crate::encode::{Labels, Metric, family, gauge, histograms, table};
use crate::process::{PROCESS_METRICS, Process};
use crate::readiness::Readiness;
use crate::tables::{ENGINE_METRICS, LEDGER_METRICS, RUNTIME_METRICS};

pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const SERVICE_METRICS: &[Metric<Scrape>] = &[
    gauge("process_start_time_seconds", "When the process started, in seconds since 1970", |scrape| scrape.started),
    gauge("adriaticum_ready", "Whether requests can be served", |scrape| scrape.readiness.is_ready().into()),
    gauge("adriaticum_ledger_healthy", "Whether usage can be recorded", |scrape| {
        scrape.health.is_ledger_healthy.into()
    }),
    gauge("adriaticum_requests_in_flight", "Completions in flight", |scrape| scrape.in_flight as f64),
    gauge("adriaticum_requests_in_flight_limit", "api.max_requests", |scrape| scrape.limit as f64),
    gauge(
        "adriaticum_body_memory_bytes",
        "Memory used by the bodies of requests that arrive or are in flight",
        |scrape| scrape.body_memory as f64,
    ),
    gauge("adriaticum_body_memory_limit_bytes", "api.max_body_memory", |scrape| scrape.body_memory_limit as f64),
];

/// In whole seconds.
fn since_1970(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()) as f64
}

fn failures_by_reason(failures: &FailureCounts) -> [(&'static str, u64); 7] {
    [
        ("connect_failed", failures.refused),
        ("connection_closed", failures.broken_off),
        ("status", failures.status),
        ("malformed", failures.malformed),
        ("timed_out", failures.timed_out),
        ("at_capacity", failures.no_room),
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

    pub(crate) fn text(&self, api: &Api, observed: Observed) -> String {
        let Observed { health, readiness, engines, expiries, sign_ins, alerts } = observed;
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
            alerts,
            expiries: expiries.into_iter().map(|(file, at)| (file.display().to_string(), since_1970(at))).collect(),
        };
        let mut registry = Registry::default();
        registry.register_collector(Box::new(scrape));
        let mut text = String::new();
        text::encode(&mut text, &registry).expect("a string takes everything");
        text
    }
}

/// Values that the API does not have.
pub(crate) struct Observed {
    pub(crate) health: Health,
    pub(crate) readiness: Readiness,
    pub(crate) engines: Vec<(String, EngineStatus)>,
    /// Certificates' files, and when they expire.
    pub(crate) expiries: Vec<(PathBuf, SystemTime)>,
    /// To the console, by outcome.
    pub(crate) sign_ins: [(&'static str, u64); 3],
    pub(crate) alerts: Alerts,
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
    alerts: Alerts,
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
        let parts: Vec<_> =
            self.readiness.parts().iter().map(|part| ([("part", part.name)], part.problem.as_deref())).collect();
        let parts = parts.iter().map(|(labels, problem)| (labels.as_slice(), problem.is_none().into()));
        family(
            encoder,
            "adriaticum_part_ready",
            "Whether the part is healthy, as /readyz reports it",
            MetricType::Gauge,
            parts,
        )?;
        let expiries: Vec<_> = self.expiries.iter().map(|(file, at)| ([("file", file.as_str())], *at)).collect();
        let expiries = expiries.iter().map(|(labels, at)| (labels.as_slice(), *at));
        let help = "When the certificate in the file expires, in seconds since 1970";
        family(encoder, "adriaticum_certificate_expiry_time_seconds", help, MetricType::Gauge, expiries)?;
        encode_requests(encoder, &self.totals)?;
        encode_ledger(encoder, &self.ledger)?;
        let sign_ins = self.sign_ins.map(|(outcome, count)| ([("outcome", outcome)], count));
        let sign_ins = sign_ins.iter().map(|(labels, count)| (labels.as_slice(), *count as f64));
        let help = "Attempts to sign in to the console; failed: wrong password or account; refused: too many attempts";
        family(encoder, "adriaticum_console_sign_ins", help, MetricType::Counter, sign_ins)?;
        encode_alerts(encoder, &self.alerts)?;
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
    family(
        encoder,
        "adriaticum_requests",
        "Requests by outcome; a client that disconnected is 499 client_closed",
        MetricType::Counter,
        rows,
    )?;

    let labels = totals
        .ended
        .iter()
        .map(|(outcome, _)| LABELS.into_iter().chain(with_code("error_type", outcome.code)).collect::<Vec<_>>());
    let labels: Vec<_> = labels.collect();
    let rows = labels.iter().zip(&totals.ended).map(|(labels, (_, took))| (labels.as_slice(), took));
    let help = "Duration of a request, from its arrival to its response, by error";
    histograms(encoder, "gen_ai_server_request_duration_seconds", help, 1e6, rows)?;

    let labels = PHASE_NAMES.map(|phase| [("phase", phase)]);
    let rows = labels.iter().zip(&totals.phases).map(|(label, took)| (label.as_slice(), took));
    let help = "Duration of a request's phases: before any work, at Search, at the runtime, until its row was durable";
    histograms(encoder, "adriaticum_request_phase_seconds", help, 1e6, rows)?;

    let [operation, provider, model] = LABELS;
    let labels = ["input", "output"].map(|kind| [operation, provider, model, ("gen_ai_token_type", kind)]);
    let rows = labels.iter().zip([&totals.prompt, &totals.completion]);
    let help = "Tokens of prompts and completions that runtimes measured";
    histograms(
        encoder,
        "gen_ai_client_token_usage",
        help,
        1.0,
        rows.map(|(label, tokens)| (label.as_slice(), tokens)),
    )?;

    let labels = SEARCH_OUTCOMES.map(|outcome| [("outcome", outcome)]);
    let rows = labels.iter().zip(totals.searches).map(|(label, count)| (label.as_slice(), count as f64));
    family(
        encoder,
        "adriaticum_searches",
        "Searches by outcome; nothing: no source was found that helps",
        MetricType::Counter,
        rows,
    )
}

fn encode_ledger(encoder: &mut DescriptorEncoder<'_>, ledger: &LedgerStats) -> fmt::Result {
    table(encoder, LEDGER_METRICS, once(ledger))?;
    let help = "Rows per commit of the ledger";
    histograms(encoder, "adriaticum_ledger_group_rows", help, 1.0, [(&[] as Labels<'_>, &ledger.group_rows)])?;
    let help = "Duration of the ledger's commits";
    histograms(encoder, "adriaticum_ledger_commit_seconds", help, 1e6, [(&[] as Labels<'_>, &ledger.commit_micros)])
}

fn encode_alerts(encoder: &mut DescriptorEncoder<'_>, alerts: &Alerts) -> fmt::Result {
    let budgets = alerts.budgets.map(|(threshold, count)| ([("threshold", threshold)], count));
    let rows = budgets.iter().map(|(labels, count)| (labels.as_slice(), *count as f64));
    let help = "Budgets used up to the threshold or beyond";
    family(encoder, "adriaticum_budgets_reached", help, MetricType::Gauge, rows)?;
    let deliveries = alerts.deliveries.map(|(outcome, count)| ([("outcome", outcome)], count));
    let rows = deliveries.iter().map(|(labels, count)| (labels.as_slice(), *count as f64));
    let help = "Attempts to deliver a notification to the webhook, by outcome";
    family(encoder, "adriaticum_webhook_deliveries", help, MetricType::Counter, rows)
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
            .map(|(reason, count)| ([("runtime", member.url.as_str()), ("reason", reason)], count))
    });
    let failures: Vec<_> = failures.collect();
    let rows = failures.iter().map(|(labels, count)| (labels.as_slice(), *count as f64));
    let help = "Requests that the runtime did not complete; at_capacity and bad_request are not its fault";
    family(encoder, "adriaticum_runtime_requests_failed", help, MetricType::Counter, rows)
}

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scrape").finish_non_exhaustive()
    }
}
