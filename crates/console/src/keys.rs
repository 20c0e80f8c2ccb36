//! API keys: the list, creating, renaming, revoking.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use chat::{KeyId, KeyName, Timestamp};
use format::{key_state, number};
use http::StatusCode;
use maud::{Markup, html};
use store::{KeyRecord, KeyState, KeyUsage, NewKey, Period, RequestQuery};

use crate::components::{copyable, csrf_field, empty, form_error, heading, measured, now, time, time_or};
use crate::console_request::Fields;
use crate::error::{ConsoleError, ConsoleResult};
use crate::form::Form;
use crate::layout::Area;
use crate::overview::curl;
use crate::session::SignedIn;
use crate::{key_settings, limits};

const DAY: Duration = Duration::from_secs(86_400);
const PAGE_SIZE: usize = 100;
/// The value in the form, its label, and days.
const EXPIRY_CHOICES: [(&str, &str, Option<u32>); 5] = [
    ("never", "No expiration", None),
    ("30", "30 days", Some(30)),
    ("90", "90 days", Some(90)),
    ("180", "180 days", Some(180)),
    ("365", "1 year", Some(365)),
];

#[derive(Default)]
struct NewKeyForm<'a> {
    name: &'a str,
    without_completions: bool,
    life: &'a str,
    error: Option<&'a str>,
}

pub(crate) async fn list(user: &SignedIn<'_>, query: &Fields) -> ConsoleResult {
    let content = list_content(user, query, &NewKeyForm::default()).await?;
    Ok(user.page(Area::Keys, "API Keys", content))
}

async fn list_content(user: &SignedIn<'_>, query: &Fields, form: &NewKeyForm<'_>) -> ConsoleResult<Markup> {
    let all = user.console.store.list_keys(user.viewer()).await?;
    let usage = recent_usage(user).await?;
    let (found, shown) = (all.len(), select(&all, &usage, query));
    let page: usize = query.get("page").parse().unwrap_or(1).max(1);
    let last = shown.len().div_ceil(PAGE_SIZE).max(1);
    let rows = shown.iter().skip((page - 1) * PAGE_SIZE).take(PAGE_SIZE);
    Ok(html! {
        (heading("API Keys", html! { a.button.primary href="#create" { "Create API key" } }))
        @if found == 0 {
            (empty("No keys yet", html! {
                p { "Create the first one below. It is shown once, right after it is created." }
            }))
        } @else {
            (filters(query))
            @if shown.is_empty() {
                (empty("No matching keys", html! { p { a href="/keys" { "Show all keys" } } }))
            } @else {
                (table(user, rows.copied(), &usage, query))
                @if last > 1 { (pagination(query, page, last, shown.len())) }
            }
        }
        (create_form(user, form))
    })
}

/// By key, over the last 30 days.
async fn recent_usage(user: &SignedIn<'_>) -> ConsoleResult<HashMap<KeyId, KeyUsage>> {
    let period = Period::since(now().saturating_sub(30 * DAY));
    let usage = user.console.store.usage_by_key(user.viewer(), period).await?;
    Ok(usage.into_iter().map(|usage| (usage.key, usage)).collect())
}

fn select<'k>(all: &'k [KeyRecord], usage: &HashMap<KeyId, KeyUsage>, query: &Fields) -> Vec<&'k KeyRecord> {
    let now = now();
    let (wanted, state) = (query.get("find").to_lowercase(), query.get("state"));
    let mut keys: Vec<_> = all
        .iter()
        .filter(|key| {
            let owner = key.owner.as_deref().unwrap_or_default();
            let matches = wanted.is_empty()
                || key.name.to_lowercase().contains(&wanted)
                || owner.contains(&wanted)
                || format!("adria_{}", key.id).to_lowercase().contains(&wanted);
            matches && (state.is_empty() || state == key_state(key.state(now)))
        })
        .collect();
    let requests = |key: &KeyRecord| usage.get(&key.id).map_or(0, |usage| usage.figures.requests);
    let tokens = |key: &KeyRecord| usage.get(&key.id).map_or(0, |usage| usage.figures.total.sum);
    match query.get("sort") {
        "name" => keys.sort_by_key(|key| key.name.to_lowercase()),
        "used" => keys.sort_by_key(|key| Reverse(key.last_used_at)),
        "requests" => keys.sort_by_key(|key| Reverse(requests(key))),
        "tokens" => keys.sort_by_key(|key| Reverse(tokens(key))),
        "expires" => keys.sort_by_key(|key| key.expires_at.unwrap_or(Timestamp::MAX)),
        _ => keys.reverse(),
    }
    keys
}

