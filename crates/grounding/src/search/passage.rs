//! Passages of bounded size from search results.

use jiff::civil::Date;

use crate::Passage;

const MAX_TITLE_CHARS: usize = 300;
const MAX_URL_CHARS: usize = 2_000;
const MAX_TEXT_CHARS: usize = 20_000;

/// `None` without title and text. A title alone can be an answer.
pub(super) fn bounded_passage(
    title: Option<&str>,
    url: &str,
    text: Option<&str>,
    date: Option<Date>,
) -> Option<Passage> {
    if title.is_none() && text.is_none() {
        return None;
    }
    Some(Passage {
        title: cut(title.unwrap_or(url), MAX_TITLE_CHARS),
        url: cut(url, MAX_URL_CHARS),
        text: cut(text.unwrap_or_default(), MAX_TEXT_CHARS),
        date,
        score: None,
    })
}

fn cut(text: &str, max_chars: usize) -> String {
    text.chars().take(max_chars).collect()
}
