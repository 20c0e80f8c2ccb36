//! A source that a completion may cite, and its `Link` header.

use jiff::civil::Date;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use url::Url;

use crate::Passage;

/// A longer URL is not put into a header.
const MAX_URL_CHARS: usize = 1_000;
/// The characters that are percent-encoded in an extended parameter (RFC 8187).
const EXTENDED_ENCODE_SET: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Its title is clean, and its URL is safe in a header.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    title: String,
    url: String,
    date: Option<Date>,
    score: Option<f32>,
}

impl Source {
    /// `None` if the passage's URL cannot be followed.
    pub(super) fn from_passage(passage: &Passage, clean: impl Fn(&str) -> String) -> Option<Self> {
        let url = Url::parse(passage.url.trim()).ok()?;
        let is_known_scheme = matches!(url.scheme(), "http" | "https" | "local" | "opensearch");
        // Passwords must not reach callers.
        let has_no_credentials = url.username().is_empty() && url.password().is_none();
        let text = url.as_str();
        let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'<' | b'>' | b'"'));
        if !is_known_scheme || !has_no_credentials || !is_plain || text.len() > MAX_URL_CHARS {
            return None;
        }
        let title = clean(&passage.title);
        let title = if title.is_empty() { clean(text) } else { title };
        Some(Self { title, url: text.to_owned(), date: passage.date, score: passage.score })
    }

    pub fn title(&self) -> &str {
        &self.title
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn date(&self) -> Option<Date> {
        self.date
    }

    /// The score of its best passage, if known.
    pub fn score(&self) -> Option<f32> {
        self.score
    }

    /// The value of its `Link` header (RFC 8288): visible ASCII only, exactly one link.
    pub fn link(&self) -> String {
        let plain: String = self
            .title
            .chars()
            .filter(|character| character.is_ascii_graphic() || *character == ' ')
            .filter(|character| !matches!(character, '"' | '\\'))
            .collect();
        let mut link = format!(r#"<{}>; rel="cite-as"; title="{}""#, self.url, plain.trim());
        if plain != self.title {
            link.push_str(&format!("; title*=UTF-8''{}", utf8_percent_encode(&self.title, EXTENDED_ENCODE_SET)));
        }
        link
    }
}
