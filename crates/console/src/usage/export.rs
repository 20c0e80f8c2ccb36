//! Usage, requests and the audit log as CSV or JSON. An export has every row that the filter matches. Requests and the
//! audit log are sent while they are read, until the client disconnects. JSON is one array; for usage, one object.

use bytes::Bytes;
use format::{AUDIT_COLUMNS, AuditRow, GroupReport, GroupRow, JsonArray, RequestRow, write_csv};
use http::StatusCode;
use serde::Serialize;
use store::{AuditRecord, RecordedRequest, Store, StoreError, Viewer};
use tokio::sync::mpsc;
use transport::ResponseBody;

use crate::page::error::{ConsoleError, ConsoleResult};
use crate::page::request::Fields;
use crate::page::response::ConsoleResponse;
use crate::page::session::SignedIn;
use crate::people::audit;
use crate::usage::page as usage;
use crate::usage::requests::Filter;

/// Rows per read, which bounds the memory of an export.
const BATCH_ROWS: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Csv,
    Json,
}

impl Format {
    fn content_type(self) -> &'static str {
        match self {
            Self::Csv => "text/csv; charset=utf-8",
            Self::Json => "application/json",
        }
    }

    fn extension(self) -> &'static str {
        match self {
            Self::Csv => "csv",
            Self::Json => "json",
        }
    }

    fn download(self, name: &str, body: impl Into<ResponseBody>) -> ConsoleResponse {
        ConsoleResponse::download(&format!("adriaticum-{name}.{}", self.extension()), self.content_type(), body)
    }
}

pub(crate) async fn usage(user: &SignedIn<'_>, query: &Fields, format: Format) -> ConsoleResult {
    let view = match usage::load(user, query).await? {
        Ok(view) => view,
        Err(error) => return Ok(refusal(&error.to_string())),
    };
    let (report, group) = (&view.report, view.group);
    let body = match format {
        Format::Csv => {
            let rows = GroupRow::all(report, group);
            let columns = GroupRow::columns(group, report.currency.is_some());
            csv(Some(&columns), rows.iter().map(|row| row.cells(report.currency)))
        }
        Format::Json => json(&GroupReport::new(report, group))?,
    };
    Ok(format.download(&format!("usage-by-{}", group.name()), body))
}

pub(crate) fn requests(user: &SignedIn<'_>, query: &Fields, format: Format) -> ConsoleResponse {
    let filter = match Filter::parse(user, query) {
        Ok(filter) => filter,
        Err(sentence) => return refusal(sentence),
    };
    let source = ExportSource::Requests(filter);
    stream(user, source, format, "requests")
}

pub(crate) fn audit(user: &SignedIn<'_>, query: &Fields, format: Format) -> ConsoleResult {
    user.admin()?;
    Ok(match audit::parse(query) {
        Ok(query) => stream(user, ExportSource::Audit(query), format, "audit"),
        Err(sentence) => refusal(sentence),
    })
}

fn refusal(sentence: &str) -> ConsoleResponse {
    ConsoleResponse::text(sentence).with_status(StatusCode::BAD_REQUEST)
}

/// Where the rows of an export come from.
enum ExportSource {
    Requests(Filter),
    Audit(store::AuditQuery),
}

enum Batch {
    Requests(Vec<RecordedRequest>),
    Audit(Vec<AuditRecord>),
}

impl ExportSource {
    /// The next rows, and whether there may be more.
    async fn next(&mut self, store: &Store, viewer: &Viewer) -> Result<(Batch, bool), StoreError> {
        match self {
            Self::Requests(filter) => {
                let (rows, next) = filter.next(store, viewer, BATCH_ROWS).await?;
                Ok((Batch::Requests(rows), next.is_some()))
            }
            Self::Audit(query) => {
                // Other viewers were refused before.
                let Some(admin) = viewer.admin() else { return Ok((Batch::Audit(Vec::new()), false)) };
                let (lines, next) = audit::next(store, admin, query, BATCH_ROWS).await?;
                Ok((Batch::Audit(lines), next.is_some()))
            }
        }
    }

    fn columns(&self) -> &'static [&'static str] {
        match self {
            Self::Requests(_) => &RequestRow::COLUMNS_WITH_KEY_NAME,
            Self::Audit(_) => &AUDIT_COLUMNS,
        }
    }
}

impl Batch {
    fn csv(&self, header: Option<&[&str]>) -> Vec<u8> {
        match self {
            Self::Requests(rows) => csv(header, rows.iter().map(RequestRow::for_csv)),
            Self::Audit(lines) => csv(header, lines.iter().map(AuditRow::for_csv)),
        }
    }

    fn json(&self, array: &mut JsonArray) -> Result<Vec<u8>, StoreError> {
        let text = match self {
            Self::Requests(rows) => array.rows(rows.iter().map(RequestRow::with_key_name)),
            Self::Audit(lines) => array.rows(lines.iter().map(AuditRow::for_json)),
        };
        text.map_err(|_| StoreError::Corrupt("row"))
    }
}

fn stream(user: &SignedIn<'_>, source: ExportSource, format: Format, name: &'static str) -> ConsoleResponse {
    let (store, viewer) = (user.console.store.clone(), user.viewer().clone());
    let (chunks, body) = ResponseBody::stream();
    tokio::spawn(async move {
        if let Err(error) = send(&store, &viewer, source, format, &chunks).await {
            tracing::error!(%error, name, "an export was cut off");
            let _ = chunks.send(Err(std::io::Error::other("the export was cut off"))).await; // closes the connection
        }
    });
    format.download(name, body)
}

async fn send(
    store: &Store,
    viewer: &Viewer,
    mut source: ExportSource,
    format: Format,
    chunks: &mpsc::Sender<std::io::Result<Bytes>>,
) -> Result<(), StoreError> {
    let (mut header, mut array) = (Some(source.columns()), JsonArray::default());
    loop {
        // Sending a batch may take long, and the session may have ended meanwhile.
        if !store.is_valid(viewer).await? {
            return Err(StoreError::SessionEnded);
        }
        let (batch, more) = source.next(store, viewer).await?;
        let chunk = match format {
            Format::Csv => batch.csv(header.take()),
            Format::Json => batch.json(&mut array)?,
        };
        // A search that has found nothing so far continues, unless the client has disconnected.
        if chunks.is_closed() || (!chunk.is_empty() && chunks.send(Ok(chunk.into())).await.is_err()) {
            return Ok(());
        }
        if !more {
            break;
        }
    }
    if format == Format::Json {
        let _ = chunks.send(Ok(array.end().into())).await;
    }
    Ok(())
}

fn csv<Row: Serialize>(header: Option<&[&str]>, rows: impl IntoIterator<Item = Row>) -> Vec<u8> {
    let mut text = Vec::new();
    write_csv(&mut text, header, rows).expect("rows of one length can be written to memory");
    text
}

fn json(value: &impl Serialize) -> ConsoleResult<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(value).map_err(|_| ConsoleError::Internal)?;
    text.push(b'\n');
    Ok(text)
}
