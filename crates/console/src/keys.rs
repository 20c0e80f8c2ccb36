//! API keys: the table, making one, renaming, revoking.

use std::cmp::Reverse;
use std::collections::HashMap;

use chat::{KeyId, KeyName};
use format::{key_state, number};
use maud::{Markup, html};
use store::{KeyRecord, KeyState, KeyUsage, NewKey, Period, RequestQuery};

use crate::form::Form;
use crate::overview::curl;
use crate::page::{self, Area, complaint, copyable, token};
use crate::reply::{Problem, Reply};
use crate::room::Room;
use crate::show::{self, measured, time, time_or};
use crate::visit::Fields;

const DAY: u64 = 86_400_000;
/// Keys on one page.
const PAGE: usize = 100;
/// How long a key may live, by choice: the name in the form, what it says, and days.
const LIVES: [(&str, &str, Option<u64>); 5] = [
    ("never", "Does not expire", None),
    ("30", "30 days", Some(30)),
    ("90", "90 days", Some(90)),
    ("180", "180 days", Some(180)),
    ("365", "One year", Some(365)),
];

/// What somebody typed into the form for a new key.
#[derive(Default)]
struct Typed<'a> {
    name: &'a str,
    without_completions: bool,
    life: &'a str,
    complaint: Option<&'a str>,
}

pub(crate) async fn list(room: &Room<'_>, query: &Fields) -> Result<Reply, Problem> {
    let content = listed(room, query, &Typed::default()).await?;
    Ok(Reply::page(page::page(room, Area::Keys, "API Keys", content)))
}

async fn listed(room: &Room<'_>, query: &Fields, typed: &Typed<'_>) -> Result<Markup, Problem> {
    let all = room.console.store.list_keys(room.viewer()).await?;
    let used = used(room).await?;
    let (found, shown) = (all.len(), select(&all, &used, query));
    let page: usize = query.get("page").parse().unwrap_or(1).max(1);
    let last = shown.len().div_ceil(PAGE).max(1);
    let rows = shown.iter().skip((page - 1) * PAGE).take(PAGE);
    Ok(html! {
        (page::heading("API Keys", html! { a.button.primary href="#create" { "Create a key" } }))
        @if found == 0 {
            (page::empty("No keys yet", html! { p { "Create the first one below. It is shown once, right after it is made." } }))
        } @else {
            (filters(query))
            @if shown.is_empty() {
                (page::empty("No key matches", html! { p { a href="/keys" { "Show all keys" } } }))
            } @else {
                (table(room, rows.copied(), &used, query))
                @if last > 1 { (pages(query, page, last, shown.len())) }
            }
        }
        (creation(room, typed))
    })
}

/// Sums of the last 30 days by key.
async fn used(room: &Room<'_>) -> Result<HashMap<KeyId, KeyUsage>, Problem> {
    let period = Period::since(show::now().saturating_sub(30 * DAY));
    let used = room.console.store.usage_by_key(room.viewer(), period).await?;
    Ok(used.into_iter().map(|usage| (usage.key, usage)).collect())
}

/// Filters and sorts.
fn select<'k>(all: &'k [KeyRecord], used: &HashMap<KeyId, KeyUsage>, query: &Fields) -> Vec<&'k KeyRecord> {
    let now = show::now();
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
    let requests = |key: &KeyRecord| used.get(&key.id).map_or(0, |usage| usage.figures.requests);
    let tokens = |key: &KeyRecord| used.get(&key.id).map_or(0, |usage| usage.figures.total.sum);
    match query.get("sort") {
        "name" => keys.sort_by_key(|key| key.name.to_lowercase()),
        "used" => keys.sort_by_key(|key| Reverse(key.last_used_at)),
        "requests" => keys.sort_by_key(|key| Reverse(requests(key))),
        "tokens" => keys.sort_by_key(|key| Reverse(tokens(key))),
        "expires" => keys.sort_by_key(|key| key.expires_at.unwrap_or(u64::MAX)),
        _ => keys.reverse(),
    }
    keys
}

fn filters(query: &Fields) -> Markup {
    let state = query.get("state");
    html! {
        form.filters method="get" action="/keys" role="search" {
            label { "Find" input type="search" name="find" value=(query.get("find")) placeholder="name, id or owner"; }
            label { "State"
                select name="state" {
                    option value="" { "All" }
                    @for name in [KeyState::Active, KeyState::Expired, KeyState::Revoked].map(key_state) { option value=(name) selected[state == name] { (name) } }
                }
            }
            input type="hidden" name="sort" value=(query.get("sort"));
            button.plain type="submit" { "Apply" }
        }
    }
}

fn table<'k>(
    room: &Room<'_>,
    keys: impl Iterator<Item = &'k KeyRecord>,
    used: &HashMap<KeyId, KeyUsage>,
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
                    (column("used", "Last used", "")) (column("requests", "Requests, 30 d", "right"))
                    (column("tokens", "Tokens, 30 d", "right")) (column("expires", "Expires", ""))
                    th scope="col" { "State, permissions" } th scope="col" { span.hidden { "Actions" } }
                } }
                tbody { @for key in keys { (row(room, key, used.get(&key.id))) } }
            }
        }
    }
}

