//! The list of requests, newest first, and the timeline of one. Message text is not stored, so it cannot be shown.

use chat::{KeyId, RequestId, Timestamp};
use format::number;
use maud::{Markup, html};
use store::{RecordedRequest, RequestQuery, Store, StoreError, Viewer};

use crate::components::{columns, copyable, data_table, empty, heading, time};
use crate::console_request::Fields;
use crate::error::{ConsoleError, ConsoleResult};
use crate::layout::Area;
use crate::session::SignedIn;

const PAGE_SIZE: usize = 50;

pub(crate) enum Filter {
    /// `None` once it was read, or if the id is malformed.
    One(Option<RequestId>),
    Matching(RequestQuery),
}

impl Filter {
    pub(crate) fn parse(query: &Fields) -> Self {
        if !query.get("id").is_empty() {
            return Self::One(query.get("id").parse().ok());
        }
        let key = match query.get("key") {
            "" => None,
            id => match id.parse::<KeyId>() {
                Ok(id) => Some(id),
                Err(_) => return Self::One(None),
            },
        };
        Self::Matching(RequestQuery {
            since: Timestamp::default(),
            before: query.get("before").parse().ok(),
            key,
            status: query.get("status").parse().ok(),
            limit: 0,
        })
    }

    /// The next rows, newest first, and whether there are more. The filter then stands behind them.
    pub(crate) async fn next(
        &mut self,
        store: &Store,
        viewer: &Viewer,
        count: usize,
    ) -> Result<(Vec<RecordedRequest>, bool), StoreError> {
        match self {
            Self::One(id) => match id.take() {
                Some(id) => Ok((store.request(viewer, id).await?.into_iter().collect(), false)),
                None => Ok((Vec::new(), false)),
            },
            Self::Matching(query) => {
                query.limit = count as u32 + 1;
                let mut rows = store.requests(viewer, query).await?;
                let more = rows.len() > count;
                rows.truncate(count);
                query.before = rows.last().map(|row| row.request_id).or(query.before);
                Ok((rows, more))
            }
        }
    }
}

pub(crate) async fn list(user: &SignedIn<'_>, query: &Fields) -> ConsoleResult {
    let (rows, more) = Filter::parse(query).next(&user.console.store, user.viewer(), PAGE_SIZE).await?;
    let kept = query.only(&["key", "status", "id", "before"]);
    let filtered = ["key", "status", "id", "before"].iter().any(|name| !query.get(name).is_empty());
    let content = html! {
        (heading("Requests", html! { a.button href={ "/requests.csv" (kept.with("before", "")) } { "Export CSV" } }))
        (filters(query))
        div data-live {
            @if rows.is_empty() && filtered {
                (empty("No matching requests", html! {
                    p {
                        "A request id is " code { "chatcmpl_" } " and 32 digits. "
                        "Requests are deleted after the retention period."
                    }
                    p { a href="/requests" { "Show all requests" } }
                }))
            } @else if rows.is_empty() {
                (empty("No requests yet", html! {
                    p {
                        "Send the first one: " a href="/" { "the overview has an example" } ", or use the "
                        a href="/playground" { "playground" } "."
                    }
                }))
            } @else {
                (table(&rows))
                nav.pages aria-label="Pages of requests" {
                    @if !query.get("before").is_empty() { a.button.plain href=(kept.with("before", "")) { "Newest" } }
                    @if let Some(last) = rows.last().filter(|_| more) {
                        a.button.plain href=(kept.with("before", &last.request_id.to_string())) { "Older" }
                    }
                }
            }
        }
    };
    Ok(user.page(Area::Requests, "Requests", content))
}

fn filters(query: &Fields) -> Markup {
    let status = query.get("status");
    html! {
        form.filters method="get" action="/requests" role="search" {
            label { "Request id" input type="search" name="id" value=(query.get("id")) placeholder="chatcmpl_…"; }
            label { "Key" input type="search" name="key" value=(query.get("key")) placeholder="public id"; }
            label { "Status"
                select name="status" {
                    option value="" { "All" }
                    @for code in ["200", "400", "403", "413", "499", "502", "503"] {
                        option value=(code) selected[status == code] { (code) }
                    }
                }
            }
            button.plain type="submit" { "Apply" }
        }
    }
}

fn table(rows: &[RecordedRequest]) -> Markup {
    let tokens = |figure: Option<u32>| format::number_or_dash(figure.map(u64::from));
    html! {
        @let head = columns(&["Request", "Received", "Key", "Outcome", ">Tokens in + out", ">Total", ">Latency"]);
        (data_table("Requests", head, html! {
            @for row in rows {
                tr {
                    th scope="row" data-label="Request" {
                        a href={ "/requests/" (row.request_id) } { code { (row.request_id) } }
                    }
                    td data-label="Received" { (time(row.request_id.timestamp())) }
                    td data-label="Key" { (row.key_name) }
                    td data-label="Outcome" { (outcome(row)) }
                    td.right data-label="Tokens in + out" {
                        (tokens(row.usage.prompt)) " + " (tokens(row.usage.completion))
                    }
                    td.right data-label="Total" { (tokens(row.usage.total)) }
                    td.right.nowrap data-label="Latency" { (format::micros(row.total_us as f64)) }
                }
            }
        }))
    }
}

fn outcome(row: &RecordedRequest) -> Markup {
    let class = match row.code {
        None => "active",
        Some(_) => "revoked",
    };
    html! { span class={ "badge " (class) } { (row.status) } " " (row.code.as_deref().unwrap_or("ok")) }
}

pub(crate) async fn detail(user: &SignedIn<'_>, id: &str) -> ConsoleResult {
    let id: RequestId = id.parse().map_err(|_| ConsoleError::NotFound)?;
    let row = user.console.store.request(user.viewer(), id).await?.ok_or(ConsoleError::NotFound)?;
    let figure = |figure: Option<u32>| figure.map_or_else(|| "not measured".into(), |figure| number(figure.into()));
    let content = html! {
        (heading("Request", html! { a.button href="/requests" { "All requests" } }))
        section.card {
            (copyable("request-id", &row.request_id.to_string()))
            dl.facts {
                dt { "Outcome" } dd { (outcome(&row)) }
                dt { "Key" } dd { a href={ "/keys/" (row.key) } { (row.key_name) } " " code.quiet { (row.key) } }
                dt { "Prompt tokens" } dd { (figure(row.usage.prompt)) }
                dt { "Completion tokens" } dd { (figure(row.usage.completion)) }
                dt { "Total tokens" } dd { (figure(row.usage.total)) }
                dt { "Grounding" } dd { (grounding(&row)) }
            }
        }
        section.card #timeline { h2 { "Timeline" } (timeline(&row)) }
    };
    Ok(user.page(Area::Requests, "Request", content))
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
        events.push(("Completed", at, Some(inference), "completion received"));
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
