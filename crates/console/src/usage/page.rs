//! Usage by time, key, person, project and outcome. Every figure comes from the roll-ups, like those of `adriaticum usage`;
//! partial hours at the ends of a range are summed up from their requests.

use std::time::Duration;

use chat::KeyId;
use format::{Group, GroupRow, amount, group_report, number, percent};
use http::StatusCode;
use maud::{Markup, html};
use store::{AccountId, Measured, Period, Phase, Step, UsageQuery, UsageReport};

use crate::page::{
    Area, ConsoleError, ConsoleResponse, ConsoleResult, Fields, Format, SignedIn, change, csv, empty, error_message,
    export_links, failed, measured, now, parse_id, period_inputs, time,
};
use crate::usage::breakdown::breakdown;
use crate::usage::charts::{charts, phases};
use crate::usage::range::{PRESETS, RangeError, TimeRange};

/// Query fields that the links of the page and the exports keep.
const KEPT: [&str; 10] = ["range", "from", "to", "by", "group", "key", "person", "phase", "sort", "page"];

/// Groups that a viewer may choose. Developers see only their own usage, so they cannot group it by person.
fn groups(user: &SignedIn<'_>) -> &'static [Group] {
    match user.is_admin() {
        true => &[Group::Time, Group::Key, Group::Person, Group::Project, Group::Outcome],
        false => &[Group::Time, Group::Key, Group::Project, Group::Outcome],
    }
}

pub(crate) struct UsageView {
    pub(crate) range: TimeRange,
    pub(crate) group: Group,
    pub(crate) key: Option<KeyId>,
    person: Option<AccountId>,
    /// The phase that the latency chart shows.
    pub(crate) phase: Phase,
    pub(crate) report: UsageReport,
    previous: UsageReport,
}

/// The range is checked before anything is read.
async fn load(user: &SignedIn<'_>, query: &Fields) -> ConsoleResult<Result<UsageView, RangeError>> {
    let range = match TimeRange::from_query(query, now()) {
        Ok(range) => range,
        Err(error) => return Ok(Err(error)),
    };
    let group = groups(user).iter().find(|group| group.name() == query.get("group")).copied().unwrap_or(Group::Time);
    let key: Option<KeyId> = match query.get("key") {
        "" => None,
        id => Some(parse_id(id)?),
    };
    let person: Option<AccountId> = match query.get("person") {
        "" => None,
        id => user.admin().and_then(|_| parse_id(id).map(Some))?,
    };
    let query_for = |period, group| UsageQuery { period, key, step: range.step, person, group };
    let read = async |query| user.store().usage().report(user.viewer(), &query).await?.ok_or(ConsoleError::NotFound);
    let report = read(query_for(range.period, group.grouping())).await?;
    let previous = read(query_for(range.previous, None)).await?;
    let phase = Phase::ALL.into_iter().find(|phase| phase.as_str() == query.get("phase")).unwrap_or(Phase::Total);
    Ok(Ok(UsageView { range, group, key, person, phase, report, previous }))
}

pub(crate) async fn last_day(user: &SignedIn<'_>) -> ConsoleResult<UsageReport> {
    let period = Period::since(now().saturating_sub(Duration::from_secs(86_400)));
    let query = UsageQuery { period, key: None, step: Step::Day, person: None, group: None };
    Ok(user.store().usage().report(user.viewer(), &query).await?.unwrap_or_default())
}

/// The report of the page, as a file.
pub(crate) async fn export(user: &SignedIn<'_>, query: &Fields, format: Format) -> ConsoleResult {
    let (report, group) = match load(user, query).await? {
        Ok(view) => (view.report, view.group),
        Err(error) => return Ok(ConsoleResponse::bad_query(&error.to_string())),
    };
    let body = match format {
        Format::Csv => {
            let columns = GroupRow::columns(group, report.currency.is_some());
            csv(Some(&columns), GroupRow::all(&report, group).iter().map(|row| row.cells(report.currency)))
        }
        Format::Json => {
            let mut text = serde_json::to_vec_pretty(&group_report(&report, group));
            text.iter_mut().for_each(|text| text.push(b'\n'));
            text.map_err(|_| ConsoleError::Internal)?
        }
    };
    Ok(format.download(&format!("usage-by-{}", group.name()), body))
}

pub(crate) async fn page(user: &SignedIn<'_>, query: &Fields) -> ConsoleResult {
    let kept = query.only(&KEPT);
    let view = match load(user, query).await? {
        Ok(view) => view,
        Err(error) => return Ok(page_of_wrong_range(user, &kept, error)),
    };
    let export = kept.without(&["sort", "page", "phase"]);
    let actions = html! {
        @if user.is_admin() { a.button href="/prices" { "Prices" } }
        (export_links("/usage", &export.with("", "")))
    };
    let content = html! {
        (toolbar(&kept, &view))
        (chips(user, &kept, &view).await?)
        div data-live {
            (range_note(&view))
            (totals(&view))
            @if view.report.totals.requests == 0 {
                (empty("No requests in this period", html! {
                    p { "Choose a longer period, or send a request: " a href="/" { "the overview has an example" } "." }
                }))
            } @else {
                (charts(&view))
                (phases(&kept, &view))
            }
            (breakdown(&kept, &view, groups(user)))
        }
    };
    Ok(user.page(Area::Usage, "Usage", actions, content))
}

fn page_of_wrong_range(user: &SignedIn<'_>, query: &Fields, error: RangeError) -> ConsoleResponse {
    let content = html! {
        (error_message(Some(&error.to_string())))
        div.toolbar { (presets(query, "")) (range_form(query, query.get("from"), query.get("to"))) }
    };
    user.page(Area::Usage, "Usage", html! {}, content).with_status(StatusCode::BAD_REQUEST)
}

fn toolbar(query: &Fields, view: &UsageView) -> Markup {
    let (from, to) = view.range.ends(now());
    let by = if view.range.step == Step::Hour { "hour" } else { "day" };
    let query = query.without(&["page"]);
    html! {
        div.toolbar {
            (presets(&query, view.range.name))
            (range_form(&query, &from, &to))
            nav.tabs aria-label="Interval" {
                @if view.range.fits_hours() {
                    a href=(query.with("by", "hour")) aria-current=[(by == "hour").then_some("true")] { "By hour" }
                }
                a href=(query.with("by", "day")) aria-current=[(by == "day").then_some("true")] { "By day" }
            }
        }
    }
}

fn presets(query: &Fields, current: &str) -> Markup {
    let query = query.without(&["from", "to", "page"]);
    html! {
        nav.tabs aria-label="Period" {
            @for (name, label, _) in PRESETS {
                a href=(query.with("range", name)) aria-current=[(current == name).then_some("true")] { (label) }
            }
        }
    }
}

fn range_form(query: &Fields, from: &str, to: &str) -> Markup {
    html! {
        form.filters method="get" action="/usage" {
            input type="hidden" name="range" value="custom";
            @for name in ["group", "key", "person", "phase", "sort"] {
                @if !query.get(name).is_empty() { input type="hidden" name=(name) value=(query.get(name)); }
            }
            (period_inputs(from, to, true))
            button.plain type="submit" { "Apply" }
        }
    }
}

/// The key and the person that the page is limited to, each with a link that lifts the limit.
async fn chips(user: &SignedIn<'_>, query: &Fields, view: &UsageView) -> ConsoleResult<Markup> {
    let query = query.without(&["page"]);
    let mut chips = Vec::new();
    if let Some(key) = view.key {
        let key = user.store().keys().find(user.viewer(), key).await?.ok_or(ConsoleError::NotFound)?;
        chips.push(("key", html! { "Key " strong { (key.name) } " " code { (key.id) } }, " all keys"));
    }
    if let Some(person) = view.person {
        let accounts = user.store().accounts().list(user.admin()?).await?;
        let found = accounts.iter().find(|account| account.id == person);
        let (name, email) = found.map_or(("Deleted", ""), |account| (&account.name, account.email.as_str()));
        chips.push(("person", html! { "Person " strong { (name) } " " (email) }, " everyone"));
    }
    Ok(html! {
        @if !chips.is_empty() {
            p.chips {
                @for (field, chosen, all) in chips {
                    span.chip { (chosen) a href=(query.with(field, "")) { "×" span.hidden { (all) } } }
                }
            }
        }
    })
}

fn range_note(view: &UsageView) -> Markup {
    let report = &view.report;
    html! {
        p.quiet {
            @match view.range.name {
                "custom" => { "From " (time(report.since)) " to " (time(report.until)) ". " }
                _ => { "Since " (time(report.since)) ", in whole hours. " }
            }
            @if report.is_widened {
                strong { "Widened to whole hours" } ", because individual requests of that time are no longer kept. "
            }
            "Days begin at midnight UTC."
        }
    }
}

/// The totals, compared with the previous period.
fn totals(view: &UsageView) -> Markup {
    let (now, previous) = (&view.report, &view.previous);
    let compared = view.range.previous_label();
    let requests = now.totals.requests;
    let compared_card = |title: &str, figure: Markup, now: u64, before: u64, shown_before: &str| {
        html! {
            div.card {
                h2 { (title) }
                p.figure { (figure) }
                @if previous.totals.requests == 0 {
                    p.change { span.quiet { "no requests in " (compared) } }
                } @else { (change(now, before, shown_before, &compared)) }
            }
        }
    };
    let card = |title: &str, figure, now, before: u64| compared_card(title, figure, now, before, &number(before));
    let tokens =
        |title: &str, now: Measured, before: Measured| card(title, measured(now, requests), now.sum, before.sum);
    let (failures, failures_before) =
        (failed(&now.totals, now.succeeded), failed(&previous.totals, previous.succeeded));
    let latency = |title: &str, share: f64| {
        let micros = |report: &UsageReport| {
            report.latencies.percentile(Phase::Total, share).map_or(0, |latency| latency.as_micros() as u64)
        };
        let figure = match micros(now) {
            0 => "–".to_owned(),
            micros => format::micros(micros as f64),
        };
        let shown_before = format::micros(micros(previous) as f64);
        compared_card(title, html! { (figure) }, micros(now), micros(previous), &shown_before)
    };
    html! {
        section.cards.totals aria-label="Totals" {
            (card("Requests", html! { (number(requests)) }, requests, previous.totals.requests))
            @let share = html! { (number(failures)) " " span.unit { (percent(failures, requests)) } };
            (card("Failed", share, failures, failures_before))
            (latency("Latency, median", 0.5))
            (latency("Latency, p95", 0.95))
            (tokens("Prompt tokens", now.totals.prompt, previous.totals.prompt))
            (tokens("Completion tokens", now.totals.completion, previous.totals.completion))
            (tokens("Total tokens", now.totals.total, previous.totals.total))
            @if let Some((cost, currency)) = now.cost.zip(now.currency) {
                div.card {
                    h2 { "Cost" }
                    p.figure { (amount(cost)) " " span.unit { (currency) } }
                    p.change { span.quiet { "computed, not billed" } }
                }
            }
        }
    }
}
