//! Budgets and limits, with their use, remainder and forecast. People see their own limits and those for everyone.
//! Administrators set them; those of a key are on the key's page.

use std::collections::HashMap;

use chat::KeyId;
use format::{number, number_or_dash, percent, rfc3339_seconds};
use http::StatusCode;
use maud::{Markup, html};
use store::{Account, AccountId, BudgetUse, Email, Limit, LimitKind, LimitUse, Scope};

use crate::keys::settings::declined;
use crate::page::components::{
    button_form, columns, csrf_field, data_table, empty, form_error, heading, relative_time, sentence,
};
use crate::page::error::{ConsoleError, ConsoleResult};
use crate::page::form::Form;
use crate::page::layout::Area;
use crate::page::paging::Paging;
use crate::page::request::Fields;
use crate::page::session::SignedIn;
use crate::page::sorting::{Column, Direction, Order};
use crate::people::choice::{self, PersonChoice};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Scope,
    Kind,
    Amount,
    Used,
    Left,
    Forecast,
    Renews,
}

const COLUMNS: [Column<By>; 7] = [
    Column::text(By::Scope, "for", "For"),
    Column::text(By::Kind, "limit", "Limit"),
    Column::number(By::Amount, "amount", "Amount"),
    Column::number(By::Used, "used", "Used"),
    Column::number(By::Left, "left", "Left"),
    Column::number(By::Forecast, "forecast", "Forecast"),
    Column::text(By::Renews, "renews", "Renews"),
];
const BY_SCOPE: Order<By> = Order { by: By::Scope, direction: Direction::Ascending };

/// Form values of scopes that cover several people.
const EVERYONE: &str = "everyone";
const EACH_PERSON: &str = "each-person";

pub(crate) async fn page(user: &SignedIn<'_>, query: &Fields) -> ConsoleResult {
    page_with(user, query, None).await
}

async fn page_with(user: &SignedIn<'_>, query: &Fields, error: Option<&str>) -> ConsoleResult {
    let names = Names::read(user).await?;
    let limits = user.console.store.list_limits(user.viewer()).await?;
    let order = Order::from_query(query, &COLUMNS, BY_SCOPE);
    let (paging, kept) = (Paging::new(query, limits.len()), query.only(&["sort"]));
    let mut sorted: Vec<_> = limits.iter().collect();
    sort(&mut sorted, order, &names);
    let actions =
        html! { @if user.is_admin() && !limits.is_empty() { a.button.primary href="#set" { "Set a limit" } } };
    let content = html! {
        (heading("Limits", actions))
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
                (order.choice(&COLUMNS))
                button.plain type="submit" { "Apply" }
            }
            @let head = html! { (order.head(&COLUMNS, &kept, "")) (columns(&[""])) };
            (table(user, head, paging.cut(&sorted), |scope| names.label(scope), "/limits"))
            (paging.links(&kept, "limit", ""))
        }
        @if user.is_admin() {
            section.card #set {
                h2 { "Set a limit" }
                (form_error(error))
                (set_form(user, &html! {
                    label { "For"
                        (PersonChoice {
                            field: "scope",
                            others: &[(EVERYONE, "everyone together"), (EACH_PERSON, "each person")],
                            selected: None,
                        }.render(&names.people))
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
    Ok(user.page(Area::Limits, "Limits", content))
}

/// The limits of a key, for the key's page.
pub(crate) async fn of_key(user: &SignedIn<'_>, key: KeyId) -> ConsoleResult<Markup> {
    let limits = user.console.store.limits_of_key(user.viewer(), key).await?;
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
                (table(user, titles, &limits.iter().collect::<Vec<_>>(), |_| html! { "this key" }, &back))
            }
            @if !user.is_admin() && !limits.is_empty() { p.quiet { "Set by an administrator." } }
            @if user.is_admin() {
                (set_form(user, &html! { input type="hidden" name="scope" value=(scope_value(Scope::Key(key))); }, &back))
            }
        }
    })
}

