//! The `usage` command: totals from the roll-ups, optionally grouped, or individual requests, as a table, JSON or CSV.

use std::io::{BufWriter, Write};
use std::time::Duration;

use chat::Timestamp;
use format::{
    Group, REQUEST_COLUMNS, TOKEN_COLUMNS, csv_cells, duration, group_report, measured_of, micros, number,
    number_or_dash, outcome, request_row, rfc3339_micros, rfc3339_seconds, token_sums, write_csv,
};
use serde::Serialize;
use serde_json::{Value, json};
use store::{
    AccountId, Email, Figures, GroupLabel, Latencies, Measured, Period, Phase, RecordedRequest, RequestQuery, Step,
    Store, UsageQuery, UsageReport, Viewer,
};

use crate::accounts::find_account;
use crate::cli::{Month, UsageOptions};
use crate::error::CliError;
use crate::grouped_usage;
use crate::output::print_note;
use crate::settings::Settings;
use crate::storage::{admin, open_store};
use crate::table::Table;

/// The column of requests that is only in the console's exports.
const KEY_NAME: &str = "key_name";

pub(crate) async fn run(settings: &Settings, options: &UsageOptions) -> Result<(), CliError> {
    let store = open_store(settings).await?;
    let range = range_of(options, store.now())?;
    // Standard output flushes at every line, and a report has thousands.
    let mut out = BufWriter::new(std::io::stdout().lock());
    if options.requests {
        let query = request_query(&store, options, range).await?;
        let rows = store.usage().requests(&Viewer::operator(), &query).await?;
        match (options.json, options.csv) {
            (true, _) => write_json(&mut out, &rows.iter().map(request_as_json).collect::<Vec<_>>())?,
            (_, true) => {
                let columns: Vec<_> = REQUEST_COLUMNS.into_iter().filter(|column| *column != KEY_NAME).collect();
                write_csv(&mut out, Some(&columns), rows.iter().map(|row| csv_cells(&request_row(row), &columns)))?;
            }
            _ => write!(out, "{}", requests_table(&rows))?,
        }
        return Ok(out.flush()?);
    }
    let group = options.by.unwrap_or(Group::Key);
    let (since, until) = range;
    let period = until.map_or_else(|| Period::since(since), |until| Period::exactly(since, until));
    let query = UsageQuery { period, key: None, step: Step::Day, person: None, group: group.grouping() };
    let report = store.usage().report(&Viewer::operator(), &query).await?.unwrap_or_default();
    match (options.by, options.json, options.csv) {
        (None, true, _) => write_json(&mut out, &report_as_json(&report))?,
        (None, _, true) => write_csv(&mut out, Some(&group_columns()), groups(&report))?,
        (None, ..) => write_report(&mut out, &report)?,
        (Some(group), true, _) => write_json(&mut out, &group_report(&report, group))?,
        (Some(group), _, true) => grouped_usage::write_as_csv(&mut out, &report, group)?,
        (Some(group), ..) => grouped_usage::write_as_table(&mut out, &report, group)?,
    }
    out.flush()?;
    if report.is_widened {
        print_note("The range was widened to whole hours: individual requests of that time are no longer kept.");
    }
    Ok(())
}

/// The beginning of the report, and its end unless it is now.
type Range = (Timestamp, Option<Timestamp>);

fn range_of(options: &UsageOptions, now: Timestamp) -> Result<Range, CliError> {
    let (from, to) = match (options.month, options.from) {
        (Some(Month(start, end)), _) => (start, end),
        // Includes the requests of the current second.
        (None, Some(from)) => (from, options.to.unwrap_or(now + Duration::from_secs(1))),
        (None, None) => return Ok((now.saturating_sub(options.since), None)),
    };
    if from > now {
        return Err(CliError::new("the range begins in the future"));
    }
    if to <= from {
        return Err(CliError::new("the range ends before it begins"));
    }
    Ok((from, Some(to)))
}

async fn request_query(store: &Store, options: &UsageOptions, (since, until): Range) -> Result<RequestQuery, CliError> {
    let person = match &options.person {
        None => None,
        Some(email) => Some(find_person(store, email).await?),
    };
    Ok(RequestQuery {
        since,
        until,
        before: None,
        key: options.key,
        person,
        status: options.status,
        min_latency: options.slower_than,
        limit: options.limit,
    })
}

async fn find_person(store: &Store, email: &Email) -> Result<AccountId, CliError> {
    let operator = Viewer::operator();
    let admin = admin(&operator)?;
    Ok(find_account(store, admin, email).await?.id)
}

fn write_json(out: &mut impl Write, value: &impl Serialize) -> Result<(), CliError> {
    serde_json::to_writer_pretty(&mut *out, value).map_err(std::io::Error::from)?;
    Ok(writeln!(out)?)
}

