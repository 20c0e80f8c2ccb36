//! Building blocks of pages: forms, headings, figures, times. Times are written in UTC. The script rewrites them: as
//! relative times in lists, and in the viewer's time zone elsewhere.

use std::time::SystemTime;

use chat::Timestamp;
use format::{exact_time, measured_of, number, rfc3339_millis, short_number, short_time};
use maud::{Markup, html};
use store::{Figures, Measured};

use crate::page::FormSender;
use crate::page::form::CSRF_FIELD;

pub(crate) fn now() -> Timestamp {
    SystemTime::now().into()
}

/// A sum of token figures: a dash if none was measured, and `n of N measured` unless all were.
pub(crate) fn measured(figure: Measured, requests: u64) -> Markup {
    html! {
        @match figure.get() {
            None => span.quiet title="not measured for any request" { "–" },
            Some(sum) => {
                (number(sum))
                @if let Some(measured) = measured_of(figure, requests) { " " span.quiet.small { (measured) } }
            }
        }
    }
}

pub(crate) fn failed(figures: &Figures, succeeded: u64) -> u64 {
    figures.requests.saturating_sub(succeeded)
}

/// To the minute, with the exact time on hover.
pub(crate) fn time(at: Timestamp) -> Markup {
    html! {
        time datetime=(rfc3339_millis(at)) title=(exact_time(at)) data-time="local" { (short_time(at, now())) }
    }
}

/// For lists: `3 minutes ago`, or the UTC time without script; the exact time on hover.
pub(crate) fn relative_time(at: Timestamp) -> Markup {
    let now = now();
    let is_this_year = format::date(at).get(..4) == format::date(now).get(..4);
    // No wider than the relative time that replaces it, so that columns keep their width.
    let written = if is_this_year { short_time(at, now) } else { format::date(at) };
    html! { time datetime=(rfc3339_millis(at)) title=(exact_time(at)) data-time="relative" { (written) } }
}

pub(crate) fn or_placeholder(content: Option<Markup>, word: &str) -> Markup {
    content.unwrap_or_else(|| html! { span.quiet { (word) } })
}

pub(crate) fn csrf_field(sender: &impl FormSender) -> Markup {
    html! { input type="hidden" name=(CSRF_FIELD) value=(sender.csrf_token()); }
}

/// A form with a single button.
pub(crate) fn button_form(sender: &impl FormSender, action: &str, label: &str, class: &str) -> Markup {
    html! {
        form.inline method="post" action=(action) {
            (csrf_field(sender))
            button class=(class) type="submit" { (label) }
        }
    }
}

pub(crate) fn heading(title: &str, actions: Markup) -> Markup {
    html! { div.heading { h1 { (title) } div.actions { (actions) } } }
}

pub(crate) fn copyable(id: &str, text: &str) -> Markup {
    html! {
        div.copyable {
            pre tabindex="0" { code id=(id) { (text) } }
            button.plain type="button" data-copy=(id) { "Copy" }
        }
    }
}

/// Shown in place of an empty list.
pub(crate) fn empty(title: &str, content: Markup) -> Markup {
    html! { div.empty { h2 { (title) } (content) } }
}

/// A table that scrolls if it is wider than the page.
pub(crate) fn data_table(label: &str, head: Markup, rows: Markup) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(label) {
            table.rows {
                thead { tr { (head) } }
                tbody { (rows) }
            }
        }
    }
}

/// Column titles. `>` marks a right-aligned column of numbers, an empty title a column of buttons.
pub(crate) fn columns(titles: &[&str]) -> Markup {
    html! {
        @for title in titles {
            @match (*title, title.strip_prefix('>')) {
                ("", _) => th scope="col" { span.hidden { "Actions" } },
                (title, None) => th scope="col" { (title) },
                (_, Some(title)) => th.right scope="col" { (title) },
            }
        }
    }
}

/// A table whose rows have one cell for each title. The first cell is the row's header.
pub(crate) fn table<const N: usize>(
    label: &str,
    titles: [&str; N],
    rows: impl IntoIterator<Item = [Markup; N]>,
) -> Markup {
    let rows = html! {
        @for row in rows {
            tr {
                @for (number, (title, cell)) in titles.iter().zip(row).enumerate() {
                    @match (number, *title, title.strip_prefix('>')) {
                        (0, title, _) => th scope="row" data-label=(title) { (cell) },
                        (_, "", _) => td.actions { (cell) },
                        (_, title, None) => td data-label=(title) { (cell) },
                        (_, _, Some(title)) => td.right data-label=(title) { (cell) },
                    }
                }
            }
        }
    };
    data_table(label, columns(&titles), rows)
}

pub(crate) fn error_message(text: Option<&str>) -> Markup {
    html! { @if let Some(text) = text { p.error role="alert" { (text) } } }
}

/// The content of a page that only says something, with a link to continue.
pub(crate) fn notice(title: &str, text: Markup, path: &str, label: &str) -> Markup {
    html! {
        section.card.narrow {
            h1 { (title) }
            (text)
            p { a.button href=(path) { (label) } }
        }
    }
}

/// A list of choices: values and labels.
pub(crate) fn select(
    label: &str,
    name: &str,
    choices: impl IntoIterator<Item = (impl AsRef<str>, impl AsRef<str>)>,
    selected: &str,
) -> Markup {
    html! {
        label { (label)
            select name=(name) {
                @for (value, label) in choices {
                    option value=(value.as_ref()) selected[value.as_ref() == selected] { (label.as_ref()) }
                }
            }
        }
    }
}

pub(crate) fn password_input(label: &str, name: &str, autocomplete: &str) -> Markup {
    html! { label { (label) input type="password" name=(name) required autocomplete=(autocomplete); } }
}

pub(crate) fn search_input(label: &str, name: &str, value: &str, placeholder: &str) -> Markup {
    html! { label { (label) input type="search" name=(name) value=(value) placeholder=(placeholder); } }
}

/// The change against the previous period. `previous` is the figure `before` as it is displayed.
pub(crate) fn change(now: u64, before: u64, previous: &str, compared: &str) -> Markup {
    let title = format!("{previous} in {compared}");
    html! {
        p.change title=(title) {
            @match before {
                0 if now == 0 => span.quiet { "same as in " (compared) },
                0 => span.quiet { "none in " (compared) },
                before if now == before => span.quiet { "same as in " (compared) },
                before => { (growth(now as f64, before as f64)) " " span.quiet { "vs " (compared) } },
            }
        }
    }
}

/// In percent, or as a factor from 11 × on.
fn growth(now: f64, before: f64) -> String {
    let percent = (now - before) / before * 100.0;
    let sign = if percent > 0.0 { "+" } else { "−" };
    match percent.abs() {
        _ if percent >= 1000.0 => format!("{} ×", short_number(now / before)),
        percent if percent >= 10.0 => format!("{sign}{percent:.0} %"),
        percent => format!("{sign}{percent:.1} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_shows_how_many_requests_were_measured() {
        let some = measured(Measured { sum: 1200, count: 3 }, 4).into_string();
        assert!(some.contains("1,200") && some.contains("3 of 4 measured"), "{some}");
    }

    #[test]
    fn growth_is_a_percentage_or_a_factor() {
        assert_eq!([growth(110.0, 100.0), growth(95.0, 100.0), growth(3000.0, 100.0)], ["+10 %", "−5.0 %", "30 ×"]);
    }
}
