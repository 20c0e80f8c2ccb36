//! The list of API keys, with search, filter, sort order and pages.

use std::collections::HashMap;
use std::time::Duration;

use chat::KeyId;
use format::{key_state, number};
use maud::{Markup, html};
use store::{Figures, KeyOrder, KeyRecord, KeySearch, KeyState, Period};

use crate::keys::key::{badges, create_form};
use crate::page::{
    Area, Column, ConsoleResult, Direction, Draft, Fields, Order, Paging, SignedIn, data_table, empty, measured, now,
    or_placeholder, relative_time, search_input, select,
};

/// The period in which requests and tokens are counted.
const RECENT: Duration = Duration::from_secs(30 * 86_400);
const STATES: [KeyState; 3] = [KeyState::Active, KeyState::Expired, KeyState::Revoked];
/// Fields of the query that stay from page to page.
const FILTERS: [&str; 3] = ["find", "state", "sort"];

/// A key and its recent use.
type FoundKey = (KeyId, Figures);

/// The database sorts by all columns but those of usage.
const COLUMNS: [Column<FoundKey>; 6] = [
    Column::text("name", "Name", |_| String::new()),
    Column::time("created", "Created", |_| None),
    Column::time("used", "Last used", |_| None),
    Column::number("requests", "Requests (30 d)", |(_, figures)| Some(figures.requests.into())),
    Column::number("tokens", "Tokens (30 d)", |(_, figures)| Some(figures.total.sum.into())),
    Column::due_time("expires", "Expires", |_| None),
];

type UsageOfKeys = HashMap<KeyId, Figures>;

pub(crate) async fn page(user: &SignedIn<'_>, query: &Fields, draft: &Draft) -> ConsoleResult {
    let store = user.store();
    let usage = recent_usage(user).await?;
    let (order, kept) = (Order::from_query(query, &COLUMNS, "-created"), query.only(&FILTERS));
    let found = find(user, query, &order, &usage).await?;
    let paging = Paging::new(query, found.len());
    let ids: Vec<KeyId> = paging.cut(&found).iter().map(|(key, _)| *key).collect();
    let keys = store.keys().with_ids(user.viewer(), &ids).await?;
    let has_keys = !found.is_empty() || store.keys().exist(user.viewer()).await?;
    let actions = html! { @if has_keys { a.button.primary href="#create" { "Create API key" } } };
    let content = html! {
        @if !has_keys {
            (empty("No keys yet", html! {
                p { "Requests are authenticated with an API key. It is shown once, right after it is created." }
                p { a.button.primary href="#create" { "Create API key" } }
            }))
        } @else {
            (filters(query, &order))
            @if found.is_empty() {
                (empty("No matching keys", html! {
                    p { "No key in this state has the search text in its name, id, project or owner's e-mail address." }
                    p { a.button href="/keys" { "Show all keys" } }
                }))
            } @else {
                (table(user, &keys, &usage, &order, &kept))
                (paging.links(&kept, "key", ""))
            }
        }
        (create_form(user, draft))
    };
    Ok(user.page(Area::Keys, "API Keys", actions, content).with_status(draft.status()))
}

async fn recent_usage(user: &SignedIn<'_>) -> ConsoleResult<UsageOfKeys> {
    let period = Period::since(now().saturating_sub(RECENT));
    Ok(user.store().usage().by_key(user.viewer(), period).await?)
}

/// All matching keys, sorted.
async fn find(
    user: &SignedIn<'_>,
    query: &Fields,
    order: &Order<'_, FoundKey>,
    usage: &UsageOfKeys,
) -> ConsoleResult<Vec<FoundKey>> {
    let state = STATES.into_iter().find(|state| key_state(*state) == query.get("state"));
    let search = KeySearch { text: query.get("find"), state };
    let column = match order.name() {
        "name" => KeyOrder::Name,
        "used" => KeyOrder::LastUsed,
        "expires" => KeyOrder::Expiry,
        _ => KeyOrder::Created,
    };
    let descending = order.direction == Direction::Descending;
    let keys = user.store().keys().search(user.viewer(), &search, column, descending).await?;
    let figures = |key| usage.get(&key).copied().unwrap_or_default();
    let mut found: Vec<_> = keys.into_iter().map(|key| (key, figures(key))).collect();
    order.sort(&mut found);
    Ok(found)
}

fn filters(query: &Fields, order: &Order<'_, FoundKey>) -> Markup {
    let states = [("", "All")].into_iter().chain(STATES.map(key_state).map(|state| (state, state)));
    html! {
        form.filters method="get" action="/keys" role="search" {
            (search_input("Search", "find", query.get("find"), "name, id, owner"))
            (select("State", "state", states, query.get("state")))
            (order.choice())
            button.plain type="submit" { "Apply" }
        }
    }
}

fn table(
    user: &SignedIn<'_>,
    keys: &[KeyRecord],
    usage: &UsageOfKeys,
    order: &Order<'_, FoundKey>,
    kept: &Fields,
) -> Markup {
    let head = html! {
        (order.head(kept, ""))
        th scope="col" { "State" }
    };
    let rows = html! { @for key in keys { (row(user, key, usage.get(&key.id).copied().unwrap_or_default())) } };
    html! { div.key-list { (data_table("API keys", head, rows)) } }
}

fn row(user: &SignedIn<'_>, key: &KeyRecord, figures: Figures) -> Markup {
    let state = key.state(now());
    let name = format!("key-{}", key.id);
    html! {
        tr.over[state != KeyState::Active] {
            th #(name) scope="row" data-label="Name" {
                a href={ "/keys/" (key.id) } { (key.name) }
                div.quiet.small { code { "adria_" (key.id) "_…" } }
                @if let Some(project) = &key.project { div.small { (project) } }
                @if user.is_admin() { div.quiet.small { (key.owner.as_deref().unwrap_or("command line")) } }
            }
            td data-label="Created" { (relative_time(key.created_at)) }
            td data-label="Last used" { (or_placeholder(key.last_used_at.map(relative_time), "never")) }
            td.right data-label="Requests (30 d)" {
                @if figures.requests == 0 { "0" }
                @else { a href={ "/usage?range=30d&key=" (key.id) } { (number(figures.requests)) } }
            }
            td.right data-label="Tokens (30 d)" { (measured(figures.total, figures.requests)) }
            td data-label="Expires" { (or_placeholder(key.expires_at.map(relative_time), "never")) }
            td data-label="State" {
                (badges(key))
                @if !key.completions { div.quiet.small { "no permissions" } }
                @if key.revoked_at.is_none() {
                    div.small { a href={ "/keys/" (key.id) "/revoke" } aria-describedby=(name) { "Revoke" } }
                }
            }
        }
    }
}
