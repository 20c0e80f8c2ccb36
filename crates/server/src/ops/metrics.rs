//! The figures that operators watch, in the text form that Prometheus reads.
//!
//! What the parts know of themselves is asked for when somebody reads, by the two tables below: a figure more is a line
//! more. What has to be counted while it happens (how long something took, say) is registered beside them.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use runtimes::{Failures, MemberStatus};
use tokio::sync::watch;

use super::readiness::Readiness;
use crate::api::{Api, Health};
use crate::phase::Phase;

/// What `Metrics::text` is.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// One figure of something: its name, what it means, and how it is got. The name of a counter goes out with `_total`.
struct Figure<Of> {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    of: fn(&Of) -> f64,
}

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
        of: |reading| reading.health.ledger.into(),
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

/// Of each runtime.
const OF_A_RUNTIME: &[Figure<MemberStatus>] = &[
    Figure {
        name: "adriaticum_runtime_up",
        help: "Whether the runtime counts as working",
        kind: MetricType::Gauge,
        of: |member| member.working.into(),
    },
    Figure {
        name: "adriaticum_runtime_requests_in_flight",
        help: "Requests under way at the runtime",
        kind: MetricType::Gauge,
        of: |member| member.outstanding as f64,
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

/// A time, or no number where there is none.
fn seconds(time: Option<Duration>) -> f64 {
    time.map_or(f64::NAN, |time| time.as_secs_f64())
}

/// How often a runtime failed a request, by why.
fn by_why(failures: &Failures) -> [(&'static str, u64); 6] {
    [
        ("refused", failures.refused),
        ("broken_off", failures.broken_off),
        ("status", failures.status),
        ("malformed", failures.malformed),
        ("timed_out", failures.timed_out),
        ("no_room", failures.no_room),
    ]
}

/// Everything that can be measured.
pub(crate) struct Metrics(Registry);

impl Metrics {
    pub(crate) fn new(api: Arc<Api>, phase: watch::Receiver<Phase>, version: &'static str) -> Self {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Parts { api, phase, version, started: started as f64 }));
        Self(registry)
    }

    /// All figures as they are now.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        text::encode(&mut text, &self.0).expect("a string takes everything");
        text
    }
}

/// What asks the parts of the service.
struct Parts {
    api: Arc<Api>,
    phase: watch::Receiver<Phase>,
    version: &'static str,
    started: f64,
}

/// What they said, all at the same moment.
struct Reading {
    health: Health,
    readiness: Readiness,
    in_flight: usize,
    limit: usize,
    started: f64,
}

impl Parts {
    fn read(&self) -> Reading {
        let health = self.api.health();
        let readiness = Readiness::of(&health, *self.phase.borrow());
        let (in_flight, limit) = self.api.room.taken_of();
        Reading { health, readiness, in_flight, limit, started: self.started }
    }
}

impl Collector for Parts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let reading = self.read();
        let mut info = encoder.encode_descriptor("adriaticum_build_info", "What runs here", None, MetricType::Gauge)?;
        write(&mut info, MetricType::Gauge, &[("version", self.version)], 1.0)?;
        for figure in OF_THE_SERVICE {
            let mut metric = encoder.encode_descriptor(figure.name, figure.help, None, figure.kind)?;
            write(&mut metric, figure.kind, &[], (figure.of)(&reading))?;
        }
        let help = "Whether that part of the service is well";
        let mut ready = encoder.encode_descriptor("adriaticum_part_ready", help, None, MetricType::Gauge)?;
        for part in reading.readiness.parts() {
            write(&mut ready, MetricType::Gauge, &[("part", part.name)], part.wrong.is_none().into())?;
        }
        encode_runtimes(&mut encoder, &reading.health.runtimes)
    }
}

fn encode_runtimes(encoder: &mut DescriptorEncoder<'_>, members: &[MemberStatus]) -> fmt::Result {
    let help = "The model that the runtime says it has";
    let mut info = encoder.encode_descriptor("adriaticum_runtime_info", help, None, MetricType::Gauge)?;
    for member in members {
        let model = member.model.as_deref().unwrap_or_default();
        write(&mut info, MetricType::Gauge, &[("runtime", &member.url), ("model", model)], 1.0)?;
    }
    for figure in OF_A_RUNTIME {
        let mut metric = encoder.encode_descriptor(figure.name, figure.help, None, figure.kind)?;
        for member in members {
            let value = (figure.of)(member);
            if !value.is_nan() {
                write(&mut metric, figure.kind, &[("runtime", &member.url)], value)?;
            }
        }
    }
    let help = "Requests that the runtime did not answer properly, by why";
    let name = "adriaticum_runtime_requests_failed";
    let mut failed = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for member in members {
        for (why, count) in by_why(&member.failures) {
            let labels = [("runtime", member.url.as_str()), ("why", why)];
            write(&mut failed, MetricType::Counter, &labels, count as f64)?;
        }
    }
    Ok(())
}

fn write(metric: &mut MetricEncoder<'_>, kind: MetricType, labels: &[(&str, &str)], value: f64) -> fmt::Result {
    match labels {
        [] => write_value(metric, kind, value),
        labels => write_value(&mut metric.encode_family(&labels)?, kind, value),
    }
}

/// Writes a whole number as one.
fn write_value(metric: &mut MetricEncoder<'_>, kind: MetricType, value: f64) -> fmt::Result {
    let whole = (value.fract() == 0.0 && value.abs() < 1e15).then_some(value as i64);
    match (kind, whole) {
        (MetricType::Counter, Some(whole)) => metric.encode_counter::<NoLabelSet, _, u64>(&whole.unsigned_abs(), None),
        (MetricType::Counter, None) => metric.encode_counter::<NoLabelSet, _, u64>(&value, None),
        (_, Some(whole)) => metric.encode_gauge(&whole),
        (_, None) => metric.encode_gauge(&value),
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").finish_non_exhaustive()
    }
}
