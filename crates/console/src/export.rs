//! Usage and requests as CSV. An export of requests holds all that the filter matches, however many: they are sent
//! while they are read.

use bytes::Bytes;
use format::{RequestRow, TokenSums, rfc3339_millis, spreadsheet_safe, write_csv};
use serde::Serialize;
use store::{Figures, Store, StoreError, Viewer};
use tokio::sync::mpsc;
use transport::ResponseBody;

use crate::components::failed;
use crate::console_request::Fields;
use crate::error::ConsoleResult;
use crate::requests::Filter;
use crate::response::ConsoleResponse;
use crate::session::SignedIn;
use crate::usage::{self, Group};

const CONTENT_TYPE: &str = "text/csv; charset=utf-8";
/// Requests that are read at a time, which bounds the memory that an export takes.
const BATCH_ROWS: usize = 1000;

/// The group, its name, requests, failed requests and tokens.
type UsageRow = (String, String, u64, u64, TokenSums);

fn usage_row(group: String, name: String, figures: &Figures, succeeded: u64) -> UsageRow {
    (group, name, figures.requests, failed(figures, succeeded), figures.into())
}

pub(crate) async fn usage(user: &SignedIn<'_>, query: &Fields) -> ConsoleResult {
    let view = usage::load(user, query).await?;
    let report = &view.report;
    let group = view.group.name();
    let columns: Vec<_> = [group, "name", "requests", "failed"].into_iter().chain(TokenSums::COLUMNS).collect();
    let mut rows: Vec<UsageRow> = match view.group {
        Group::Time => {
            let slices = report.by_time.iter();
            slices.map(|it| usage_row(rfc3339_millis(it.start), String::new(), &it.figures, it.succeeded)).collect()
        }
        Group::Outcome => {
            let outcomes = report.by_outcome.iter().map(|outcome| {
                let succeeded = if outcome.code.is_none() { outcome.figures.requests } else { 0 };
                let code = outcome.code.as_deref().unwrap_or("ok").to_owned();
                usage_row(outcome.status.to_string(), code, &outcome.figures, succeeded)
            });
            outcomes.collect()
        }
        Group::Key => {
            let keys = report.by_key.iter();
            keys.map(|it| usage_row(it.key.to_string(), spreadsheet_safe(&it.name), &it.figures, it.succeeded))
                .collect()
        }
    };
    rows.push(usage_row("all".into(), String::new(), &report.totals, report.succeeded));
    Ok(ConsoleResponse::download(&format!("adriaticum-usage-by-{group}.csv"), CONTENT_TYPE, csv(Some(&columns), rows)))
}

pub(crate) fn requests(user: &SignedIn<'_>, query: &Fields) -> ConsoleResponse {
    let (store, viewer, filter) = (user.console.store.clone(), user.viewer().clone(), Filter::parse(query));
    let (chunks, body) = ResponseBody::stream();
    tokio::spawn(async move {
        if let Err(error) = send_requests(&store, &viewer, filter, &chunks).await {
            tracing::error!(%error, "an export of requests was cut off");
            let _ = chunks.send(Err(std::io::Error::other("the database failed"))).await; // closes the connection
        }
    });
    ConsoleResponse::download("adriaticum-requests.csv", CONTENT_TYPE, body)
}

async fn send_requests(
    store: &Store,
    viewer: &Viewer,
    mut filter: Filter,
    chunks: &mpsc::Sender<std::io::Result<Bytes>>,
) -> Result<(), StoreError> {
    let mut header = Some(RequestRow::COLUMNS_WITH_KEY_NAME.as_slice());
    loop {
        let (rows, more) = filter.next(store, viewer, BATCH_ROWS).await?;
        let chunk = csv(header.take(), rows.iter().map(RequestRow::with_key_name));
        let is_closed = chunks.send(Ok(chunk.into())).await.is_err();
        if is_closed || !more {
            return Ok(());
        }
    }
}

fn csv<Row: Serialize>(header: Option<&[&str]>, rows: impl IntoIterator<Item = Row>) -> Vec<u8> {
    let mut text = Vec::new();
    write_csv(&mut text, header, rows).expect("rows of one length can be written to memory");
    text
}
