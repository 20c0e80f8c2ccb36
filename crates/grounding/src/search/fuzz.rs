//! Fuzzes responses of search servers and their configured URLs: passages are few and bounded, and no password is ever
//! shown.

use fuzzer::{Target, magnitude};
use serde::de::IgnoredAny;

use super::error::SearchError;
use super::url::SearchUrl;
use super::{opensearch, searxng};
use crate::Passage;

const LIMIT: usize = 10;

const WORDS: [&str; 22] = [
    "\"results\"", "\"title\"", "\"url\"", "\"content\"", "\"publishedDate\"", "\"answers\"", "\"infoboxes\"",
    "\"urls\"", "\"unresponsive_engines\"", "\"hits\"", "\"_source\"", "\"_shards\"", "\"timed_out\"",
    "\"meta.title\"", "[[", "]]", "{\"a\":", "null", "1700000000", "\"2024-05-01\"", "[0,", "{},",
];

fn responses() -> Vec<Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/responses");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort_unstable();
    files.into_iter().map(|file| std::fs::read(file).unwrap()).collect()
}

fn assert_bounded(found: &Result<Vec<Passage>, SearchError>, input: &[u8]) -> (bool, usize, u32) {
    match found {
        Ok(passages) => {
            serde_json::from_slice::<IgnoredAny>(input).expect("JSON");
            assert!(passages.len() <= LIMIT);
            for passage in passages {
                assert!(passage.title.chars().count() <= 300 && passage.url.chars().count() <= 2_000);
                assert!(passage.text.chars().count() <= 20_000);
            }
            let bytes: usize = passages.iter().map(|passage| passage.text.len() + passage.title.len()).sum();
            (true, passages.len(), magnitude(bytes))
        }
        Err(error) => {
            let text = error.to_string();
            assert!(text.chars().count() < 500 && !text.chars().any(char::is_control), "{text:?}");
            (false, text.chars().filter(|c| c.is_alphabetic()).take(30).map(|c| c as usize).sum(), 0)
        }
    }
}

#[test]
fn answers() {
    Target::new("search answers").corpus(responses()).dictionary(WORDS).linear().run(|input| {
        let searxng = assert_bounded(&searxng::parse_passages(input, LIMIT), input);
        (searxng, assert_bounded(&opensearch::parse_passages(input, "docs", LIMIT), input))
    });
}

#[test]
fn urls() {
    let corpus = [
        "local",
        "searxng+http://127.0.0.1:8080/",
        "searxng+https://user:se%3Acret@Search.Example/s/x/",
        "opensearch+http://reader:secret@a:9200/docs",
        "elasticsearch+https://[::1]:9200/es/docs-*,more",
    ];
    let words =
        ["searxng+", "http://", "https://", "@", ":", "/", "%", "?", "#", "[", "]", "..", "\t", "_all", "secret"];
    Target::new("search URLs").corpus(corpus).dictionary(words).max_bytes(300).run_text(|text| {
        match text.parse::<SearchUrl>() {
            Ok(url) => {
                let shown = url.to_string();
                if let SearchUrl::Remote(remote) = &url {
                    let mut public = remote.clone();
                    public.credentials = None;
                    assert_eq!(public.to_string(), shown.replacen("***@", "", 1), "only the mask shows credentials");
                }
                if !shown.contains("***@") {
                    assert_eq!(shown.parse::<SearchUrl>().as_ref(), Ok(&url), "{shown}");
                }
                (true, shown.chars().take(9).collect::<String>(), shown.contains("***@"))
            }
            Err(error) => (false, error.to_string(), false),
        }
    });
}
