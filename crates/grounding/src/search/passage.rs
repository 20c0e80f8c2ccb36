//! What becomes of one result: a passage of bounded size.

use jiff::civil::Date;

use crate::Passage;

const MAX_TITLE: usize = 300;
const MAX_URL: usize = 2_000;
const MAX_TEXT: usize = 20_000;

/// A passage, cut to size. Nothing if there is nothing to read; a title alone can say something.
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
        title: cut(title.unwrap_or(url), MAX_TITLE),
        url: cut(url, MAX_URL),
        text: cut(text.unwrap_or_default(), MAX_TEXT),
        date,
    })
}

fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}
