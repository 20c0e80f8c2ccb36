//! The list of requests, newest first, and the timeline of one. Message text is not stored, so it cannot be shown.

use std::time::Duration;

use chat::{FinishReason, RequestId, Timestamp};
use format::{REQUEST_COLUMNS, csv_cells, number, request_row};
use http::StatusCode;
use maud::{Markup, html};
use serde::Serialize;
use store::{RecordedRequest, RequestPage, RequestQuery, StatusFilter, Store, StoreError, Viewer};

use crate::page::{
    Area, ConsoleError, ConsoleResponse, ConsoleResult, Export, Fields, Format, History, SignedIn, copyable, empty,
    error_message, export_links, parse_id, period, period_inputs, relative_time, search_input, select, table, time,
};

const PAGE_SIZE: usize = 50;
/// Max. people in the filter, so that the page stays small.
const MAX_PEOPLE: usize = 500;

/// Query fields of the filter and of the position in the list.
const FIELDS: [&str; 8] = ["from", "to", "key", "person", "status", "slower", "id", "before"];

const STATUSES: [(&str, &str); 9] = [
    ("", "All"),
    ("failed", "failed"),
    ("200", "200"),
    ("400", "400"),
    ("403", "403"),
    ("413", "413"),
    ("499", "499"),
    ("502", "502"),
    ("503", "503"),
];

enum Filter {
    /// `None` once it was read, or if the id is malformed.
    One(Option<RequestId>),
    Matching(RequestQuery),
}

impl Filter {
    /// The error is a sentence for the page.
    fn parse(user: &SignedIn<'_>, query: &Fields) -> Result<Self, &'static str> {
        if !query.get("id").is_empty() {
            return Ok(Self::One(query.get("id").parse().ok()));
        }
        let (since, until) = period(query)?;
        let person = query.optional("person", |id| id.parse().ok()).ok_or("There is no such person.")?;
        let slower = query.optional("slower", |millis| millis.parse().ok());
        Ok(Self::Matching(RequestQuery {
            since,
            until,
            before: query.get("before").parse().ok(),
            key: query
                .optional("key", |id| id.strip_prefix("adria_").unwrap_or(id).get(..12)?.parse().ok())
                .ok_or("A key's public id has 12 letters and digits.")?,
            person: person.filter(|_| user.is_admin()),
            status: query.optional("status", parse_status).ok_or("The status must be a number or \"failed\".")?,
            min_latency: slower
                .ok_or("The latency must be a whole number of milliseconds.")?
                .map(Duration::from_millis),
            limit: 0,
        }))
    }
}

impl Export for Filter {
    const NAME: &'static str = "requests";
    const COLUMNS: &'static [&'static str] = &REQUEST_COLUMNS;
    type Row = RecordedRequest;
    type Position = RequestId;

    async fn next(
        &mut self,
        store: &Store,
        viewer: &Viewer,
        count: usize,
    ) -> Result<History<RecordedRequest, RequestId>, StoreError> {
        let query = match self {
            Self::Matching(query) => query,
            Self::One(id) => {
                let row = match id.take() {
                    Some(id) => store.usage().request(viewer, id).await?,
                    None => None,
                };
                return Ok(History { rows: row.into_iter().collect(), next: None, is_cut: false });
            }
        };
        query.limit = count as u32 + 1;
        let RequestPage { rows, searched_to } = store.usage().search_requests(viewer, query).await?;
        let history = History::new(rows, count, searched_to, |row| row.request_id);
        query.before = history.next.or(query.before);
        Ok(history)
    }

    fn csv(row: &RecordedRequest) -> impl Serialize {
        csv_cells(&request_row(row), &REQUEST_COLUMNS)
    }

    fn json(row: &RecordedRequest) -> impl Serialize {
        request_row(row)
    }
}

fn parse_status(text: &str) -> Option<StatusFilter> {
    if text == "failed" { Some(StatusFilter::Failed) } else { text.parse().ok().map(StatusFilter::Is) }
}

