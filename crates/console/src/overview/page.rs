//! The overview: status, the last 24 hours, the API's base URL, and requests to copy.

use api::{Health, SearchOutage};
use maud::{Markup, html};
use runtimes::Availability;

use crate::overview::runtime_table::runtime_table;
use crate::page::{Area, ConsoleResult, SignedIn, copyable, empty, failed, measured};
use crate::playground;
use crate::usage;

pub(crate) async fn page(user: &SignedIn<'_>) -> ConsoleResult {
    let base_url = &user.console.settings.api_base_url;
    let has_keys = user.store().keys().exist(user.viewer()).await?;
    let expiring = user.store().keys().count_expiring(user.viewer()).await?;
    let recent = usage::last_day(user).await?;
    let health = user.console.api.health();
    let content = html! {
        @if !has_keys {
            (empty("Start with an API key", html! {
                p { "Requests are authenticated with an API key. Create one, then copy the request below." }
                p { a.button.primary href="/keys#create" { "Create API key" } }
            }))
        }
        @if expiring > 0 {
            p.warning role="status" {
                (expiry_warning(expiring)) " "
                a href="/keys?state=active&sort=expires" { "Show the keys that expire next" }
            }
        }
        section.cards data-live {
            (status(user, &health))
            div.card {
                h2 { "Last 24 hours" }
                p.figure { (format::number(recent.totals.requests)) " " span.unit { "requests" } }
                p.quiet {
                    (format::number(failed(&recent.totals, recent.succeeded))) " failed · tokens: "
                    (measured(recent.totals.total, recent.totals.requests))
                }
                p { a href="/usage" { "View usage" } }
            }
        }
        @if health.runtimes.len() > 1 {
            section.card data-live { (runtime_table(&health.runtimes, user.is_admin())) }
        }
        section.card {
            h2 { "API" }
            p { "Base URL" }
            (copyable("base-url", base_url))
            p.quiet {
                "One endpoint: " code { "POST " (base_url) "/chat/completions" } ", model " code { (chat::MODEL) } "."
            }
            p.quiet { "OpenAPI: " a href="/openapi.json" { "openapi.json" } }
        }
        section.card #request {
            h2 { "Make a request" }
            @for (at, (language, text)) in playground::examples(base_url).iter().enumerate() {
                details name="snippet" open[at == 0] {
                    summary { (language) }
                    (copyable(&format!("snippet-{at}"), text))
                }
            }
        }
    };
    Ok(user.page(Area::Overview, "Overview", html! {}, content))
}

fn expiry_warning(keys: u64) -> String {
    match keys {
        1 => "An API key expires within a week.".into(),
        _ => format!("{} API keys expire within a week.", format::number(keys)),
    }
}

fn status(user: &SignedIn<'_>, health: &Health) -> Markup {
    let healthy = health.runtimes.iter().filter(|runtime| runtime.healthy).count();
    let all = health.runtimes.len();
    let (good, runtime) = match health.availability {
        Availability::Available if all > 1 && healthy > 0 => (healthy == all, format!("{healthy} of {all} healthy")),
        Availability::Available if healthy > 0 => (true, "healthy".into()),
        Availability::Available => (false, "unhealthy: requests get 502".into()),
        Availability::Starting => (false, "loading the model: requests get 503 until it is loaded".into()),
        Availability::Unresponsive => (false, "the engine does not respond: requests get 503".into()),
        Availability::Unloadable => (false, "the model could not be loaded: requests get 503".into()),
        Availability::Unconfigured => (false, "not configured: requests get 503".into()),
    };
    let light = |good: bool| if good { "light good" } else { "light bad" };
    html! {
        div.card {
            h2 { "Status" }
            dl.status {
                div { dt { "Runtime" } dd { span class=(light(good)) {} (runtime) } }
                @if user.is_admin() && matches!(health.availability, Availability::Unconfigured | Availability::Unloadable) {
                    (next_step(html! { "Run " code { "adriaticum model fetch" } ", or set " code { "runtime.urls" } "." }))
                }
                @for member in health.runtimes.iter().filter(|_| all == 1) {
                    div.member {
                        dt { (member.model.as_deref().unwrap_or("unknown model")) }
                        dd {
                            span class=(light(member.healthy)) {}
                            (format::number(member.in_flight as u64)) " in flight"
                            @if let Some(device) = &member.device { " · " span.quiet { (device) } }
                            @if user.is_admin() && !member.url.starts_with("unix:") {
                                " · " span.quiet { (member.url) }
                            }
                        }
                    }
                }
                div {
                    dt { "Search" }
                    dd {
                        @match &health.search {
                            None => { span.light {} "not configured: answers are not grounded" }
                            Some(search) => {
                                span class=(light(search.outage.is_none())) {}
                                (search_state(search.outage))
                                @if user.is_admin() { " · " span.quiet { (search.address) } }
                            }
                        }
                    }
                }
                @if user.is_admin() && health.search.is_none() {
                    (next_step(html! {
                        "Run " code { "adriaticum index add FOLDER" } ", or set " code { "search.url" } "."
                    }))
                }
                div {
                    dt { "Ledger" }
                    dd {
                        span class=(light(health.is_ledger_healthy)) {}
                        (if health.is_ledger_healthy { "recording" } else { "not recording: requests get 503" })
                    }
                }
            }
        }
    }
}

fn search_state(outage: Option<SearchOutage>) -> &'static str {
    match outage {
        None => "healthy: answers that need facts are grounded",
        Some(SearchOutage::NoAnswer) => "not responding: requests that need facts get 503",
        Some(SearchOutage::IndexGone) => "the index is missing: requests that need facts get 503",
        Some(SearchOutage::IndexReplaced) => "the index was replaced: requests that need facts get 503",
        Some(SearchOutage::IndexUnreadable) => "the index cannot be read: requests that need facts get 503",
    }
}

/// What an administrator can do about the line above.
fn next_step(content: Markup) -> Markup {
    html! { div { dt {} dd.quiet.small { (content) } } }
}
