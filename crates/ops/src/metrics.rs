//! Metrics in OpenMetrics text.
//!
//! The tables below read gauges at each scrape: one more metric is one more entry. Events are counted by the workers.
//! A metric of language models that OpenTelemetry names has that name; the others begin with `adriaticum_`.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use api::{Health, PHASE_NAMES, SEARCH_OUTCOMES, Totals};
use chat::MODEL;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use runtimes::{EngineStatus, MemberStatus};
use store::LedgerStats;

use crate::alerts::AlertCounters;
use crate::encode::{Labels, Metric, by_label, family, gauge, histograms, table};
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
    gauge("adriaticum_requests_in_flight", "Completions in flight", |scrape| scrape.in_flight.0 as f64),
    gauge("adriaticum_requests_in_flight_limit", "api.max_requests", |scrape| scrape.in_flight.1 as f64),
    gauge(
        "adriaticum_body_memory_bytes",
        "Memory used by the bodies of requests that arrive or are in flight",
        |scrape| scrape.body_memory.0 as f64,
    ),
    gauge("adriaticum_body_memory_limit_bytes", "api.max_body_memory", |scrape| scrape.body_memory.1 as f64),
];

/// In whole seconds.
pub(crate) fn since_1970(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()) as f64
}

/// The values of one scrape.
pub(crate) struct Scrape {
    pub(crate) version: &'static str,
    /// When the process started, in seconds since 1970.
    pub(crate) started: f64,
    pub(crate) process: Process,
    pub(crate) health: Health,
    pub(crate) readiness: Readiness,
    /// Requests in flight, and their maximum.
    pub(crate) in_flight: (usize, usize),
    /// Bytes of bodies, and their maximum.
    pub(crate) body_memory: (usize, usize),
    pub(crate) totals: Totals,
    pub(crate) ledger: LedgerStats,
    pub(crate) engines: Vec<(String, EngineStatus)>,
    /// To the console, by outcome.
    pub(crate) sign_ins: [(&'static str, u64); 3],
    pub(crate) alerts: Arc<AlertCounters>,
    /// Certificates' files, and when they expire.
    pub(crate) expiries: Vec<(PathBuf, SystemTime)>,
}

impl Scrape {
    pub(crate) fn into_text(self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        text::encode(&mut text, &registry).expect("a string takes everything");
        text
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let help = "The version that is running";
        by_label(encoder, "adriaticum_build_info", help, MetricType::Gauge, "version", [(self.version, 1.0)])?;
        table(encoder, PROCESS_METRICS, once(&self.process))?;
        table(encoder, SERVICE_METRICS, once(self))?;
        let help = "Whether the part is healthy, as /readyz reports it";
        let parts = self.readiness.parts().iter().map(|part| (part.name, part.problem.is_none().into()));
        by_label(encoder, "adriaticum_part_ready", help, MetricType::Gauge, "part", parts)?;
        let help = "When the certificate in the file expires, in seconds since 1970";
        let expiries: Vec<_> =
            self.expiries.iter().map(|(file, at)| (file.to_string_lossy(), since_1970(*at))).collect();
        let expiries = expiries.iter().map(|(file, at)| (&**file, *at));
        by_label(encoder, "adriaticum_certificate_expiry_time_seconds", help, MetricType::Gauge, "file", expiries)?;
        encode_requests(encoder, &self.totals)?;
        encode_ledger(encoder, &self.ledger)?;
        let help = "Attempts to sign in to the console; failed: wrong password or account; refused: too many attempts";
        let sign_ins = self.sign_ins.map(|(outcome, count)| (outcome, count as f64));
        by_label(encoder, "adriaticum_console_sign_ins", help, MetricType::Counter, "outcome", sign_ins)?;
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

    let help = "Searches by outcome; nothing: no source was found that helps";
    let rows = SEARCH_OUTCOMES.into_iter().zip(totals.searches.map(|count| count as f64));
    by_label(encoder, "adriaticum_searches", help, MetricType::Counter, "outcome", rows)
}

fn encode_ledger(encoder: &mut DescriptorEncoder<'_>, ledger: &LedgerStats) -> fmt::Result {
    table(encoder, LEDGER_METRICS, once(ledger))?;
    let help = "Rows per commit of the ledger";
    histograms(encoder, "adriaticum_ledger_group_rows", help, 1.0, [(&[] as Labels<'_>, &ledger.group_rows)])?;
    let help = "Duration of the ledger's commits";
    histograms(encoder, "adriaticum_ledger_commit_seconds", help, 1e6, [(&[] as Labels<'_>, &ledger.commit_micros)])
}

fn encode_alerts(encoder: &mut DescriptorEncoder<'_>, alerts: &AlertCounters) -> fmt::Result {
    let help = "Budgets used up to the threshold or beyond";
    let budgets = alerts.budgets.read().map(|(threshold, count)| (threshold, count as f64));
    by_label(encoder, "adriaticum_budgets_reached", help, MetricType::Gauge, "threshold", budgets)?;
    let help = "Attempts to deliver a notification to the webhook, by outcome";
    let deliveries = alerts.deliveries.read().map(|(outcome, count)| (outcome, count as f64));
    by_label(encoder, "adriaticum_webhook_deliveries", help, MetricType::Counter, "outcome", deliveries)
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
        let labels = |reason| [("runtime", member.url.as_str()), ("reason", reason)];
        member.failures.by_reason().map(move |(reason, count)| (labels(reason), count))
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