pub(crate) fn export(user: &SignedIn<'_>, query: &Fields, format: Format) -> ConsoleResponse {
    format.stream(user, Filter::parse(user, query))
}

pub(crate) async fn list(user: &SignedIn<'_>, query: &Fields) -> ConsoleResult {
    let kept = query.only(&FIELDS);
    let filters = filters(user, query).await?;
    let mut filter = match Filter::parse(user, query) {
        Ok(filter) => filter,
        Err(sentence) => {
            let content = html! { (error_message(Some(sentence))) (filters) };
            return Ok(user.page(Area::Requests, "Requests", html! {}, content).with_status(StatusCode::BAD_REQUEST));
        }
    };
    let history = filter.next(user.store(), user.viewer(), PAGE_SIZE).await?;
    let content = html! {
        (filters)
        div data-live {
            @if history.rows.is_empty() { (nothing(&kept, history.next)) } @else { (request_table(&history.rows)) }
            (history.links(&kept, "requests"))
            @if history.is_cut {
                p.quiet { "The search for one page is limited. There may be older requests that match." }
            }
        }
    };
    Ok(user.page(Area::Requests, "Requests", export_links("/requests", &kept.with("before", "")), content))
}

/// In place of an empty list. `next` is where the search goes on.
fn nothing(kept: &Fields, next: Option<RequestId>) -> Markup {
    let is_filtered = FIELDS.iter().any(|name| !kept.get(name).is_empty());
    html! {
        @if is_filtered || next.is_some() {
            (empty(if next.is_some() { "No matching requests so far" } else { "No matching requests" }, html! {
                p {
                    "A request id is " code { "chatcmpl_" } " and 32 digits. "
                    "Requests are deleted after the retention period."
                }
                p { a href="/requests" { "Show all requests" } }
            }))
        } @else {
            (empty("No requests yet", html! {
                p {
                    "Send the first one: " a href="/" { "the overview has an example" } ", or use the "
                    a href="/playground" { "playground" } "."
                }
            }))
        }
    }
}

async fn filters(user: &SignedIn<'_>, query: &Fields) -> ConsoleResult<Markup> {
    let people = match user.viewer().admin() {
        Some(admin) => user.store().accounts().list(admin).await?,
        None => Vec::new(),
    };
    Ok(html! {
        form.filters method="get" action="/requests" role="search" {
            (period_inputs(query.get("from"), query.get("to"), false))
            (select("Status", "status", STATUSES, query.get("status")))
            (search_input("Key", "key", query.get("key"), "public id"))
            @if user.is_admin() {
                @let people = people.iter().take(MAX_PEOPLE).map(|person| (person.id.as_str(), person.email.as_str()));
                (select("Person", "person", [("", "All")].into_iter().chain(people), query.get("person")))
            }
            label { "Min. latency (ms)"
                input.short type="number" name="slower" min="0" step="1" value=(query.get("slower"));
            }
            (search_input("Request id", "id", query.get("id"), "chatcmpl_…"))
            button.plain type="submit" { "Apply" }
        }
    })
}

fn request_table(rows: &[RecordedRequest]) -> Markup {
    let tokens = |figure: Option<u32>| format::number_or_dash(figure.map(u64::from));
    let titles = ["Request", "Received", "Key", "Outcome", ">Tokens in + out", ">Total", ">Latency"];
    let rows = rows.iter().map(|row| {
        [
            html! { a href={ "/requests/" (row.request_id) } { code { (row.request_id) } } },
            relative_time(row.request_id.timestamp()),
            html! { (row.key_name) },
            outcome(row),
            html! { (tokens(row.usage.prompt)) " + " (tokens(row.usage.completion)) },
            html! { (tokens(row.usage.total)) },
            html! { (format::micros(row.total_us as f64)) },
        ]
    });
    html! { div.request-list { (table("Requests", titles, rows)) } }
}

fn outcome(row: &RecordedRequest) -> Markup {
    let class = match row.code {
        None => "active",
        Some(_) => "revoked",
    };
    html! {
        span class={ "badge " (class) } { (row.status) }
        " "
        @for part in row.code.as_deref().unwrap_or("ok").split_inclusive('_') { (part) wbr; }
    }
}