fn table(
    user: &SignedIn<'_>,
    head: Markup,
    limits: &[&LimitUse],
    whose: impl Fn(Scope) -> Markup,
    back: &str,
) -> Markup {
    html! {
        (data_table("Limits", head, html! {
            @for LimitUse { limit, budget } in limits {
                tr {
                    th scope="row" data-label="For" { (whose(limit.scope)) }
                    td data-label="Limit" { (limit.kind.describe()) }
                    td.right data-label="Amount" { (number(limit.amount)) }
                    td.right data-label="Used" { (used(*budget, limit.amount)) }
                    td.right data-label="Left" { (number_or_dash(budget.map(|budget| budget.left))) }
                    td.right data-label="Forecast" { (forecast(*budget, limit.amount)) }
                    td data-label="Renews" { @match budget { Some(budget) => (relative_time(budget.renews_at)), None => "–" } }
                    td.actions { @if user.is_admin() { (remove_form(user, limit, back)) } }
                }
            }
        }))
    }
}

fn sort(limits: &mut [&LimitUse], order: Order<By>, names: &Names) {
    match order.by {
        By::Scope => order.sort(limits, |limit| names.sort_key(limit.limit.scope)),
        By::Kind => order.sort(limits, |limit| limit.limit.kind.describe()),
        By::Amount => order.sort(limits, |limit| limit.limit.amount),
        By::Used => order.sort(limits, used_permille),
        By::Left => order.sort(limits, |limit| limit.budget.map(|budget| budget.left)),
        By::Forecast => order.sort(limits, |limit| limit.budget.and_then(|budget| budget.forecast)),
        By::Renews => order.sort(limits, |limit| limit.budget.map(|budget| budget.renews_at)),
    }
}

/// The used share of a budget. Budgets of different units are compared by it.
fn used_permille(limit: &&LimitUse) -> Option<u128> {
    let amount = u128::from(limit.limit.amount.max(1));
    limit.budget.map(|budget| u128::from(budget.used) * 1000 / amount)
}