fn filters(query: &Fields) -> Markup {
    let state = query.get("state");
    html! {
        form.filters method="get" action="/keys" role="search" {
            label {
                "Search"
                input type="search" name="find" value=(query.get("find")) placeholder="name, id or owner";
            }
            label { "State"
                select name="state" {
                    option value="" { "All" }
                    @for name in [KeyState::Active, KeyState::Expired, KeyState::Revoked].map(key_state) {
                        option value=(name) selected[state == name] { (name) }
                    }
                }
            }
            input type="hidden" name="sort" value=(query.get("sort"));
            button.plain type="submit" { "Apply" }
        }
    }
}

fn table<'k>(
    user: &SignedIn<'_>,
    keys: impl Iterator<Item = &'k KeyRecord>,
    usage: &HashMap<KeyId, KeyUsage>,
    query: &Fields,
) -> Markup {
    let sort = query.get("sort");
    let column = |name: &str, title: &str, class: &str| {
        html! {
            th scope="col" class=(class) aria-sort=[(sort == name).then_some("descending")] {
                a href=(query.with("sort", name)) { (title) }
            }
        }
    };
    html! {
        div.scroll tabindex="0" role="region" aria-label="API keys" {
            table.rows {
                thead { tr {
                    (column("name", "Name", "")) (column("", "Created", ""))
                    (column("used", "Last used", "")) (column("requests", "Requests (30 d)", "right"))
                    (column("tokens", "Tokens (30 d)", "right")) (column("expires", "Expires", ""))
                    th scope="col" { "State, permissions" } th scope="col" { span.hidden { "Actions" } }
                } }
                tbody { @for key in keys { (row(user, key, usage.get(&key.id))) } }
            }
        }
    }
}

fn row(user: &SignedIn<'_>, key: &KeyRecord, usage: Option<&KeyUsage>) -> Markup {
    let state = key.state(now());
    let figures = usage.map(|usage| usage.figures).unwrap_or_default();
    html! {
        tr.over[state != KeyState::Active] {
            th scope="row" data-label="Name" {
                a href={ "/keys/" (key.id) } { (key.name) }
                div.quiet.small { code { "adria_" (key.id) "_…" } }
                @if user.is_admin() { div.quiet.small { (key.owner.as_deref().unwrap_or("command line")) } }
            }
            td data-label="Created" { (time(key.created_at)) }
            td data-label="Last used" { (time_or(key.last_used_at, "never")) }
            td.right data-label="Requests (30 d)" {
                @if figures.requests == 0 { "0" }
                @else { a href={ "/usage?range=30d&key=" (key.id) } { (number(figures.requests)) } }
            }
            td.right data-label="Tokens (30 d)" { (measured(figures.total, figures.requests)) }
            td data-label="Expires" { (time_or(key.expires_at, "never")) }
            td data-label="State, permissions" {
                (badge(state))
                div.quiet.small { (if key.completions { "completions" } else { "none" }) }
            }
            td.actions {
                details.rename {
                    summary { "Rename" span.hidden { " " (key.name) } }
                    form method="post" action={ "/keys/" (key.id) "/rename" } {
                        (csrf_field(user))
                        input type="hidden" name="back" value="list";
                        input name="name" required maxlength=(KeyName::MAX_CHARS) value=(key.name)
                            aria-label={ "New name of " (key.name) } autocomplete="off";
                        button.plain type="submit" { "Save" }
                    }
                }
                @if key.revoked_at.is_none() {
                    a.button.plain href={ "/keys/" (key.id) "/revoke" } { "Revoke" span.hidden { " " (key.name) } }
                }
            }
        }
    }
}

fn badge(state: KeyState) -> Markup {
    html! { span class={ "badge " (key_state(state)) } { (key_state(state)) } }
}