pub(crate) async fn detail(user: &SignedIn<'_>, id: &str) -> ConsoleResult {
    let id: RequestId = parse_id(id)?;
    let row = user.store().usage().request(user.viewer(), id).await?.ok_or(ConsoleError::NotFound)?;
    let figure = |figure: Option<u32>| figure.map_or_else(|| "not measured".into(), |figure| number(figure.into()));
    let content = html! {
        section.card {
            (copyable("request-id", &row.request_id.to_string()))
            dl.facts {
                dt { "Outcome" } dd { (outcome(&row)) }
                dt { "Key" }
                dd {
                    @if row.is_key_visible { a href={ "/keys/" (row.key) } { (row.key_name) } } @else { (row.key_name) }
                    " " code.quiet { (row.key) }
                }
                dt { "Prompt tokens" } dd { (figure(row.usage.prompt)) }
                dt { "Completion tokens" } dd { (figure(row.usage.completion)) }
                dt { "Total tokens" } dd { (figure(row.usage.total)) }
                dt { "Finish reason" } dd { (row.inference.finish_reason.map_or("–", FinishReason::as_str)) }
                dt { "Runtime" } dd { (row.inference.runtime.as_deref().unwrap_or("–")) }
                dt { "Grounding" } dd { (grounding(&row)) }
            }
        }
        section.card #timeline { h2 { "Timeline" } (timeline(&row)) }
    };
    Ok(user.page(Area::Requests, "Request", html! { a.button href="/requests" { "All requests" } }, content))
}

fn grounding(row: &RecordedRequest) -> Markup {
    let Some(grounding) = row.grounding else { return html! { "not scored" } };
    html! {
        @match (grounding.sources, row.search_us) {
            (Some(0), _) => { "searched, no sources found" }
            (Some(1), _) => { "1 source" }
            (Some(sources), _) => { (sources) " sources" }
            (None, Some(_)) => { "search failed" }
            (None, None) => { "not needed" }
        }
        " " span.quiet { "score " (format!("{:.2}", grounding.score)) ", scorer " (grounding.scorer) }
    }
}

fn timeline(row: &RecordedRequest) -> Markup {
    let mut at = 0;
    let mut events = vec![("Received", 0, None, "key accepted")];
    if let Some(queue) = row.queue_us {
        at += queue;
        events.push(("Admitted", at, Some(queue), "read, validated and admitted"));
    }
    if let Some(search) = row.search_us {
        at += search;
        events.push(("Searched", at, Some(search), "search results received"));
    }
    if row.queue_us.is_some() {
        events.push(("Dispatched", at, None, "sent to a runtime"));
    }
    if let Some(inference) = row.inference_us {
        at += inference;
        events.push(match row.status {
            502 => ("Failed", at, Some(inference), "no completion received"),
            _ => ("Completed", at, Some(inference), "completion received"),
        });
    }
    let last = row.total_us.max(at);
    events.push(("Submitted", last, None, "to the ledger"));
    if let Some(persist) = row.persist_us {
        events.push(("Persisted", last + persist, Some(persist), "durable, then the response was sent"));
    }
    let start = row.request_id.unix_micros();
    let whole = (last + row.persist_us.unwrap_or(0)).max(1) as f64;
    html! {
        ol.timeline {
            @for (name, after, took, what) in events {
                li {
                    span.event { (name) }
                    span.when {
                        (time(Timestamp::from_micros(start + after))) " "
                        span.quiet { "+" (format::micros(after as f64)) }
                    }
                    svg.bar viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true" {
                        @if let Some(took) = took {
                            @let width = (took as f64 / whole * 100.0).max(0.5);
                            rect.took x=(format!("{:.2}", ((after - took) as f64 / whole * 100.0).min(99.5)))
                                y="0" width=(format!("{width:.2}")) height="6" {}
                        }
                    }
                    span.quiet { (what) @if let Some(took) = took { ", " (format::micros(took as f64)) } }
                }
            }
        }
    }
}
