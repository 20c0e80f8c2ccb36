//! The audit log: its filters, its pages and its export.

use format::{AUDIT_COLUMNS, Phrase, audit_row, csv_cells, sentence};
use http::StatusCode;
use maud::{Markup, html};
use serde::Serialize;
use store::{AuditPage, AuditQuery, AuditRecord, Store, StoreError, Viewer};

use crate::page::{
    Area, ConsoleResult, Export, Fields, Format, History, SignedIn, columns, data_table, empty, error_message,
    export_links, period, period_inputs, relative_time, search_input,
};

const PAGE_SIZE: usize = 100;
/// Query fields of the filter and of the position in the list.
const FIELDS: [&str; 6] = ["from", "to", "actor", "action", "subject", "before"];

/// The error is a sentence for the page.
fn parse(query: &Fields) -> Result<AuditQuery, &'static str> {
    let (since, until) = period(query)?;
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

impl Export for AuditQuery {
    const NAME: &'static str = "audit";
    const COLUMNS: &'static [&'static str] = &AUDIT_COLUMNS;
    type Row = AuditRecord;
    type Position = u64;

    async fn next(
        &mut self,
        store: &Store,
        viewer: &Viewer,
        count: usize,
    ) -> Result<History<AuditRecord, u64>, StoreError> {
        // Other viewers were refused before.
        let Some(admin) = viewer.admin() else { return Err(StoreError::SessionEnded) };
        self.limit = count as u32 + 1;
        let AuditPage { records, searched_to } = store.audit_log().search(admin, self).await?;
        let history = History::new(records, count, searched_to, |line| line.number);
        self.before = history.next.or(self.before);
        Ok(history)
    }

    fn csv(row: &AuditRecord) -> impl Serialize {
        csv_cells(&audit_row(row), &AUDIT_COLUMNS)
    }

    fn json(row: &AuditRecord) -> impl Serialize {
        audit_row(row)
    }
}

pub(crate) fn export(user: &SignedIn<'_>, query: &Fields, format: Format) -> ConsoleResult {
    user.admin()?;
    Ok(format.stream(user, parse(query)))
}

pub(crate) async fn page(user: &SignedIn<'_>, query: &Fields) -> ConsoleResult {
    user.admin()?;
    let kept = query.only(&FIELDS);
    let mut filter = match parse(query) {
        Ok(filter) => filter,
        Err(sentence) => {
            let content = html! { (error_message(Some(sentence))) (filters(query)) };
            return Ok(user.page(Area::Audit, "Audit log", html! {}, content).with_status(StatusCode::BAD_REQUEST));
        }
    };
    let history = filter.next(user.store(), user.viewer(), PAGE_SIZE).await?;
    let content = html! {
        (filters(query))
        @if history.rows.is_empty() {
            (empty("No matching entries", html! {
                p { "Every sign-in and every change to keys and accounts is listed here." }
                p { a href="/audit" { "Show all entries" } }
            }))
        } @else { (table(&history.rows)) }
        (history.links(&kept, "entries"))
    };
    Ok(user.page(Area::Audit, "Audit log", export_links("/audit", &kept.with("before", "")), content))
}

fn filters(query: &Fields) -> Markup {
    html! {
        form.filters method="get" action="/audit" role="search" {
            (period_inputs(query.get("from"), query.get("to"), false))
            (search_input("Actor", "actor", query.get("actor"), "e-mail"))
            (search_input("Action", "action", query.get("action"), "revoked"))
            (search_input("Subject", "subject", query.get("subject"), "key, person"))
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