fn pagination(query: &Fields, page: usize, last: usize, keys: usize) -> Markup {
    html! {
        nav.pages aria-label="Pages of keys" {
            @if page > 1 { a.button.plain href=(query.with("page", &(page - 1).to_string())) { "Previous" } }
            span { "Page " (number(page as u64)) " of " (number(last as u64)) ", " (number(keys as u64)) " keys" }
            @if page < last { a.button.plain href=(query.with("page", &(page + 1).to_string())) { "Next" } }
        }
    }
}

fn create_form(user: &SignedIn<'_>, form: &NewKeyForm<'_>) -> Markup {
    html! {
        section.card #create {
            h2 { "Create API key" }
            (form_error(form.error))
            form.fields method="post" action="/keys" {
                (csrf_field(user))
                label { "Name"
                    input name="name" required maxlength=(KeyName::MAX_CHARS) value=(form.name)
                        placeholder="What will use it?" autocomplete="off";
                }
                label { "Expiration"
                    select name="life" {
                        @for (value, label, _) in EXPIRY_CHOICES {
                            option value=(value) selected[form.life == value] { (label) }
                        }
                    }
                }
                label.check {
                    input type="checkbox" name="completions" value="yes" checked[!form.without_completions];
                    span { "Allow completions" }
                }
                button.primary type="submit" { "Create key" }
            }
        }
    }
}

pub(crate) async fn create(user: &SignedIn<'_>, form: &Form) -> ConsoleResult {
    let name = match parse_name(form.get("name")) {
        Ok(name) => name,
        Err(sentence) => {
            let form = NewKeyForm {
                name: form.get("name"),
                without_completions: !form.has("completions"),
                life: form.get("life"),
                error: Some(&sentence),
            };
            let content = list_content(user, &Fields::default(), &form).await?;
            return Ok(user.page(Area::Keys, "API Keys", content).with_status(StatusCode::BAD_REQUEST));
        }
    };
    let days = EXPIRY_CHOICES.iter().find(|(value, ..)| *value == form.get("life")).and_then(|(.., days)| *days);
    let expires_at = days.map(|days| user.console.store.now() + days * DAY);
    let new = NewKey { name: name.clone(), completions: form.has("completions"), expires_at };
    let key = user.console.store.create_key(user.viewer(), new).await?;
    let content = html! {
        (heading("API Keys", html! {}))
        p.message role="status" { "The key " strong { (name.as_str()) } " was created." }
        section.card {
            h2 { "Your new API key" }
            p { "Copy it now. It is shown only this once: only a hash of it is stored." }
            (copyable("key", key.reveal()))
            h2 { "Try it" }
            (copyable("try", &curl(&user.console.settings.api_base_url, key.reveal())))
            p { a.button href="/keys" { "Done" } }
        }
    };
    Ok(user.page(Area::Keys, "Key created", content))
}

fn parse_name(typed: &str) -> Result<KeyName, String> {
    if typed.trim().is_empty() {
        return Err("Please give the key a name, so that you know later what it is for.".into());
    }
    KeyName::parse(typed)
        .map_err(|_| format!("The name can have at most {} characters, and no control characters.", KeyName::MAX_CHARS))
}

pub(crate) async fn detail(user: &SignedIn<'_>, id: &str) -> ConsoleResult {
    let key = find(user, id).await?;
    let content = detail_content(user, &key, &key.name, None).await?;
    Ok(user.page(Area::Keys, &key.name, content))
}

