//! Search servers and their failures, over real sockets.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod breaker;
mod failures;
mod opensearch;
mod searxng;
mod server;

use std::time::Duration;

use grounding::Passage;
use grounding::search::{RemoteSearch, RemoteUrl, SearchUrl};
use jiff::civil::Date;

/// Far longer than the time of a response from this machine.
const LONG_DEADLINE: Duration = Duration::from_secs(20);
/// For servers that never respond.
const SHORT_DEADLINE: Duration = Duration::from_millis(150);

fn url(text: &str) -> RemoteUrl {
    match text.parse() {
        Ok(SearchUrl::Remote(url)) => url,
        other => panic!("{text}: {other:?}"),
    }
}

fn remote(text: &str, deadline: Duration) -> RemoteSearch {
    RemoteSearch::new(url(text), deadline).unwrap()
}

fn passage(title: &str, url: &str, text: &str, date: Option<Date>) -> Passage {
    Passage { title: title.into(), url: url.into(), text: text.into(), date, score: None }
}

fn titles(passages: &[Passage]) -> Vec<&str> {
    passages.iter().map(|passage| passage.title.as_str()).collect()
}
