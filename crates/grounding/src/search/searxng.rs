//! SearXNG: requests and the interpretation of responses.

use reqwest::StatusCode;
use serde::Deserialize;
use serde_json::Value;

use super::error::SearchError;
use super::exchange::SearchRequest;
use super::lenient::{date, member, text};
use super::passage::bounded_passage;
use super::url::RemoteUrl;
use crate::Passage;

/// The maximum of named unresponsive engines, and of characters in each name.
const MAX_NAMES: usize = 5;
const MAX_NAME_CHARS: usize = 40;

/// `None` if no word is left in the query.
pub(super) fn search_request(url: &RemoteUrl, query: &str) -> Option<SearchRequest> {
    let words = strip_commands(query);
    if words.is_empty() {
        return None;
    }
    let mut url = url.join("/search");
    url.query_pairs_mut().append_pair("q", &words).append_pair("format", "json");
    Some(SearchRequest { url, json: None })
}

/// The error for a status other than 200.
pub(super) fn status_error(status: StatusCode) -> SearchError {
    match status {
        StatusCode::FORBIDDEN => SearchError::JsonNotEnabled,
        StatusCode::TOO_MANY_REQUESTS => SearchError::RateLimited,
        status => SearchError::Refused(status),
    }
}

/// Best first: a direct answer, then the infobox, then the results.
pub(super) fn parse_passages(body: &[u8], limit: usize) -> Result<Vec<Passage>, SearchError> {
    let response: Response = serde_json::from_slice(body).map_err(|_| SearchError::Malformed)?;
    let answer = response.answers.iter().find_map(direct_answer);
    let infobox = response.infoboxes.iter().find_map(infobox);
    let mut passages: Vec<_> = answer.into_iter().chain(infobox).collect();
    for passage in response.results.iter().filter_map(result) {
        if passages.len() >= limit {
            break;
        }
        // The infobox's source is often also the first result.
        if passages.iter().all(|other| other.url != passage.url) {
            passages.push(passage);
        }
    }
    if passages.is_empty() && response.results.is_empty() && !response.unresponsive_engines.is_empty() {
        return Err(SearchError::SourcesUnresponsive(engine_names(&response.unresponsive_engines)));
    }
    passages.truncate(limit);
    Ok(passages)
}

#[derive(Deserialize)]
struct Response {
    results: Vec<Value>,
    #[serde(default)]
    answers: Vec<Value>,
    #[serde(default)]
    infoboxes: Vec<Value>,
    /// Pairs of name and reason.
    #[serde(default)]
    unresponsive_engines: Vec<Value>,
}

fn result(result: &Value) -> Option<Passage> {
    let field = |name| member(result, name).and_then(text);
    bounded_passage(field("title"), field("url")?, field("content"), member(result, "publishedDate").and_then(date))
}

/// An answer of one sentence. Only with its source: without one it comes from SearXNG's calculator, or from an old version
/// that returned plain texts.
fn direct_answer(answer: &Value) -> Option<Passage> {
    let field = |name| member(answer, name).and_then(text);
    bounded_passage(None, field("url")?, Some(field("answer")?), None)
}

/// The box next to the results, usually from an encyclopedia.
fn infobox(infobox: &Value) -> Option<Passage> {
    let field = |name| member(infobox, name).and_then(text);
    let linked = match infobox.get("urls") {
        Some(Value::Array(urls)) => urls.iter().find_map(|url| text(url.get("url")?)),
        _ => None,
    };
    bounded_passage(field("infobox"), linked.or_else(|| field("id"))?, Some(field("content")?), None)
}

/// Removes SearXNG's commands: words that begin with `!` select engines or redirect to another site, with `:` a language,
/// with `<` a time limit.
fn strip_commands(query: &str) -> String {
    let words = query.split(|c: char| c.is_whitespace() || c.is_control());
    let words = words.map(|word| word.trim_start_matches(['!', ':', '<'])).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}

fn engine_names(engines: &[Value]) -> String {
    let clean = |name: &str| -> String {
        let kept = name.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '.' | '-' | '_'));
        kept.take(MAX_NAME_CHARS).collect()
    };
    let mut names: Vec<_> = engines.iter().filter_map(text).map(clean).take(MAX_NAMES).collect();
    if engines.len() > names.len() {
        names.push(format!("{} more", engines.len() - names.len()));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_removed_from_queries() {
        let cases = [
            ("height of the Eiffel tower", "height of the Eiffel tower"),
            ("  what   does\t!!\nmean ", "what does mean"),
            ("!!g !wikipedia :de <3 x", "g wikipedia de 3 x"),
            ("!:<!x", "x"),
            ("a!b 10:30 a<b C++ #1", "a!b 10:30 a<b C++ #1"),
            ("a\u{1c}!!g\u{a0}!x", "a g x"),
            ("!! :", ""),
        ];
        for (query, words) in cases {
            assert_eq!(strip_commands(query), words, "{query}");
        }
    }
}