fn used(budget: Option<BudgetUse>, amount: u64) -> Markup {
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

fn set_form(user: &SignedIn<'_>, scope: &Markup, back: &str) -> Markup {
    html! {
        form.fields method="post" action="/limits" {
            (csrf_field(user))
            input type="hidden" name="back" value=(back);
            (scope)
            label { "Limit" (kinds()) }
            label { "Amount"
                input name="amount" required inputmode="numeric" pattern="[0-9,. ]+" autocomplete="off"
                    placeholder="1,000,000";
            }
            button.primary type="submit" { "Set limit" }
        }
    }
}

fn kinds() -> Markup {
    html! { select name="kind" { @for kind in LimitKind::ALL { option value=(kind) { (kind.describe()) } } } }
}

/// Fields for an optional limit, as a part of another form.
pub(crate) fn fields(amount: &str) -> Markup {
    html! {
        label { "Limit (optional)"
            input name="amount" inputmode="numeric" pattern="[0-9,. ]*" autocomplete="off" value=(amount)
                placeholder="none";
        }
        label { "Kind of limit" (kinds()) }
    }
}

/// The optional limit in another form. Only administrators set limits.
pub(crate) fn optional(user: &SignedIn<'_>, form: &Form) -> Result<Option<(LimitKind, u64)>, String> {
    if !user.is_admin() || form.get("amount").trim().is_empty() {
        return Ok(None);
    }
    let amount = Limit::parse_amount(form.get("amount")).map_err(|error| sentence(&error))?;
    let kind = form.get("kind").parse().map_err(|_| "Choose a kind of limit.")?;
    Ok(Some((kind, amount)))
}

fn remove_form(user: &SignedIn<'_>, limit: &Limit, back: &str) -> Markup {
    html! {
        form.inline method="post" action="/limits/remove" {
            (csrf_field(user))
            input type="hidden" name="back" value=(back);
            input type="hidden" name="scope" value=(scope_value(limit.scope));
            input type="hidden" name="kind" value=(limit.kind);
            button.plain type="submit" { "Remove" span.hidden { " " (limit.kind.describe()) } }
        }
    }
}

pub(crate) async fn set(user: &SignedIn<'_>, form: &Form) -> ConsoleResult {
    let admin = user.admin()?;
    let (scope, kind) = (chosen_scope(user, form).await?, parse_kind(form)?);
    let amount = match Limit::parse_amount(form.get("amount")) {
        Ok(amount) => amount,
        Err(error) => {
            let page = page_with(user, &Fields::default(), Some(&sentence(&error))).await?;
            return Ok(page.with_status(StatusCode::BAD_REQUEST));
        }
    };
    match user.console.store.set_limit(admin, Limit { scope, kind, amount }).await.map_err(declined)? {
        true => {
            let message = format!("Limited to {}. This applies from the next request on.", format::limit(kind, amount));
            Ok(user.redirect_with_message(&back(form), &message))
        }
        false => Err(ConsoleError::NotFound),
    }
}

/// Queues a test notification for the webhook.
pub(crate) async fn test_notification(user: &SignedIn<'_>) -> ConsoleResult {
    user.admin()?;
    let (store, now) = (&user.console.store, user.console.store.now());
    let requested_by = user.viewer().account().map(|account| account.email.as_str());
    let event = serde_json::json!({
        "type": "test", "timestamp": rfc3339_seconds(now), "data": { "requested_by": requested_by },
    });
    store.add_notice(&format!("test/{}", now.as_millis()), &event.to_string()).await?;
    let message =
        "A test notification is sent within seconds. If the webhook does not accept it, the log has the reason.";
    Ok(user.redirect_with_message("/limits", message))
}

pub(crate) async fn remove(user: &SignedIn<'_>, form: &Form) -> ConsoleResult {
    let (scope, kind) = (parse_scope(form)?, parse_kind(form)?);
    match user.console.store.remove_limit(user.admin()?, scope, kind).await.map_err(declined)? {
        true => {
            let message = format!("The limit of {} was removed.", kind.describe());
            Ok(user.redirect_with_message(&back(form), &message))
        }
        false => Err(ConsoleError::NotFound),
    }
}

/// The value of a scope in a form.
fn scope_value(scope: Scope) -> String {
    match scope {
        Scope::Everyone => EVERYONE.into(),
        Scope::EachPerson => EACH_PERSON.into(),
        other => other.to_string(),
    }
}

/// People are chosen by e-mail address.
async fn chosen_scope(user: &SignedIn<'_>, form: &Form) -> ConsoleResult<Scope> {
    match form.get("scope") {
        email if email.parse::<Email>().is_ok() => Ok(Scope::Owner(choice::find(user, user.admin()?, email).await?)),
        _ => parse_scope(form),
    }
}

fn parse_scope(form: &Form) -> ConsoleResult<Scope> {
    match form.get("scope") {
        EVERYONE | "" => Ok(Scope::Everyone),
        EACH_PERSON => Ok(Scope::EachPerson),
        other => other.parse().map_err(|_| ConsoleError::Unreadable),
    }
}

fn parse_kind(form: &Form) -> ConsoleResult<LimitKind> {
    form.get("kind").parse().map_err(|_| ConsoleError::Unreadable)
}

/// Where to go afterwards: a key's page or the list of limits, so a form cannot redirect elsewhere.
fn back(form: &Form) -> String {
    let key = form.get("back").strip_prefix("/keys/").and_then(|id| id.parse::<KeyId>().ok());
    key.map_or_else(|| "/limits".into(), |key| format!("/keys/{key}"))
}

/// Names of people and keys.
struct Names {
    people: Vec<Account>,
    keys: HashMap<KeyId, String>,
}

impl Names {
    async fn read(user: &SignedIn<'_>) -> ConsoleResult<Self> {
        let people = match user.viewer().admin() {
            Some(admin) => user.console.store.accounts(admin).await?,
            None => user.viewer().account().cloned().into_iter().collect(),
        };
        Ok(Self { people, keys: user.console.store.names_of_limited_keys(user.viewer()).await? })
    }

    fn label(&self, scope: Scope) -> Markup {
        match scope {
            Scope::Everyone => html! { "Everyone" },
            Scope::EachPerson => html! { "Each person" },
            Scope::Owner(id) => html! { (self.email(id)) },
            Scope::Key(id) => html! { "Key " a href={ "/keys/" (id) } { (self.key_name(id)) } },
        }
    }

    /// Everyone first, then people, then keys, by their names.
    fn sort_key(&self, scope: Scope) -> (u8, String) {
        match scope {
            Scope::Everyone => (0, String::new()),
            Scope::EachPerson => (1, String::new()),
            Scope::Owner(id) => (2, self.email(id).to_owned()),
            Scope::Key(id) => (3, self.key_name(id).to_lowercase()),
        }
    }

    fn email(&self, id: AccountId) -> &str {
        self.people.iter().find(|account| account.id == id).map_or("a person", |account| account.email.as_str())
    }

    fn key_name(&self, id: KeyId) -> String {
        self.keys.get(&id).cloned().unwrap_or_else(|| id.to_string())
    }
}
