//! Exports as CSV or JSON. An export has every row that the filter matches. Long ones are sent while they are read, until
//! the client disconnects.

use std::future::Future;

use bytes::Bytes;
use format::{JsonArray, write_csv};
use maud::{Markup, html};
use serde::Serialize;
use store::{Store, StoreError, Viewer};
use tokio::sync::mpsc;
use transport::ResponseBody;

use crate::page::{ConsoleResponse, History, SignedIn};

/// Rows per read, which bounds the memory of an export.
const BATCH_ROWS: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Csv,
    Json,
}

/// A query whose rows are read in parts, the newest first. JSON is one array.
pub(crate) trait Export: Send + 'static {
    const NAME: &'static str;
    const COLUMNS: &'static [&'static str];
    type Row: Send + Sync;
    type Position: Send;

    /// The next rows. Moves the query to the position after them.
    fn next(
        &mut self,
        store: &Store,
        viewer: &Viewer,
        count: usize,
    ) -> impl Future<Output = Result<History<Self::Row, Self::Position>, StoreError>> + Send;

    fn csv(row: &Self::Row) -> impl Serialize;

    fn json(row: &Self::Row) -> impl Serialize;
}

/// The buttons on a list's page. `query` has the fields of its filter, with a question mark.
pub(crate) fn export_links(path: &str, query: &str) -> Markup {
    html! {
        a.button href={ (path) ".csv" (query) } { "Export CSV" }
        a.button href={ (path) ".json" (query) } { "Export JSON" }
    }
}

impl Format {
    pub(crate) fn download(self, name: &str, body: impl Into<ResponseBody>) -> ConsoleResponse {
        let (content_type, extension) = match self {
            Self::Csv => ("text/csv; charset=utf-8", "csv"),
            Self::Json => ("application/json", "json"),
        };
        ConsoleResponse::download(&format!("adriaticum-{name}.{extension}"), content_type, body)
    }

    /// The error of a query is a sentence.
    pub(crate) fn stream<E: Export>(self, user: &SignedIn<'_>, query: Result<E, &'static str>) -> ConsoleResponse {
        let export = match query {
            Ok(export) => export,
            Err(sentence) => return ConsoleResponse::bad_query(sentence),
        };
        let (store, viewer) = (user.console.store.clone(), user.viewer().clone());
        let (chunks, body) = ResponseBody::stream();
        tokio::spawn(async move {
            if let Err(error) = send(&store, &viewer, export, self, &chunks).await {
                tracing::error!(%error, name = E::NAME, "an export was cut off");
                let _ = chunks.send(Err(std::io::Error::other("the export was cut off"))).await; // closes the connection
            }
        });
        self.download(E::NAME, body)
    }
}

async fn send<E: Export>(
    store: &Store,
    viewer: &Viewer,
    mut export: E,
    format: Format,
    chunks: &mpsc::Sender<std::io::Result<Bytes>>,
) -> Result<(), StoreError> {
    let (mut header, mut array) = (Some(E::COLUMNS), JsonArray::default());
    loop {
        // Sending a batch may take long, and the session may have ended meanwhile.
        if !store.sessions().is_valid(viewer).await? {
            return Err(StoreError::SessionEnded);
        }
        let History { rows, next, .. } = export.next(store, viewer, BATCH_ROWS).await?;
        let chunk = match format {
            Format::Csv => csv(header.take(), rows.iter().map(E::csv)),
            Format::Json => array.rows(rows.iter().map(E::json)).map_err(|_| StoreError::Corrupt("row"))?,
        };
        // A search that has found nothing so far continues, unless the client has disconnected.
        if chunks.is_closed() || (!chunk.is_empty() && chunks.send(Ok(chunk.into())).await.is_err()) {
            return Ok(());
        }
        if next.is_none() {
            break;
        }
    }
    if format == Format::Json {
        let _ = chunks.send(Ok(array.end().into())).await;
    }
    Ok(())
}

pub(crate) fn csv<Row: Serialize>(header: Option<&[&str]>, rows: impl IntoIterator<Item = Row>) -> Vec<u8> {
    let mut text = Vec::new();
    write_csv(&mut text, header, rows).expect("rows of one length can be written to memory");
    text
}
