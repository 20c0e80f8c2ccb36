//! Who did what, when, from where.

use maud::html;

use crate::components::{columns, data_table, empty, heading, time};
use crate::console_request::Fields;
use crate::error::ConsoleResult;
use crate::layout::Area;
use crate::session::SignedIn;

const PAGE_SIZE: usize = 100;

pub(crate) async fn page(user: &SignedIn<'_>, query: &Fields) -> ConsoleResult {
    let before = query.get("before").parse().unwrap_or(u64::MAX);
    let mut lines = user.console.store.audit(user.admin()?, before, PAGE_SIZE as u32 + 1).await?;
    let more = lines.len() > PAGE_SIZE;
    lines.truncate(PAGE_SIZE);
    let content = html! {
        (heading("Audit log", html! {}))
        @if lines.is_empty() {
            (empty("No entries yet", html! {
                p { "Every sign-in and every change of keys and accounts is listed here." }
            }))
        } @else {
            (data_table("Audit log", columns(&["Time", "Actor", "Action", "Address"]), html! {
                @for line in &lines {
                    tr {
                        td data-label="Time" { (time(line.at)) }
                        th scope="row" data-label="Actor" { (line.who) }
                        td data-label="Action" {
                            (line.what)
                            @if line.subject != line.who { " " strong { (line.subject) } }
                        }
                        td data-label="Address" { (line.address) }
                    }
                }
            }))
            nav.pages aria-label="Pages of the audit log" {
                @if before != u64::MAX { a.button.plain href="/audit" { "Newest" } }
                @if let Some(last) = lines.last().filter(|_| more) {
                    a.button.plain href={ "/audit?before=" (last.number) } { "Older" }
                }
            }
        }
    };
    Ok(user.page(Area::Audit, "Audit log", content))
}
