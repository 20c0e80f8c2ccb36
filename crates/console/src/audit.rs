//! Who did what, when, from where.

use maud::html;

use crate::page::{self, Area};
use crate::reply::{Problem, Reply};
use crate::room::Room;
use crate::show;
use crate::visit::Fields;

const PAGE: usize = 100;

pub(crate) async fn page(room: &Room<'_>, query: &Fields) -> Result<Reply, Problem> {
    let before = query.get("before").parse().unwrap_or(u64::MAX);
    let mut lines = room.console.store.audit(room.admin()?, before, PAGE as u32 + 1).await?;
    let more = lines.len() > PAGE;
    lines.truncate(PAGE);
    let content = html! {
        (page::heading("Audit log", html! {}))
        @if lines.is_empty() {
            (page::empty("Nothing yet", html! { p { "Every sign-in and every change of keys and accounts is listed here." } }))
        } @else {
            div.scroll tabindex="0" role="region" aria-label="Audit log" {
                table.rows {
                    thead { tr { th scope="col" { "When" } th scope="col" { "Who" } th scope="col" { "What" } th scope="col" { "From" } } }
                    tbody {
                        @for line in &lines {
                            tr {
                                td data-label="When" { (show::time(line.at)) }
                                th scope="row" data-label="Who" { (line.who) }
                                td data-label="What" { (line.what) @if line.subject != line.who { " " strong { (line.subject) } } }
                                td data-label="From" { (line.address) }
                            }
                        }
                    }
                }
            }
            nav.pages aria-label="Pages of the audit log" {
                @if before != u64::MAX { a.button.plain href="/audit" { "Newest" } }
                @if let Some(last) = lines.last().filter(|_| more) {
                    a.button.plain href={ "/audit?before=" (last.number) } { "Older" }
                }
            }
        }
    };
    Ok(Reply::page(page::page(room, Area::Audit, "Audit log", content)))
}
