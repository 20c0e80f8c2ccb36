//! Lists that go back in time: a filter by period, and links to older rows.

use chat::Timestamp;
use format::parse_time;
use maud::{Markup, html};

use crate::page::Fields;

const DAY: std::time::Duration = std::time::Duration::from_secs(86_400);
/// The query field with the position of the last row that was shown.
const POSITION_FIELD: &str = "before";
pub(crate) const INVALID_TIME: &str = "Enter times as a date and a time, such as 2026-11-15T10:20.";

/// A date without a time means the end of that day.
pub(crate) fn parse_end(text: &str) -> Option<Timestamp> {
    format::parse_date(text).filter(|_| text.len() == 10).map(|day| day + DAY).or_else(|| parse_time(text))
}

/// The fields `from` and `to`. The error is a sentence for the page.
pub(crate) fn period(query: &Fields) -> Result<(Timestamp, Option<Timestamp>), &'static str> {
    let since = query.optional("from", parse_time).ok_or(INVALID_TIME)?.unwrap_or_default();
    let until = query.optional("to", parse_end).ok_or(INVALID_TIME)?;
    match until {
        Some(until) if until <= since => Err("The range ends before it begins."),
        until => Ok((since, until)),
    }
}

pub(crate) fn period_inputs(from: &str, to: &str, is_required: bool) -> Markup {
    html! {
        label { "From (UTC)" input type="datetime-local" name="from" value=(from) required[is_required]; }
        label { "To (UTC)" input type="datetime-local" name="to" value=(to) required[is_required]; }
    }
}

/// A part of such a list, the newest row first.
pub(crate) struct History<Row, Position> {
    pub(crate) rows: Vec<Row>,
    /// The position of the rows after them, if there may be any.
    pub(crate) next: Option<Position>,
    /// Whether the search ended before it found a page of rows.
    pub(crate) is_cut: bool,
}

impl<Row, Position: ToString> History<Row, Position> {
    /// From at most one row more than a page has. `searched_to` is where a limited search ended.
    pub(crate) fn new(
        mut rows: Vec<Row>,
        page_size: usize,
        searched_to: Option<Position>,
        position: impl Fn(&Row) -> Position,
    ) -> Self {
        let is_full = rows.len() > page_size;
        rows.truncate(page_size);
        let next = if is_full { rows.last().map(position) } else { searched_to };
        Self { is_cut: !is_full && next.is_some(), rows, next }
    }

    /// Links to the newest and to older rows. `kept` are the fields of the query that stay.
    pub(crate) fn links(&self, kept: &Fields, noun: &str) -> Markup {
        html! {
            nav.pages aria-label={ "Pages of " (noun) } {
                @if !kept.get(POSITION_FIELD).is_empty() {
                    a.button.plain href=(kept.with(POSITION_FIELD, "")) { "Newest" }
                }
                @if let Some(next) = &self.next {
                    a.button.plain href=(kept.with(POSITION_FIELD, &next.to_string())) {
                        @if self.is_cut { "Search older " (noun) } @else { "Older" }
                    }
                }
            }
        }
    }
}