fn row(room: &Room<'_>, key: &KeyRecord, usage: Option<&KeyUsage>) -> Markup {
    let state = key.state(show::now());
    let figures = usage.map(|usage| usage.figures).unwrap_or_default();
    html! {
        tr.over[state != KeyState::Active] {
            th scope="row" data-label="Name" {
                a href={ "/keys/" (key.id) } { (key.name) }
                div.quiet.small { code { "adria_" (key.id) "_…" } }
                @if room.is_admin() { div.quiet.small { (key.owner.as_deref().unwrap_or("command line")) } }
            }
            td data-label="Created" { (time(key.created_at)) }
            td data-label="Last used" { (time_or(key.last_used_at, "never")) }
            td.right data-label="Requests, 30 d" {
                @if figures.requests > 0 { a href={ "/usage?range=30d&key=" (key.id) } { (number(figures.requests)) } } @else { "0" }
            }
            td.right data-label="Tokens, 30 d" { (measured(figures.total, figures.requests)) }
            td data-label="Expires" { (time_or(key.expires_at, "never")) }
            td data-label="State, permissions" {
                (badge(state))
                div.quiet.small { (if key.completions { "completions" } else { "none" }) }
            }
            td.actions {
                details.rename {
                    summary { "Rename" span.hidden { " " (key.name) } }
                    form method="post" action={ "/keys/" (key.id) "/rename" } {
                        (token(room))
                        input type="hidden" name="back" value="list";
                        input name="name" required maxlength=(KeyName::MAX_CHARS) value=(key.name) aria-label={ "New name of " (key.name) }
                            autocomplete="off";
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

fn pages(query: &Fields, page: usize, last: usize, keys: usize) -> Markup {
    html! {
        nav.pages aria-label="Pages of keys" {
            @if page > 1 { a.button.plain href=(query.with("page", &(page - 1).to_string())) { "Back" } }
            span { "Page " (number(page as u64)) " of " (number(last as u64)) ", " (number(keys as u64)) " keys" }
            @if page < last { a.button.plain href=(query.with("page", &(page + 1).to_string())) { "On" } }
        }
    }
}

fn creation(room: &Room<'_>, typed: &Typed<'_>) -> Markup {
    html! {
        section.card #create {
            h2 { "Create a key" }
            (complaint(typed.complaint))
            form.fields method="post" action="/keys" {
                (token(room))
                label { "Name"
                    input name="name" required maxlength=(KeyName::MAX_CHARS) value=(typed.name) placeholder="What will use it?" autocomplete="off";
                }
                label { "Expiry"
                    select name="life" {
                        @for (value, says, _) in LIVES { option value=(value) selected[typed.life == value] { (says) } }
                    }
                }
                label.check {
                    input type="checkbox" name="completions" value="yes" checked[!typed.without_completions];
                    span { "May execute completions" }
                }
                button.primary type="submit" { "Create key" }
            }
        }
    }
}

pub(crate) async fn create(room: &Room<'_>, form: &Form) -> Result<Reply, Problem> {
    let name = match parse_name(form.get("name")) {
        Ok(name) => name,
        Err(sentence) => {
            let typed = Typed {
                name: form.get("name"),
                without_completions: !form.has("completions"),
                life: form.get("life"),
                complaint: Some(&sentence),
            };
            let content = listed(room, &Fields::default(), &typed).await?;
            return Ok(Reply::page_as(
                http::StatusCode::BAD_REQUEST,
                page::page(room, Area::Keys, "API Keys", content),
            ));
        }
    };
    let days = LIVES.iter().find(|(value, ..)| *value == form.get("life")).and_then(|(.., days)| *days);
    let expires_at = days.map(|days| show::now() + days * DAY);
    let new = NewKey { name: name.clone(), completions: form.has("completions"), expires_at };
    let key = room.console.store.create_key(room.viewer(), new).await?;
    let content = html! {
        (page::heading("API Keys", html! {}))
        p.message role="status" { "The key " strong { (name) } " was created." }
        section.card {
            h2 { "This is the key" }
            p { "Copy it now. It is shown this once; we keep nothing from which it could be told again." }
            (copyable("key", key.reveal()))
            h2 { "Try it" }
            (copyable("try", &curl(&room.console.settings.api_base_url, key.reveal())))
            p { a.button href="/keys" { "I have copied it" } }
        }
    };
    Ok(Reply::page(page::page(room, Area::Keys, "Key created", content)))
}

/// A name that a key can have, or what is wrong with it.
fn parse_name(typed: &str) -> Result<String, String> {
    if typed.trim().is_empty() {
        return Err("The key needs a name, so that you know later what it is for.".into());
    }
    let name = KeyName::parse(typed).map_err(|_| {
        format!("The name can have at most {} characters, and no control characters.", KeyName::MAX_CHARS)
    })?;
    Ok(name.into())
}

/// One key: its name to be changed in place, and everything about it.
pub(crate) async fn one(room: &Room<'_>, id: &str) -> Result<Reply, Problem> {
    let key = find(room, id).await?;
    let content = one_content(room, &key, &key.name, None);
    Ok(Reply::page(page::page(room, Area::Keys, &key.name, content)))
}

fn one_content(room: &Room<'_>, key: &KeyRecord, typed: &str, wrong: Option<&str>) -> Markup {
    html! {
        (page::heading(&key.name, html! {
            a.button href={ "/usage?range=30d&key=" (key.id) } { "Usage" }
            a.button href={ "/requests?key=" (key.id) } { "Requests" }
            @if key.revoked_at.is_none() && !key.playground {
                a.button.danger href={ "/keys/" (key.id) "/revoke" } { "Revoke" }
            }
        }))
        section.card {
            (complaint(wrong))
            @if key.playground {
                p { "This stands for what its owner does at the playground. Nobody can present it." }
            } @else {
                form.fields method="post" action={ "/keys/" (key.id) "/rename" } {
                    (token(room))
                    label { "Name" input name="name" required maxlength=(KeyName::MAX_CHARS) value=(typed) autocomplete="off"; }
                    button type="submit" { "Rename" }
                }
            }
            dl.facts {
                dt { "Key" } dd { code { "adria_" (key.id) "_…" } }
                dt { "State" } dd { (badge(key.state(show::now()))) }
                dt { "Permissions" } dd { (if key.completions { "completions" } else { "none" }) }
                dt { "Owner" } dd { (key.owner.as_deref().unwrap_or("command line")) }
                dt { "Created" } dd { (time(key.created_at)) }
                dt { "Last used" } dd { (time_or(key.last_used_at, "never")) }
                dt { "Expires" } dd { (time_or(key.expires_at, "never")) }
                @if let Some(at) = key.revoked_at { dt { "Revoked" } dd { (time(at)) } }
            }
        }
    }
}

pub(crate) async fn rename(room: &Room<'_>, id: &str, form: &Form) -> Result<Reply, Problem> {
    let key = find(room, id).await?;
    match parse_name(form.get("name")) {
        Ok(name) => match room.console.store.rename_key(room.viewer(), key.id, &name).await? {
            true => {
                let back = if form.get("back") == "list" { "/keys".into() } else { format!("/keys/{}", key.id) };
                Ok(room.redirect_saying(&back, &format!("{} is now called {name}.", key.name)))
            }
            false => Err(Problem::NotFound),
        },
        Err(sentence) => {
            let content = one_content(room, &key, form.get("name"), Some(&sentence));
            Ok(Reply::page_as(http::StatusCode::BAD_REQUEST, page::page(room, Area::Keys, &key.name, content)))
        }
    }
}

pub(crate) async fn confirm_revoking(room: &Room<'_>, id: &str) -> Result<Reply, Problem> {
    let key = find(room, id).await?;
    let newest = RequestQuery { key: Some(key.id), limit: 1, ..RequestQuery::default() };
    let last = room.console.store.requests(room.viewer(), &newest).await?;
    let content = html! {
        section.card.narrow {
            h1 { "Revoke " (key.name) "?" }
            p { "The key " code { "adria_" (key.id) "_…" } " is refused from the next request on. This cannot be undone." }
            @match (key.last_used_at, last.first()) {
                (Some(_), Some(last)) => p {
                    "It was last used by the request " a href={ "/requests/" (last.request_id) } { code { (last.request_id) } }
                    ", received " (time(last.request_id.unix_micros() / 1000)) ". Whatever sent it will get 401."
                },
                (Some(at), None) => p { "It was last used " (time(at)) ". Whatever used it will get 401." },
                (None, _) => p { "It has never been used." },
            }
            form.actions method="post" action={ "/keys/" (key.id) "/revoke" } {
                (token(room))
                button.danger type="submit" { "Revoke " (key.name) }
                a.button.plain href="/keys" { "Keep it" }
            }
        }
    };
    Ok(Reply::page(page::page(room, Area::Keys, "Revoke a key", content)))
}

pub(crate) async fn revoke(room: &Room<'_>, id: &str, _form: &Form) -> Result<Reply, Problem> {
    let key = find(room, id).await?;
    match room.console.store.revoke_key(room.viewer(), key.id).await? {
        Some(_) => {
            let message = format!("{} was revoked. The next request with it is refused.", key.name);
            Ok(room.redirect_saying("/keys", &message))
        }
        None => Err(Problem::NotFound),
    }
}

async fn find(room: &Room<'_>, id: &str) -> Result<KeyRecord, Problem> {
    let id: KeyId = id.parse().map_err(|_| Problem::NotFound)?;
    room.console.store.key(room.viewer(), id).await?.ok_or(Problem::NotFound)
}
