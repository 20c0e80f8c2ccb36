//! Figures and requests as CSV that programs can read: no grouping, empty where nothing was measured. Requests are all
//! that a filter matches, however many: they are sent while they are read.

use bytes::Bytes;
use store::{Figures, KeyUsage, RequestRecord, Store, StoreError, Viewer};
use tokio::sync::mpsc;
use transport::ResponseBody;

use crate::reply::{Problem, Reply};
use crate::requests::Filter;
use crate::room::Room;
use crate::show::{self, failed};
use crate::usage;
use crate::usage::Group;
use crate::visit::Fields;

const KIND: &str = "text/csv; charset=utf-8";
/// Requests that are read at a time, and held in memory at the most.
const ROWS_AT_ONCE: usize = 1000;

pub(crate) async fn usage(room: &Room<'_>, query: &Fields) -> Result<Reply, Problem> {
    let read = usage::read(room, query).await?;
    let report = &read.report;
    let group = read.group.name();
    let mut lines = vec![columns(&[
        group,
        "name",
        "requests",
        "failed",
        "prompt_tokens",
        "prompt_tokens_measured",
        "completion_tokens",
        "completion_tokens_measured",
        "total_tokens",
        "total_tokens_measured",
    ])];
    match read.group {
        Group::Time => lines.extend(
            report
                .by_time
                .iter()
                .map(|slice| line(show::rfc3339(slice.start), String::new(), &slice.figures, slice.succeeded)),
        ),
        Group::Outcome => lines.extend(report.by_outcome.iter().map(|outcome| {
            let code = outcome.code.clone();
            let succeeded = if code.is_none() { outcome.figures.requests } else { 0 };
            line(outcome.status.to_string(), code.unwrap_or_else(|| "ok".into()), &outcome.figures, succeeded)
        })),
        Group::Key => lines.extend(report.by_key.iter().map(|KeyUsage { key, name, figures, succeeded }| {
            line(key.to_string(), harmless(name), figures, *succeeded)
        })),
    }
    lines.push(line("all".into(), String::new(), &report.totals, report.succeeded));
    Ok(Reply::download(&format!("adriaticum-usage-by-{group}.csv"), KIND, csv(&lines)))
}

/// Every request that the filter matches.
pub(crate) fn requests(room: &Room<'_>, query: &Fields) -> Reply {
    let (store, viewer, filter) = (room.console.store.clone(), room.viewer().clone(), Filter::parse(query));
    let (pieces, body) = ResponseBody::stream();
    tokio::spawn(async move {
        if let Err(error) = send_requests(&store, &viewer, filter, &pieces).await {
            tracing::error!(%error, "an export of requests broke off");
            let _ = pieces.send(Err(std::io::Error::other("the database failed"))).await; // breaks the connection off
        }
    });
    Reply::download("adriaticum-requests.csv", KIND, body)
}

async fn send_requests(
    store: &Store,
    viewer: &Viewer,
    mut filter: Filter,
    pieces: &mpsc::Sender<std::io::Result<Bytes>>,
) -> Result<(), StoreError> {
    let mut lines = vec![columns(&REQUEST_COLUMNS)];
    loop {
        let (rows, more) = filter.next(store, viewer, ROWS_AT_ONCE).await?;
        lines.extend(rows.iter().map(request_line));
        let is_gone = pieces.send(Ok(csv(&lines).into())).await.is_err();
        if is_gone || !more {
            return Ok(());
        }
        lines.clear();
    }
}

const REQUEST_COLUMNS: [&str; 18] = [
    "request_id",
    "received_at",
    "key_id",
    "key_name",
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

fn request_line(row: &RequestRecord) -> Vec<String> {
    let maybe = |value: Option<u64>| value.map_or_else(String::new, |value| value.to_string());
    vec![
        row.request_id.to_string(),
        show::rfc3339(row.request_id.unix_micros() / 1000),
        row.key.to_string(),
        harmless(&row.key_name),
        row.status.to_string(),
        row.code.clone().unwrap_or_default(),
        maybe(row.usage.prompt.map(u64::from)),
        maybe(row.usage.completion.map(u64::from)),
        maybe(row.usage.total.map(u64::from)),
        maybe(row.queue_us),
        maybe(row.search_us),
        maybe(row.inference_us),
        row.total_us.to_string(),
        maybe(row.persist_us),
        row.grounding.map_or_else(String::new, |grounding| grounding.sources.is_some().to_string()),
        row.grounding.map_or_else(String::new, |grounding| format!("{:.4}", grounding.score)),
        maybe(row.grounding.map(|grounding| grounding.scorer.into())),
        maybe(row.grounding.and_then(|grounding| grounding.sources).map(u64::from)),
    ]
}

fn columns(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn line(first: String, name: String, figures: &Figures, succeeded: u64) -> Vec<String> {
    let mut line = vec![first, name, figures.requests.to_string(), failed(figures, succeeded).to_string()];
    for figure in [figures.prompt, figures.completion, figures.total] {
        line.push(figure.get().map_or_else(String::new, |sum| sum.to_string()));
        line.push(figure.count.to_string());
    }
    line
}

/// A name that no spreadsheet takes for a formula.
fn harmless(name: &str) -> String {
    match name.starts_with(['=', '+', '-', '@', '\t', '\r']) {
        true => format!("'{name}"),
        false => name.to_owned(),
    }
}

fn csv(lines: &[Vec<String>]) -> Vec<u8> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for line in lines {
        writer.write_record(line).expect("lines of one length are written to memory");
    }
    writer.into_inner().expect("memory can be flushed")
}
