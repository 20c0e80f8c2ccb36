//! OpenSearch and Elasticsearch: requests and the interpretation of responses.
//!
//! An index's mapping is unknown, so the usual field names are tried. No patterns: `text*` would also match vectors and
//! other fields that cannot be searched for words.

use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::SearchError;
use super::exchange::SearchRequest;
use super::lenient::{date, member, text, whole_text};
use super::passage::bounded_passage;
use super::url::RemoteUrl;
use super::vector_field::VectorField;
use crate::Passage;

/// Field names, the likeliest first. Common importers write those with a dot.
const TITLE_FIELDS: [&str; 7] =
    ["title", "name", "headline", "meta.title", "metadata.title", "attachment.title", "file.filename"];
const TEXT_FIELDS: [&str; 8] =
    ["text", "content", "body", "passage", "body_content", "page_content", "attachment.content", "description"];
const URL_FIELDS: [&str; 6] = ["url", "link", "uri", "metadata.url", "metadata.source", "file.url"];
const DATE_FIELDS: [&str; 12] = [
    "date", "published", "published_at", "publishedDate", "published_date", "publish_date", "timestamp", "@timestamp",
    "updated_at", "created_at", "metadata.date", "meta.date",
];

/// The characters that are percent-encoded in a URL.
const ENCODE_SET: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// With a vector, documents are also found by the vectors in its field.
pub(super) fn search_request(
    url: &RemoteUrl,
    index: &str,
    query: &str,
    vector: Option<(&VectorField, &[f32])>,
    limit: usize,
    deadline: Duration,
) -> SearchRequest {
    let mut body = body(match_words(query), limit, deadline);
    if let Some((field, numbers)) = vector {
        field.add_to(&mut body, numbers, limit);
    }
    request(url, index, &body)
}

/// Finds any documents, those with the words first. Shows whether documents can be read.
pub(super) fn probe_request(url: &RemoteUrl, index: &str, query: &str, deadline: Duration) -> SearchRequest {
    let any = json!({"bool": {"must": {"match_all": {}}, "should": [match_words(query)]}});
    request(url, index, &body(any, 1, deadline))
}

pub(super) fn mapping_request(url: &RemoteUrl, index: &str) -> SearchRequest {
    SearchRequest { url: url.join(&format!("/{index}/_mapping")), json: None }
}

/// The error for a status other than 200.
pub(super) fn status_error(status: StatusCode) -> SearchError {
    match status {
        StatusCode::FORBIDDEN => SearchError::CredentialsRefused(status),
        StatusCode::NOT_FOUND => SearchError::IndexMissing,
        StatusCode::TOO_MANY_REQUESTS => SearchError::Busy,
        status => SearchError::Refused(status),
    }
}

/// Best first. Failed shards are not an error if at least one succeeded.
pub(super) fn parse_passages(body: &[u8], index: &str, limit: usize) -> Result<Vec<Passage>, SearchError> {
    let response: Response = serde_json::from_slice(body).map_err(|_| SearchError::Malformed)?;
    if response.timed_out {
        return Err(SearchError::CutShort);
    }
    if response.shards.all_failed() {
        return Err(SearchError::ShardsFailed);
    }
    let hits = response.hits.hits;
    let passages: Vec<_> = hits.iter().filter_map(|hit| hit.passage(index)).take(limit).collect();
    match passages.is_empty() && !hits.is_empty() {
        true => Err(SearchError::Unreadable),
        false => Ok(passages),
    }
}

/// The names in the error message.
pub(super) fn field_names() -> String {
    [TITLE_FIELDS.as_slice(), &TEXT_FIELDS].concat().join(", ")
}

#[derive(Deserialize)]
struct Response {
    #[serde(default)]
    timed_out: bool,
    #[serde(rename = "_shards", default)]
    shards: Shards,
    hits: Hits,
}

#[derive(Default, Deserialize)]
struct Shards {
    #[serde(default)]
    total: u64,
    successful: Option<u64>,
    #[serde(default)]
    failed: u64,
}

impl Shards {
    /// A pattern that matches no index has no shards, which is not a failure.
    fn all_failed(&self) -> bool {
        self.total > 0 && (self.failed >= self.total || self.successful == Some(0))
    }
}

#[derive(Deserialize)]
struct Hits {
    hits: Vec<Hit>,
}

#[derive(Deserialize)]
struct Hit {
    #[serde(rename = "_index")]
    index: Option<String>,
    #[serde(rename = "_id")]
    id: Option<String>,
    #[serde(rename = "_source")]
    source: Option<Value>,
}

impl Hit {
    /// `None` without a title or text field that we read.
    fn passage(&self, index: &str) -> Option<Passage> {
        let source = self.source.as_ref()?;
        let title = TITLE_FIELDS.iter().find_map(|name| text(member(source, name)?));
        let url = URL_FIELDS.iter().find_map(|name| text(member(source, name)?));
        let text = TEXT_FIELDS.iter().find_map(|name| whole_text(member(source, name)?));
        let date = DATE_FIELDS.iter().find_map(|name| date(member(source, name)?));
        let url = url.map_or_else(|| self.opensearch_url(index), str::to_owned);
        bounded_passage(title, &url, text.as_deref(), date)
    }

    /// For a document without a URL. Its index may differ from the requested one, which may be a pattern or alias.
    fn opensearch_url(&self, index: &str) -> String {
        let index = self.index.as_deref().unwrap_or(index);
        let id = self.id.as_deref().unwrap_or_default();
        format!("opensearch:{}/{}", utf8_percent_encode(index, ENCODE_SET), utf8_percent_encode(id, ENCODE_SET))
    }
}

/// Lenient, so that a field with numbers or vectors does not fail the search.
fn match_words(query: &str) -> Value {
    let titles = TITLE_FIELDS.iter().map(|name| format!("{name}^2"));
    let fields: Vec<_> = titles.chain(TEXT_FIELDS.iter().map(|name| name.to_string())).collect();
    json!({"multi_match": {"query": query, "fields": fields, "lenient": true, "tie_breaker": 0.3}})
}

/// The server's timeout is slightly shorter than the deadline, so that it can still report it.
fn body(query: Value, limit: usize, deadline: Duration) -> Value {
    let timeout = (deadline / 10 * 9).as_millis().clamp(1, 3_600_000);
    let read = [TITLE_FIELDS.as_slice(), &TEXT_FIELDS, &URL_FIELDS, &DATE_FIELDS].concat();
    json!({
        "size": limit,
        "timeout": format!("{timeout}ms"),
        "track_total_hits": false,
        "_source": read,
        "query": query,
    })
}

fn request(url: &RemoteUrl, index: &str, body: &Value) -> SearchRequest {
    SearchRequest { url: url.join(&format!("/{index}/_search")), json: Some(body.to_string()) }
}
