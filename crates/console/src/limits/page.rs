//! Budgets and limits, with their use, remainder and forecast. People see their own limits and those for everyone.
//! Administrators set them; those of a key are on the key's page.

use chat::KeyId;
use format::{number, number_or_dash, percent};
use maud::{Markup, html};
use store::{BudgetUse, LimitUse, Scope};

use crate::limits::form::{EACH_PERSON, EVERYONE, remove_form, scope_value, set_form};
use crate::page::{
    Area, Column, ConsoleResult, Draft, Fields, Order, Paging, SignedIn, button_form, columns, data_table, empty,
    relative_time,
};
use crate::people::PersonChoice;

const COLUMNS: [Column<LimitUse>; 7] = [
    Column::text("for", "For", sort_name),
    Column::text("limit", "Limit", |used| used.limit.kind.describe()),
    Column::number("amount", "Amount", |used| Some(used.limit.amount.into())),
    Column::number("used", "Used", used_permille),
    Column::number("left", "Left", |used| Some(used.budget?.left.into())),
    Column::number("forecast", "Forecast", |used| Some(used.budget?.forecast?.into())),
    Column::due_time("renews", "Renews", |used| Some(used.budget?.renews_at)),
];

pub(crate) async fn page(user: &SignedIn<'_>, query: &Fields, draft: &Draft) -> ConsoleResult {
    let people = match user.viewer().admin() {
        Some(admin) => user.store().accounts().list(admin).await?,
        None => Vec::new(),
    };
    let mut limits = user.store().limits().list(user.viewer()).await?;
    let order = Order::from_query(query, &COLUMNS, "for");
    order.sort(&mut limits);
    let (paging, kept) = (Paging::new(query, limits.len()), query.only(&["sort"]));
    let actions =
        html! { @if user.is_admin() && !limits.is_empty() { a.button.primary href="#set" { "Set a limit" } } };
    let content = html! {
        @if limits.is_empty() {
            (empty("No limits", html! {
                p { "Use is bounded only by the capacity of the service." }
                @if user.is_admin() {
                    p {
                        "Budgets and rates for everyone, for each person or for one person are set here, "
                        "those for one key on the key's page."
                    }
                    p { a.button.primary href="#set" { "Set a limit" } " " a.button href="/keys" { "API Keys" } }
                } @else {
                    p { "Administrators set limits. " a href="/usage" { "View your usage" } "." }
                }
            }))
        } @else {
            form.filters.narrow-only method="get" action="/limits" {
                (order.choice())
                button.plain type="submit" { "Apply" }
            }
            @let head = html! { (order.head(&kept, "")) (columns(&[""])) };
            (table(user, head, paging.cut(&limits), label, "/limits"))
            (paging.links(&kept, "limit", ""))
        }
        @if user.is_admin() {
            section.card #set {
                h2 { "Set a limit" }
                (draft.message())
                (set_form(user, &html! {
                    label { "For"
                        (PersonChoice {
                            field: "scope",
                            others: &[(EVERYONE, "everyone together"), (EACH_PERSON, "each person")],
                            selected: None,
                        }.render(&people))
                    }
                }, "/limits"))
                p.quiet {
                    "Days and months are in UTC. A limit of 0 refuses every request. A limit applies from the next request "
                    "on. To limit one key, open its page "
                    "from " a href="/keys" { "API Keys" } "."
                }
            }
            section.card #notifications {
                h2 { "Notifications" }
                @if user.console.settings.webhook {
                    p.quiet {
                        "The webhook receives budgets that are used to 80 % and 100 %, and keys that expire within a week."
                    }
                    div { (button_form(user, "/limits/test-notification", "Send a test notification", "")) }
                } @else {
                    p.quiet {
                        "Set " code { "webhook.url" } " and " code { "webhook.key" } " to be notified of budgets that are used "
                        "to 80 % and 100 %, and of keys that expire within a week."
                    }
                }
            }
        }
    };
    Ok(user.page(Area::Limits, "Limits", actions, content).with_status(draft.status()))
}

