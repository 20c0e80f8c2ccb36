//! SearXNG: what it is asked, and what its JSON means.

use reqwest::StatusCode;
use serde::Deserialize;

use super::error::SearchError;
use super::exchange::Question;
use super::lenient::LenientValue;
use super::passage::bounded_passage;
use super::url::RemoteUrl;
use crate::Passage;

/// How many silent engines are named, and how much of each name.
const MAX_NAMES: usize = 5;
const MAX_NAME: usize = 40;

/// What is asked; nothing if there is nothing in the query to look for.
pub(super) fn question(url: &RemoteUrl, query: &str) -> Option<Question> {
    let words = words_only(query);
    if words.is_empty() {
        return None;
    }
    let mut url = url.below("/search");
    url.query_pairs_mut().append_pair("q", &words).append_pair("format", "json");
    Some(Question { url, json: None })
}

/// What a status other than 200 means.
pub(super) fn refused(status: StatusCode) -> SearchError {
    match status {
        StatusCode::FORBIDDEN => SearchError::JsonNotEnabled,
        StatusCode::TOO_MANY_REQUESTS => SearchError::RateLimited,
        status => SearchError::Refused(status),
    }
}

/// The passages of an answer, best first: what answers directly, then what describes the thing, then the results.
pub(super) fn passages(body: &[u8], limit: usize) -> Result<Vec<Passage>, SearchError> {
    let answer: Answer = serde_json::from_slice(body).map_err(|_| SearchError::Malformed)?;
    let direct = answer.answers.iter().find_map(direct);
    let described = answer.infoboxes.iter().find_map(described);
    let mut passages: Vec<_> = direct.into_iter().chain(described).collect();
    for passage in answer.results.iter().filter_map(result) {
        // The description's source is often the first result too.
        if passages.iter().all(|other| other.url != passage.url) {
            passages.push(passage);
        }
    }
    if passages.is_empty() && answer.results.is_empty() && !answer.unresponsive_engines.is_empty() {
        return Err(SearchError::SourcesUnresponsive(names(&answer.unresponsive_engines)));
    }
    passages.truncate(limit);
    Ok(passages)
}

#[derive(Deserialize)]
struct Answer {
    results: Vec<LenientValue>,
    #[serde(default)]
    answers: Vec<LenientValue>,
    #[serde(default)]
    infoboxes: Vec<LenientValue>,
    /// Pairs of name and reason.
    #[serde(default)]
    unresponsive_engines: Vec<LenientValue>,
}

fn result(result: &LenientValue) -> Option<Passage> {
    let text = |name| result.at(name).and_then(LenientValue::text);
    bounded_passage(
        text("title"),
        text("url")?,
        text("content"),
        result.at("publishedDate").and_then(LenientValue::date),
    )
}

/// An answer of one sentence. Only with its source: without one it is SearXNG's own arithmetic, or from an old version that
/// gave bare texts.
fn direct(answer: &LenientValue) -> Option<Passage> {
    let text = |name| answer.at(name).and_then(LenientValue::text);
    bounded_passage(None, text("url")?, Some(text("answer")?), None)
}

/// The box beside the results, as an encyclopedia fills it.
fn described(infobox: &LenientValue) -> Option<Passage> {
    let text = |name| infobox.at(name).and_then(LenientValue::text);
    let linked = match infobox.at("urls") {
        Some(LenientValue::Many(urls)) => urls.iter().find_map(|url| url.at("url")?.text()),
        _ => None,
    };
    bounded_passage(text("infobox"), linked.or_else(|| text("id"))?, Some(text("content")?), None)
}

/// The query without what SearXNG takes for commands: words that begin with `!` choose engines or redirect to another site
/// altogether, with `:` a language, with `<` a time limit.
fn words_only(query: &str) -> String {
    let words = query.split(|c: char| c.is_whitespace() || c.is_control());
    let words = words.map(|word| word.trim_start_matches(['!', ':', '<'])).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}

fn names(engines: &[LenientValue]) -> String {
    let clean = |name: &str| -> String {
        let kept = name.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '.' | '-' | '_'));
        kept.take(MAX_NAME).collect()
    };
    let mut names: Vec<_> = engines.iter().filter_map(LenientValue::text).map(clean).take(MAX_NAMES).collect();
    if engines.len() > names.len() {
        names.push(format!("{} more", engines.len() - names.len()));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_word_of_a_query_is_a_command() {
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
            assert_eq!(words_only(query), words, "{query}");
        }
    }
}