async fn detail_content(
    user: &SignedIn<'_>,
    key: &KeyRecord,
    typed: &str,
    error: Option<&str>,
) -> ConsoleResult<Markup> {
    let limits = if key.playground {
        html! {}
    } else {
        limits::of_key(user, key.id).await?
    };
    let settings = key_settings::forms(user, key).await?;
    Ok(html! {
        (heading(&key.name, html! {
            a.button href={ "/usage?range=30d&key=" (key.id) } { "Usage" }
            a.button href={ "/requests?key=" (key.id) } { "Requests" }
            @if key.revoked_at.is_none() && !key.playground {
                a.button.danger href={ "/keys/" (key.id) "/revoke" } { "Revoke" }
            }
        }))
        section.card {
            (form_error(error))
            @if key.playground {
                p {
                    "Requests from the owner's playground are recorded under this key. "
                    "It has no secret, so the API does not accept it."
                }
            } @else {
                form.fields method="post" action={ "/keys/" (key.id) "/rename" } {
                    (csrf_field(user))
                    label {
                        "Name"
                        input name="name" required maxlength=(KeyName::MAX_CHARS) value=(typed) autocomplete="off";
                    }
                    button type="submit" { "Rename" }
                }
            }
            dl.facts {
                dt { "Key" } dd { code { "adria_" (key.id) "_…" } }
                dt { "State" } dd { (badge(key.state(now()))) }
                dt { "Permissions" } dd { (if key.completions { "completions" } else { "none" }) }
                dt { "Owner" } dd { (key.owner.as_deref().unwrap_or("command line")) }
                dt { "Created" } dd { (time(key.created_at)) }
                dt { "Last used" } dd { (time_or(key.last_used_at, "never")) }
                dt { "Expires" } dd { (time_or(key.expires_at, "never")) }
                @if let Some(at) = key.revoked_at { dt { "Revoked" } dd { (time(at)) } }
                @if !key.note.is_empty() { dt { "Note" } dd { (key.note) } }
            }
        }
        (limits)
        (settings)
    })
}

pub(crate) async fn rename(user: &SignedIn<'_>, id: &str, form: &Form) -> ConsoleResult {
    let key = find(user, id).await?;
    match parse_name(form.get("name")) {
        Ok(name) => match user.console.store.rename_key(user.viewer(), key.id, &name).await? {
            true => {
                let back = if form.get("back") == "list" { "/keys".into() } else { format!("/keys/{}", key.id) };
                Ok(user.redirect_with_message(&back, &format!("{} is now called {name}.", key.name)))
            }
            false => Err(ConsoleError::NotFound),
        },
        Err(sentence) => {
            let content = detail_content(user, &key, form.get("name"), Some(&sentence)).await?;
            Ok(user.page(Area::Keys, &key.name, content).with_status(StatusCode::BAD_REQUEST))
        }
    }
}

pub(crate) async fn confirm_revoke(user: &SignedIn<'_>, id: &str) -> ConsoleResult {
    let key = find(user, id).await?;
    let newest = RequestQuery { key: Some(key.id), limit: 1, ..RequestQuery::default() };
    let last = user.console.store.requests(user.viewer(), &newest).await?;
    let content = html! {
        section.card.narrow {
            h1 { "Revoke " (key.name) "?" }
            p {
                "The key " code { "adria_" (key.id) "_…" } " will be rejected from the next request on. "
                "This cannot be undone."
            }
            @match (key.last_used_at, last.first()) {
                (Some(_), Some(last)) => p {
                    "It was last used by the request "
                    a href={ "/requests/" (last.request_id) } { code { (last.request_id) } }
                    ", received " (time(last.request_id.timestamp())) ". Clients that use it will get 401."
                },
                (Some(at), None) => p { "It was last used " (time(at)) ". Clients that use it will get 401." },
                (None, _) => p { "It has never been used." },
            }
            form.actions method="post" action={ "/keys/" (key.id) "/revoke" } {
                (csrf_field(user))
                button.danger type="submit" { "Revoke " (key.name) }
                a.button.plain href="/keys" { "Cancel" }
            }
        }
    };
    Ok(user.page(Area::Keys, "Revoke API key", content))
}

pub(crate) async fn revoke(user: &SignedIn<'_>, id: &str, _form: &Form) -> ConsoleResult {
    let key = find(user, id).await?;
    match user.console.store.revoke_key(user.viewer(), key.id).await? {
        Some(_) => {
            let message = format!("{} was revoked. It is rejected from the next request on.", key.name);
            Ok(user.redirect_with_message("/keys", &message))
        }
        None => Err(ConsoleError::NotFound),
    }
}

pub(crate) async fn find(user: &SignedIn<'_>, id: &str) -> ConsoleResult<KeyRecord> {
    let id: KeyId = id.parse().map_err(|_| ConsoleError::NotFound)?;
    user.console.store.key(user.viewer(), id).await?.ok_or(ConsoleError::NotFound)
}
