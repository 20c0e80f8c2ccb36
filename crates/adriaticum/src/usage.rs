//! The `usage` command: sums from the roll-ups, or the requests themselves; for people, as JSON or as CSV.

use std::io::{BufWriter, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use store::{Figures, Measured, Period, Phase, RequestQuery, RequestRecord, Step, UsageQuery, UsageReport, Viewer};

use crate::cli::UsageOptions;
use crate::error::CliError;
use crate::paper::{self, Table, latency, maybe, number};
use crate::serve::open_store;
use crate::settings::Settings;

pub(crate) async fn run(settings: &Settings, options: &UsageOptions) -> Result<(), CliError> {
    let store = open_store(settings).await?;
    let since = SystemTime::now().checked_sub(options.since).unwrap_or(UNIX_EPOCH);
    let since = since.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    // Standard output by itself writes line by line, and a report has thousands.
    let mut out = BufWriter::new(std::io::stdout().lock());
    if options.requests {
        let query = RequestQuery { since, limit: options.limit, ..RequestQuery::default() };
        let rows = store.requests(&Viewer::operator(), &query).await?;
        let rows: Vec<_> = rows.iter().map(RequestLine::from).collect();
        match (options.json, options.csv) {
            (true, _) => write_json(&mut out, &rows)?,
            (_, true) => write_csv(&mut out, &RequestLine::COLUMNS, &rows)?,
            _ => write!(out, "{}", requests_table(&rows))?,
        }
    } else {
        let query = UsageQuery { period: Period::since(since), key: None, step: Step::Day, by_key: true };
        let report = store.usage(&Viewer::operator(), &query).await?.unwrap_or_default();
        match (options.json, options.csv) {
            (true, _) => write_json(&mut out, &JsonReport::from(&report))?,
            (_, true) => write_csv(&mut out, &SUM_COLUMNS, &groups(&report))?,
            _ => write_report(&mut out, &report)?,
        }
    }
    Ok(out.flush()?)
}

fn write_json(out: &mut impl Write, value: &impl Serialize) -> Result<(), CliError> {
    serde_json::to_writer_pretty(&mut *out, value).map_err(std::io::Error::from)?;
    Ok(writeln!(out)?)
}

/// The columns are written by themselves, because there may be no rows to take them from.
fn write_csv(out: &mut impl Write, columns: &[&str], rows: &[impl Serialize]) -> Result<(), CliError> {
    let mut csv = csv::WriterBuilder::new().has_headers(false).from_writer(out);
    csv.write_record(columns)?;
    rows.iter().try_for_each(|row| csv.serialize(row))?;
    Ok(csv.flush()?)
}

fn write_report(out: &mut impl Write, report: &UsageReport) -> Result<(), CliError> {
    writeln!(out, "Since {} until {}\n", paper::time(report.since), paper::time(report.until))?;
    let mut totals = Table::new(&["OUTCOME", ">REQUESTS", ">PROMPT TOKENS", ">COMPLETION TOKENS", ">TOTAL TOKENS"]);
    for outcome in &report.by_outcome {
        let name = format!("{} {}", outcome.status, outcome.code.as_deref().unwrap_or("ok"));
        totals.row(figures_row(name, &outcome.figures));
    }
    totals.row(figures_row("all".into(), &report.totals));
    writeln!(out, "{totals}")?;

    if !report.by_key.is_empty() {
        let mut keys = Table::new(&["KEY", "NAME", ">REQUESTS", ">SUCCEEDED", ">TOTAL TOKENS", "LAST USED"]);
        for usage in &report.by_key {
            let figures = &usage.figures;
            keys.row([
                usage.key.to_string(),
                usage.name.clone(),
                number(figures.requests),
                number(usage.succeeded),
                measured(figures.total, figures.requests),
                paper::time(figures.last_at),
            ]);
        }
        writeln!(out, "{keys}")?;
    }
    if report.totals.requests == 0 {
        return Ok(());
    }
    let mut times = Table::new(&["TIME", ">MEASURED", ">P50", ">P95", ">P99"]);
    for phase in Phase::ALL {
        let percentile = |share| report.latencies.percentile(phase, share).map(latency);
        if let (Some(p50), Some(p95), Some(p99)) = (percentile(0.5), percentile(0.95), percentile(0.99)) {
            times.row([phase.as_str().into(), number(report.latencies.count(phase)), p50, p95, p99]);
        }
    }
    Ok(write!(out, "{times}")?)
}

fn figures_row(name: String, figures: &Figures) -> [String; 5] {
    let of = |figure| measured(figure, figures.requests);
    [name, number(figures.requests), of(figures.prompt), of(figures.completion), of(figures.total)]
}

/// A sum, and of how many requests it was measured unless of all.
fn measured(figure: Measured, requests: u64) -> String {
    match figure.get() {
        None => "–".into(),
        Some(sum) if figure.count == requests => number(sum),
        Some(sum) => format!("{} ({} of {} measured)", number(sum), number(figure.count), number(requests)),
    }
}

fn requests_table(rows: &[RequestLine]) -> Table {
    let headings =
        ["REQUEST", "RECEIVED", "KEY", "STATUS", "CODE", ">PROMPT", ">COMPLETION", ">TOTAL", ">SOURCES", ">TIME"];
    let mut table = Table::new(&headings);
    for row in rows {
        let tokens = |count: Option<u32>| maybe(count.map(u64::from));
        table.row([
            row.request_id.clone(),
            row.received_at.clone(),
            row.key_id.clone(),
            row.status.to_string(),
            row.code.clone().unwrap_or_default(),
            tokens(row.prompt_tokens),
            tokens(row.completion_tokens),
            tokens(row.total_tokens),
            maybe(row.sources.map(u64::from)),
            latency(Duration::from_micros(row.total_us)),
        ]);
    }
    table
}

/// One request, in JSON and CSV alike. Times are microseconds.
#[derive(Serialize)]
struct RequestLine {
    request_id: String,
    received_at: String,
    key_id: String,
    status: u16,
    code: Option<String>,
    prompt_tokens: Option<u32>,
    completion_tokens: Option<u32>,
    total_tokens: Option<u32>,
    queue_us: Option<u64>,
    search_us: Option<u64>,
    inference_us: Option<u64>,
    total_us: u64,
    persist_us: Option<u64>,
    /// Whether facts were searched for and woven in, even if there were none; `null` if nothing was scored.
    grounded: Option<bool>,
    grounding_score: Option<f64>,
    scorer_version: Option<u16>,
    sources: Option<u16>,
}

impl RequestLine {
    const COLUMNS: [&str; 17] = [
        "request_id",
        "received_at",
        "key_id",
        "status",
        "code",
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
        "queue_us",
        "search_us",
        "inference_us",
        "total_us",
        "persist_us",
        "grounded",
        "grounding_score",
        "scorer_version",
        "sources",
    ];
}

impl From<&RequestRecord> for RequestLine {
    fn from(row: &RequestRecord) -> Self {
        let received = UNIX_EPOCH + Duration::from_micros(row.request_id.unix_micros());
        Self {
            request_id: row.request_id.to_string(),
            received_at: humantime::format_rfc3339_micros(received).to_string(),
            key_id: row.key.to_string(),
            status: row.status,
            code: row.code.clone(),
            prompt_tokens: row.usage.prompt,
            completion_tokens: row.usage.completion,
            total_tokens: row.usage.total,
            queue_us: row.queue_us,
            search_us: row.search_us,
            inference_us: row.inference_us,
            total_us: row.total_us,
            persist_us: row.persist_us,
            grounded: row.grounding.map(|grounding| grounding.sources.is_some()),
            grounding_score: row.grounding.map(|grounding| paper::score(grounding.score)),
            scorer_version: row.grounding.map(|grounding| grounding.scorer),
            sources: row.grounding.and_then(|grounding| grounding.sources),
        }
    }
}

#[derive(Serialize)]
struct JsonReport {
    since: String,
    until: String,
    #[serde(flatten)]
    totals: Sums,
    /// Requests for which facts were searched.
    searched: u64,
    by_outcome: Vec<JsonOutcome>,
    by_key: Vec<JsonKey>,
    latency_us: serde_json::Map<String, serde_json::Value>,
}

/// Sums over requests, in JSON and CSV alike. What was never measured is left out.
#[derive(Serialize)]
struct Sums {
    requests: u64,
    prompt_tokens: Option<u64>,
    prompt_tokens_measured: u64,
    completion_tokens: Option<u64>,
    completion_tokens_measured: u64,
    total_tokens: Option<u64>,
    total_tokens_measured: u64,
}

#[derive(Serialize)]
struct JsonOutcome {
    status: u16,
    code: Option<String>,
    #[serde(flatten)]
    figures: Sums,
}

#[derive(Serialize)]
struct JsonKey {
    key_id: String,
    name: String,
    succeeded: u64,
    last_used_at: String,
    #[serde(flatten)]
    figures: Sums,
}

impl From<&Figures> for Sums {
    fn from(figures: &Figures) -> Self {
        Self {
            requests: figures.requests,
            prompt_tokens: figures.prompt.get(),
            prompt_tokens_measured: figures.prompt.count,
            completion_tokens: figures.completion.get(),
            completion_tokens_measured: figures.completion.count,
            total_tokens: figures.total.get(),
            total_tokens_measured: figures.total.count,
        }
    }
}

impl From<&UsageReport> for JsonReport {
    fn from(report: &UsageReport) -> Self {
        let percentiles = |phase| {
            let micros = |share| report.latencies.percentile(phase, share).map(|time| time.as_micros() as u64);
            let count = report.latencies.count(phase);
            serde_json::json!({ "measured": count, "p50": micros(0.5), "p95": micros(0.95), "p99": micros(0.99) })
        };
        Self {
            since: paper::time(report.since),
            until: paper::time(report.until),
            totals: (&report.totals).into(),
            searched: report.latencies.count(Phase::Search),
            by_outcome: report
                .by_outcome
                .iter()
                .map(|usage| JsonOutcome {
                    status: usage.status,
                    code: usage.code.clone(),
                    figures: (&usage.figures).into(),
                })
                .collect(),
            by_key: report
                .by_key
                .iter()
                .map(|usage| JsonKey {
                    key_id: usage.key.to_string(),
                    name: usage.name.clone(),
                    succeeded: usage.succeeded,
                    last_used_at: paper::time(usage.figures.last_at),
                    figures: (&usage.figures).into(),
                })
                .collect(),
            latency_us: Phase::ALL.map(|phase| (phase.as_str().to_owned(), percentiles(phase))).into_iter().collect(),
        }
    }
}

/// The columns of the sums in CSV.
const SUM_COLUMNS: [&str; 9] = [
    "group",
    "name",
    "requests",
    "prompt_tokens",
    "prompt_tokens_measured",
    "completion_tokens",
    "completion_tokens_measured",
    "total_tokens",
    "total_tokens_measured",
];

/// One line of the sums in CSV each: all, by outcome, by key.
fn groups(report: &UsageReport) -> Vec<(&'static str, String, Sums)> {
    let line = |group, name, figures: &Figures| (group, name, Sums::from(figures));
    let all = std::iter::once(line("all", String::new(), &report.totals));
    let outcomes = report.by_outcome.iter().map(|usage| {
        let name = format!("{} {}", usage.status, usage.code.as_deref().unwrap_or("ok"));
        line("outcome", name, &usage.figures)
    });
    let keys = report.by_key.iter().map(|usage| line("key", usage.key.to_string(), &usage.figures));
    all.chain(outcomes).chain(keys).collect()
}
