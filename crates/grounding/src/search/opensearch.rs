//! OpenSearch and Elasticsearch: what they are asked, and what their JSON means.
//!
//! We know no index's mapping, so several usual names are tried for everything. They are plain names: a pattern such as
//! `text*` would also match vectors and other things that nobody can search for words.

use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::SearchError;
use super::exchange::Question;
use super::lenient::LenientValue;
use super::passage::bounded_passage;
use super::url::RemoteUrl;
use crate::Passage;

/// Under which names things are looked for, the likeliest first. Those with a dot are what common importers write.
const TITLES: [&str; 7] =
    ["title", "name", "headline", "meta.title", "metadata.title", "attachment.title", "file.filename"];
const TEXTS: [&str; 8] =
    ["text", "content", "body", "passage", "body_content", "page_content", "attachment.content", "description"];
const URLS: [&str; 6] = ["url", "link", "uri", "metadata.url", "metadata.source", "file.url"];
const DATES: [&str; 12] = [
    "date",
    "published",
    "published_at",
    "publishedDate",
    "published_date",
    "publish_date",
    "timestamp",
    "@timestamp",
    "updated_at",
    "created_at",
    "metadata.date",
    "meta.date",
];

/// What may stand in a URL as it is.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A search for words.
pub(super) fn question(url: &RemoteUrl, index: &str, query: &str, limit: usize, deadline: Duration) -> Question {
    search(url, index, words(query), limit, deadline)
}

/// A search that finds any document, those with the words first. It shows whether documents can be read.
pub(super) fn probe(url: &RemoteUrl, index: &str, query: &str, deadline: Duration) -> Question {
    search(url, index, json!({"bool": {"must": {"match_all": {}}, "should": [words(query)]}}), 1, deadline)
}

/// What a status other than 200 means.
pub(super) fn refused(status: StatusCode) -> SearchError {
    match status {
        StatusCode::FORBIDDEN => SearchError::CredentialsRefused(status),
        StatusCode::NOT_FOUND => SearchError::IndexMissing,
        StatusCode::TOO_MANY_REQUESTS => SearchError::Busy,
        status => SearchError::Refused(status),
    }
}

/// The passages of an answer, best first. Shards that failed are left to the cluster's keeper as long as one answered.
pub(super) fn passages(body: &[u8], index: &str, limit: usize) -> Result<Vec<Passage>, SearchError> {
    let answer: Answer = serde_json::from_slice(body).map_err(|_| SearchError::Malformed)?;
    if answer.timed_out {
        return Err(SearchError::CutShort);
    }
    if answer.shards.all_failed() {
        return Err(SearchError::ShardsFailed);
    }
    let hits = answer.hits.hits;
    let passages: Vec<_> = hits.iter().filter_map(|hit| hit.passage(index)).take(limit).collect();
    match passages.is_empty() && !hits.is_empty() {
        true => Err(SearchError::Unreadable),
        false => Ok(passages),
    }
}

/// The names under which something to read is looked for.
pub(super) fn names() -> String {
    [TITLES.as_slice(), &TEXTS].concat().join(", ")
}

#[derive(Deserialize)]
struct Answer {
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
    /// A pattern that no index matches has no shards, and nothing that failed.
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
    source: Option<LenientValue>,
}

impl Hit {
    /// Nothing if it holds nothing to read.
    fn passage(&self, index: &str) -> Option<Passage> {
        let source = self.source.as_ref()?;
        let title = TITLES.iter().find_map(|name| source.at(name)?.text());
        let text = TEXTS.iter().find_map(|name| source.at(name)?.whole_text());
        let date = DATES.iter().find_map(|name| source.at(name)?.date());
        let url = URLS.iter().find_map(|name| source.at(name)?.text());
        let url = url.map_or_else(|| self.address(index), str::to_owned);
        bounded_passage(title, &url, text.as_deref(), date)
    }

    /// Where the document is, for one that does not say so itself. A pattern or alias may have led to another index.
    fn address(&self, index: &str) -> String {
        let index = self.index.as_deref().unwrap_or(index);
        let id = self.id.as_deref().unwrap_or_default();
        format!("opensearch:{}/{}", utf8_percent_encode(index, ESCAPED), utf8_percent_encode(id, ESCAPED))
    }
}

/// Lenient, because some index has a number or a vector under one of the names, and that must not fail the others.
fn words(query: &str) -> Value {
    let titles = TITLES.iter().map(|name| format!("{name}^2"));
    let fields: Vec<_> = titles.chain(TEXTS.iter().map(|name| name.to_string())).collect();
    json!({"multi_match": {"query": query, "fields": fields, "lenient": true, "tie_breaker": 0.3}})
}

/// The server gets a little less time than we have, so that it can still say that it ran out.
fn search(url: &RemoteUrl, index: &str, query: Value, limit: usize, deadline: Duration) -> Question {
    let timeout = (deadline / 10 * 9).as_millis().clamp(1, 3_600_000);
    let read = [TITLES.as_slice(), &TEXTS, &URLS, &DATES].concat();
    let json = json!({
        "size": limit,
        "timeout": format!("{timeout}ms"),
        "track_total_hits": false,
        "_source": read,
        "query": query,
    });
    Question { url: url.below(&format!("/{index}/_search")), json: Some(json.to_string()) }
}