fn write_report(out: &mut impl Write, report: &UsageReport) -> Result<(), CliError> {
    writeln!(out, "Since {} until {}\n", rfc3339_seconds(report.since), rfc3339_seconds(report.until))?;
    let mut totals = Table::new(&["OUTCOME", ">REQUESTS", ">PROMPT TOKENS", ">COMPLETION TOKENS", ">TOTAL TOKENS"]);
    for usage in &report.by_outcome {
        if let GroupLabel::Outcome(status, code) = &usage.label {
            totals.row(figures_row(outcome(*status, code.as_deref()), &usage.figures));
        }
    }
    totals.row(figures_row("all".into(), &report.totals));
    writeln!(out, "{totals}")?;

    if !report.groups.is_empty() {
        let mut keys = Table::new(&["KEY", "NAME", ">REQUESTS", ">SUCCEEDED", ">TOTAL TOKENS", "LAST USED"]);
        for usage in &report.groups {
            let GroupLabel::Key(key) = &usage.label else { continue };
            let figures = &usage.figures;
            keys.row([
                key.id.to_string(),
                key.name.clone(),
                number(figures.requests),
                number(usage.succeeded),
                measured(figures.total, figures.requests),
                rfc3339_seconds(figures.last_at),
            ]);
        }
        writeln!(out, "{keys}")?;
    }
    if report.totals.requests == 0 {
        return Ok(());
    }
    let mut times = Table::new(&["LATENCY", ">MEASURED", ">P50", ">P95", ">P99"]);
    let completed = Phase::ALL.map(|phase| (phase.as_str(), phase, &report.latencies));
    let failed = ("failed requests", Phase::Total, &report.failed_latencies);
    for (name, phase, latencies) in completed.into_iter().chain([failed]) {
        let percentile = |share| latencies.percentile(phase, share).map(duration);
        if let (Some(p50), Some(p95), Some(p99)) = (percentile(0.5), percentile(0.95), percentile(0.99)) {
            times.row([name.into(), number(latencies.count(phase)), p50, p95, p99]);
        }
    }
    Ok(write!(out, "{times}")?)
}

fn figures_row(name: String, figures: &Figures) -> [String; 5] {
    let of = |figure| measured(figure, figures.requests);
    [name, number(figures.requests), of(figures.prompt), of(figures.completion), of(figures.total)]
}

/// A sum, with the number of measured requests unless all were measured.
pub(crate) fn measured(figure: Measured, requests: u64) -> String {
    match (figure.get(), measured_of(figure, requests)) {
        (None, _) => "–".into(),
        (Some(sum), None) => number(sum),
        (Some(sum), Some(measured)) => format!("{} ({measured})", number(sum)),
    }
}

fn requests_table(rows: &[RecordedRequest]) -> Table {
    let headings =
        ["REQUEST", "RECEIVED", "KEY", "STATUS", "CODE", ">PROMPT", ">COMPLETION", ">TOTAL", ">SOURCES", ">TIME"];
    let mut table = Table::new(&headings);
    for row in rows {
        let tokens = |count: Option<u32>| number_or_dash(count.map(u64::from));
        let sources = row.grounding.and_then(|grounding| grounding.sources);
        table.row([
            row.request_id.to_string(),
            rfc3339_micros(row.request_id.unix_micros()),
            row.key.to_string(),
            row.status.to_string(),
            row.code.clone().unwrap_or_default(),
            tokens(row.usage.prompt),
            tokens(row.usage.completion),
            tokens(row.usage.total),
            number_or_dash(sources.map(u64::from)),
            micros(row.total_us as f64),
        ]);
    }
    table
}

fn request_as_json(record: &RecordedRequest) -> Value {
    let mut row = request_row(record);
    if let Some(members) = row.as_object_mut() {
        members.shift_remove(KEY_NAME);
    }
    row
}

fn report_as_json(report: &UsageReport) -> Value {
    let outcomes = report.by_outcome.iter().filter_map(|usage| {
        let GroupLabel::Outcome(status, code) = &usage.label else { return None };
        Some(with_figures(json!({ "status": status, "code": code }), &usage.figures))
    });
    let keys = report.groups.iter().filter_map(|usage| {
        let GroupLabel::Key(key) = &usage.label else { return None };
        let key = json!({
            "key_id": key.id.to_string(),
            "name": key.name,
            "succeeded": usage.succeeded,
            "last_used_at": rfc3339_seconds(usage.figures.last_at),
        });
        Some(with_figures(key, &usage.figures))
    });
    let range = json!({ "since": rfc3339_seconds(report.since), "until": rfc3339_seconds(report.until) });
    let mut document = with_figures(range, &report.totals);
    // Requests for which facts were searched.
    document["searched"] = report.all_latencies().count(Phase::Search).into();
    document["by_outcome"] = outcomes.collect();
    document["by_key"] = keys.collect();
    document["latency_us"] = by_phase(&report.latencies);
    document["failed_latency_us"] = by_phase(&report.failed_latencies);
    document
}

/// Adds the numbers of requests and tokens to an object.
fn with_figures(mut object: Value, figures: &Figures) -> Value {
    object["requests"] = figures.requests.into();
    for (column, value) in token_sums(figures) {
        object[column] = value.into();
    }
    object
}

fn by_phase(latencies: &Latencies) -> Value {
    let percentiles = |phase| {
        let micros = |share| latencies.percentile(phase, share).map(|time| time.as_micros() as u64);
        let count = latencies.count(phase);
        json!({ "measured": count, "p50": micros(0.5), "p95": micros(0.95), "p99": micros(0.99) })
    };
    Phase::ALL.into_iter().map(|phase| (phase.as_str(), percentiles(phase))).collect()
}

fn group_columns() -> Vec<&'static str> {
    ["group", "name", "requests"].into_iter().chain(TOKEN_COLUMNS).collect()
}

/// The rows of the CSV: all, by outcome, by key.
fn groups(report: &UsageReport) -> Vec<(&'static str, String, u64, Vec<Option<u64>>)> {
    let tokens = |figures: &Figures| token_sums(figures).map(|(_, value)| value).collect();
    let row = |group, name, figures: &Figures| (group, name, figures.requests, tokens(figures));
    let all = std::iter::once(row("all", String::new(), &report.totals));
    let groups = report.by_outcome.iter().chain(&report.groups).filter_map(|usage| match &usage.label {
        GroupLabel::Outcome(status, code) => Some(row("outcome", outcome(*status, code.as_deref()), &usage.figures)),
        GroupLabel::Key(key) => Some(row("key", key.id.to_string(), &usage.figures)),
        _ => None,
    });
    all.chain(groups).collect()
}
