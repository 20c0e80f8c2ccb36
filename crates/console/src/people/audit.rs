//! The audit log: its filters and its pages.

use format::{Phrase, parse_time, sentence};
use http::StatusCode;
use maud::{Markup, html};
use store::{Admin, AuditPage, AuditQuery, AuditRecord, Store, StoreError};

use crate::page::components::{columns, data_table, empty, form_error, heading, relative_time};
use crate::page::error::ConsoleResult;
use crate::page::layout::Area;
use crate::page::request::Fields;
use crate::page::session::SignedIn;
use crate::usage::range::parse_end;

const PAGE_SIZE: usize = 100;
/// Query fields of the filter and of the position in the list.
const FIELDS: [&str; 6] = ["from", "to", "actor", "action", "subject", "before"];

/// The error is a sentence for the page.
pub(crate) fn parse(query: &Fields) -> Result<AuditQuery, &'static str> {
    let time = |name: &str, parse: fn(&str) -> Option<chat::Timestamp>| match query.get(name) {
        "" => Ok(None),
        text => parse(text).map(Some).ok_or("Enter times as a date and a time, such as 2026-11-15T10:20."),
    };
    let (since, until) = (time("from", parse_time)?.unwrap_or_default(), time("to", parse_end)?);
    if until.is_some_and(|until| until <= since) {
        return Err("The range ends before it begins.");
    }
    Ok(AuditQuery {
        since,
        until,
        before: query.get("before").parse().ok(),
        who: query.get("actor").to_owned(),
        action: query.get("action").to_owned(),
        subject: query.get("subject").to_owned(),
        limit: 0,
    })
}

/// The next entries, newest first, and the position of the entries after them, if there may be any. Moves the query to
/// that position.
pub(crate) async fn next(
    store: &Store,
    admin: Admin<'_>,
    query: &mut AuditQuery,
    count: usize,
) -> Result<(Vec<AuditRecord>, Option<u64>), StoreError> {
    query.limit = count as u32 + 1;
    let AuditPage { mut records, searched_to } = store.audit(admin, query).await?;
    let has_more = records.len() > count;
    records.truncate(count);
    let next = if has_more { records.last().map(|line| line.number) } else { searched_to };
    query.before = next.or(query.before);
    Ok((records, next))
}

pub(crate) async fn page(user: &SignedIn<'_>, query: &Fields) -> ConsoleResult {
    let (admin, kept) = (user.admin()?, query.only(&FIELDS));
    let mut filter = match parse(query) {
        Ok(filter) => filter,
        Err(sentence) => {
            let content = html! { (heading("Audit log", html! {})) (form_error(Some(sentence))) (filters(query)) };
            return Ok(user.page(Area::Audit, "Audit log", content).with_status(StatusCode::BAD_REQUEST));
        }
    };
    let (lines, next) = next(&user.console.store, admin, &mut filter, PAGE_SIZE).await?;
    let export = kept.with("before", "");
    let content = html! {
        (heading("Audit log", html! {
            a.button href={ "/audit.csv" (export) } { "Export CSV" }
            a.button href={ "/audit.json" (export) } { "Export JSON" }
        }))
        (filters(query))
        @if lines.is_empty() {
            (empty("No matching entries", html! {
                p { "Every sign-in and every change to keys and accounts is listed here." }
                p { a href="/audit" { "Show all entries" } }
            }))
        } @else { (table(&lines)) }
        nav.pages aria-label="Pages of the audit log" {
            @if !query.get("before").is_empty() { a.button.plain href=(export) { "Newest" } }
            @if let Some(next) = next {
                a.button.plain href=(kept.with("before", &next.to_string())) {
                    @if lines.len() < PAGE_SIZE { "Search older entries" } @else { "Older" }
                }
            }
        }
    };
    Ok(user.page(Area::Audit, "Audit log", content))
}

fn filters(query: &Fields) -> Markup {
    html! {
        form.filters method="get" action="/audit" role="search" {
            label { "From (UTC)" input type="datetime-local" name="from" value=(query.get("from")); }
            label { "To (UTC)" input type="datetime-local" name="to" value=(query.get("to")); }
            label { "Actor" input type="search" name="actor" value=(query.get("actor")) placeholder="e-mail"; }
            label { "Action" input type="search" name="action" value=(query.get("action")) placeholder="revoked"; }
            label { "Subject" input type="search" name="subject" value=(query.get("subject")) placeholder="key, person"; }
            button.plain type="submit" { "Apply" }
        }
    }
}

fn table(lines: &[AuditRecord]) -> Markup {
    data_table(
        "Audit log",
        columns(&["Time", "Actor", "Action", "Address"]),
        html! {
            @for line in lines {
                tr {
                    td data-label="Time" { (relative_time(line.at)) }
                    th scope="row" data-label="Actor" { (line.who) }
                    td data-label="Action" {
                        @for phrase in sentence(line).phrases() {
                            @match phrase {
                                Phrase::Text(text) => (text),
                                Phrase::Name(name) => strong { (name) },
                            }
                        }
                    }
                    td data-label="Address" { (line.address) }
                }
            }
        },
    )
}
