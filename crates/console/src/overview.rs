//! Status, the last 24 hours, where the API is, and a first request to copy.

use api::Health;
use maud::{Markup, html};
use runtimes::Availability;

use crate::components::{copyable, empty, failed, heading, measured};
use crate::error::ConsoleResult;
use crate::layout::Area;
use crate::runtime_table;
use crate::session::SignedIn;
use crate::usage;

const KEY_VARIABLE: &str = "$ADRIATICUM_API_KEY";

pub(crate) async fn page(user: &SignedIn<'_>) -> ConsoleResult {
    let base_url = &user.console.settings.api_base_url;
    let has_keys = user.console.store.has_keys(user.viewer()).await?;
    let recent = usage::last_day(user).await?;
    let health = user.console.api.health();
    let content = html! {
        (heading("Overview", html! {}))
        @if !has_keys {
            (empty("Start with an API key", html! {
                p { "Requests are authenticated with an API key. Create one, then copy the request below." }
                p { a.button.primary href="/keys#create" { "Create API key" } }
            }))
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
            section.card data-live { (runtime_table::table(&health.runtimes, user.is_admin())) }
        }
        section.card {
            h2 { "The API" }
            p { "Base URL" }
            (copyable("base-url", base_url))
            p.quiet {
                "One endpoint: " code { "POST " (base_url) "/chat/completions" } ", model " code { (chat::MODEL) } "."
            }
            p.quiet { "OpenAPI: " a href="/openapi.json" { "openapi.json" } }
        }
        section.card {
            h2 { "Make a request" }
            @for (at, (language, text)) in snippets(base_url).iter().enumerate() {
                details name="snippet" open[at == 0] {
                    summary { (language) }
                    (copyable(&format!("snippet-{at}"), text))
                }
            }
        }
    };
    Ok(user.page(Area::Overview, "Overview", content))
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
        Availability::Unconfigured => (false, "not configured: requests get 503".into()),
    };
    let light = |good: bool| if good { "light good" } else { "light bad" };
    html! {
        div.card {
            h2 { "Status" }
            dl.status {
                div { dt { "Runtime" } dd { span class=(light(good)) {} (runtime) } }
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
                                span class=(light(search.is_healthy)) {}
                                @if search.is_healthy { "healthy: answers that need facts are grounded" }
                                @else { "unhealthy: requests that need facts get 503" }
                                @if user.is_admin() { " · " span.quiet { (search.address) } }
                            }
                        }
                    }
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

fn snippets(base_url: &str) -> [(&'static str, String); 4] {
    [
        ("curl", curl(base_url, KEY_VARIABLE)),
        ("Python", fill(include_str!("../assets/snippets/request.py"), base_url)),
        ("JavaScript", fill(include_str!("../assets/snippets/request.js"), base_url)),
        ("Rust", fill(include_str!("../assets/snippets/request.rs.txt"), base_url)),
    ]
}

pub(crate) fn curl(base_url: &str, key: &str) -> String {
    fill(include_str!("../assets/snippets/request.sh"), base_url).replace("{key}", key)
}

fn fill(template: &str, base_url: &str) -> String {
    template.trim_end().replace("{base_url}", base_url).replace("{model}", chat::MODEL)
}
