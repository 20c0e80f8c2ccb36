//! A source: what an answer may cite, and what its `Link` header says.

use jiff::civil::Date;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use url::Url;

use crate::Passage;

/// Characters of a URL beyond which it is not worth a header.
const LONGEST_URL: usize = 1_000;
/// What RFC 8187 lets stand in an extended parameter.
const EXTENDED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Something that was found and can be cited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    title: String,
    url: String,
    date: Option<Date>,
}

impl Source {
    /// A passage's source; none if its address is not one that could be followed.
    pub(super) fn of(passage: &Passage, clean: impl Fn(&str) -> String) -> Option<Self> {
        let url = Url::parse(passage.url.trim()).ok()?;
        let known = matches!(url.scheme(), "http" | "https" | "local" | "opensearch");
        // A password in an address is somebody's.
        let bare = url.username().is_empty() && url.password().is_none();
        let text = url.as_str();
        let plain = text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'<' | b'>' | b'"'));
        if !known || !bare || !plain || text.len() > LONGEST_URL {
            return None;
        }
        let title = clean(&passage.title);
        let title = if title.is_empty() { clean(text) } else { title };
        Some(Self { title, url: text.to_owned(), date: passage.date })
    }

    /// What it is called, cleaned.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Where it is.
    pub fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn date(&self) -> Option<Date> {
        self.date
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
            link.push_str(&format!("; title*=UTF-8''{}", utf8_percent_encode(&self.title, EXTENDED)));
        }
        link
    }
}