/// The limits of a key, for the key's page.
pub(crate) async fn of_key(user: &SignedIn<'_>, key: KeyId) -> ConsoleResult<Markup> {
    let limits = user.store().limits().of_key(user.viewer(), key).await?;
    let back = format!("/keys/{key}");
    Ok(html! {
        section.card #limits {
            h2 { "Limits" }
            @if limits.is_empty() {
                p.quiet {
                    "No limits are set for this key. "
                    a href="/limits" { "The limits of its owner and of everyone" } " apply."
                }
            } @else {
                @let titles = columns(&["For", "Limit", ">Amount", ">Used", ">Left", ">Forecast", "Renews", ""]);
                (table(user, titles, &limits, |_| html! { "this key" }, &back))
            }
            @if !user.is_admin() && !limits.is_empty() { p.quiet { "Set by an administrator." } }
            @if user.is_admin() {
                (set_form(user, &html! { input type="hidden" name="scope" value=(scope_value(Scope::Key(key))); }, &back))
            }
        }
    })
}

fn table<'l>(
    user: &SignedIn<'_>,
    head: Markup,
    limits: impl IntoIterator<Item = &'l LimitUse>,
    whose: impl Fn(&LimitUse) -> Markup,
    back: &str,
) -> Markup {
    html! {
        (data_table("Limits", head, html! {
            @for used @ LimitUse { limit, budget, .. } in limits {
                tr {
                    th scope="row" data-label="For" { (whose(used)) }
                    td data-label="Limit" { (limit.kind.describe()) }
                    td.right data-label="Amount" { (number(limit.amount)) }
                    td.right data-label="Used" { (used_of_budget(*budget, limit.amount)) }
                    td.right data-label="Left" { (number_or_dash(budget.map(|budget| budget.left))) }
                    td.right data-label="Forecast" { (forecast(*budget, limit.amount)) }
                    td data-label="Renews" { @match budget { Some(budget) => (relative_time(budget.renews_at)), None => "–" } }
                    td.actions { @if user.is_admin() { (remove_form(user, limit, back)) } }
                }
            }
        }))
    }
}

fn label(used: &LimitUse) -> Markup {
    match used.limit.scope {
        Scope::Everyone => html! { "Everyone" },
        Scope::EachPerson => html! { "Each person" },
        Scope::Owner(_) => html! { (used.name.as_deref().unwrap_or("a person")) },
        Scope::Key(id) => html! { "Key " a href={ "/keys/" (id) } { (key_name(used, id)) } },
    }
}

/// Everyone first, then people, then keys, by their names.
fn sort_name(used: &LimitUse) -> String {
    match used.limit.scope {
        Scope::Everyone => "0".into(),
        Scope::EachPerson => "1".into(),
        Scope::Owner(_) => format!("2 {}", used.name.as_deref().unwrap_or_default()),
        Scope::Key(id) => format!("3 {}", key_name(used, id).to_lowercase()),
    }
}

fn key_name(used: &LimitUse, id: KeyId) -> String {
    used.name.clone().unwrap_or_else(|| id.to_string())
}

/// The used share of a budget. Budgets of different units are compared by it.
fn used_permille(limit: &LimitUse) -> Option<u128> {
    let amount = u128::from(limit.limit.amount.max(1));
    limit.budget.map(|budget| u128::from(budget.used) * 1000 / amount)
}

fn used_of_budget(budget: Option<BudgetUse>, amount: u64) -> Markup {
    html! {
        @match budget {
            None => "–",
            Some(budget) => {
                (number(budget.used)) " " span.quiet.small { (percent(budget.used, amount)) }
                @if budget.unmeasured > 0 {
                    div.quiet.small { "without " (format::count(budget.unmeasured, "unmeasured request")) }
                }
            }
        }
    }
}

fn forecast(budget: Option<BudgetUse>, amount: u64) -> Markup {
    html! {
        @match budget.and_then(|budget| budget.forecast) {
            None => "–",
            Some(forecast) if forecast > amount => span.badge.expired title="more than the limit" { (number(forecast)) },
            Some(forecast) => (number(forecast)),
        }
    }
}
