//! Usage by time, key and outcome. Every figure comes from the roll-ups, as those of `adriaticum usage` do.

use std::time::Duration;

use chat::{KeyId, Timestamp};
use format::{number, percent};
use maud::{Markup, html};
use store::{Measured, Period, Phase, Step, TimeSlice, UsageQuery, UsageReport};

use crate::chart::{Chart, ChartKind, Series, TimeSlot};
use crate::components::{change, empty, failed, heading, measured, now, time};
use crate::console_request::Fields;
use crate::error::{ConsoleError, ConsoleResult};
use crate::layout::Area;
use crate::range::{PRESETS, TimeRange};
use crate::session::SignedIn;

/// The export has them all.
const MAX_KEYS: usize = 100;
const PERCENTILES: [(&str, &str, f64); 3] = [("p50", "low", 0.5), ("p95", "middle", 0.95), ("p99", "high", 0.99)];

/// What the table is grouped by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    Time,
    Key,
    Outcome,
}

impl Group {
    const ALL: [Self; 3] = [Self::Time, Self::Key, Self::Outcome];

    pub(crate) fn from_query(query: &Fields) -> Self {
        Self::ALL.into_iter().find(|group| group.name() == query.get("group")).unwrap_or(Self::Time)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Key => "key",
            Self::Outcome => "outcome",
        }
    }
}

pub(crate) struct UsageView {
    pub(crate) range: TimeRange,
    pub(crate) group: Group,
    pub(crate) key: Option<KeyId>,
    /// The phase that the latency chart shows.
    phase: Phase,
    pub(crate) report: UsageReport,
    previous: UsageReport,
}

pub(crate) async fn load(user: &SignedIn<'_>, query: &Fields) -> ConsoleResult<UsageView> {
    let (range, group) = (TimeRange::from_query(query, now()), Group::from_query(query));
    let key: Option<KeyId> = match query.get("key") {
        "" => None,
        id => Some(id.parse().map_err(|_| ConsoleError::NotFound)?),
    };
    let ask = |period, by_key| UsageQuery { period, key, step: range.step, by_key };
    let store = &user.console.store;
    let report =
        store.usage(user.viewer(), &ask(range.period, group == Group::Key)).await?.ok_or(ConsoleError::NotFound)?;
    let previous = store.usage(user.viewer(), &ask(range.previous, false)).await?.ok_or(ConsoleError::NotFound)?;
    let phase = Phase::ALL.into_iter().find(|phase| phase.as_str() == query.get("phase")).unwrap_or(Phase::Total);
    Ok(UsageView { range, group, key, phase, report, previous })
}

pub(crate) async fn last_day(user: &SignedIn<'_>) -> ConsoleResult<UsageReport> {
    let period = Period::since(now().saturating_sub(Duration::from_secs(86_400)));
    let query = UsageQuery { period, key: None, step: Step::Day, by_key: false };
    Ok(user.console.store.usage(user.viewer(), &query).await?.unwrap_or_default())
}

pub(crate) async fn page(user: &SignedIn<'_>, query: &Fields) -> ConsoleResult {
    let view = load(user, query).await?;
    let kept = query.only(&["range", "from", "to", "by", "group", "key", "phase"]);
    let content = html! {
        (heading("Usage", html! {
            a.button href={ "/usage.csv" (kept.with("", "")) } { "Export CSV" }
        }))
        (ranges(&kept, &view))
        @if let Some(key) = view.key { (key_chip(user, key, &kept).await?) }
        div data-live {
            p.quiet {
                "Since " (time(view.range.period.start())) ", in whole hours. Days begin at midnight UTC."
            }
            (totals(&view))
            @if view.report.totals.requests == 0 {
                (empty("No requests in this period", html! {
                    p { "Choose a longer period, or send a request: " a href="/" { "the overview has an example" } "." }
                }))
            } @else {
                div.charts { (requests_chart(&view)) (tokens_chart(&view)) (latency_chart(&view)) }
                (phases(&kept, &view))
            }
            (groups(&kept, &view))
        }
    };
    Ok(user.page(Area::Usage, "Usage", content))
}

fn ranges(query: &Fields, view: &UsageView) -> Markup {
    let (from, to) = view.range.dates();
    let by = if view.range.step == Step::Hour { "hour" } else { "day" };
    html! {
        div.toolbar {
            nav.tabs aria-label="Period" {
                @for (name, label, _) in PRESETS {
                    @let here = (view.range.name == name).then_some("true");
                    a href=(query.with("range", name)) aria-current=[here] { (label) }
                }
            }
            form.filters method="get" action="/usage" {
                input type="hidden" name="range" value="custom";
                @for name in ["group", "key", "phase"] { input type="hidden" name=(name) value=(query.get(name)); }
                label { "From" input type="date" name="from" value=(from) required; }
                label { "To" input type="date" name="to" value=(to) required; }
                button.plain type="submit" { "Apply" }
            }
            nav.tabs aria-label="Interval" {
                @if view.range.fits_hours() {
                    a href=(query.with("by", "hour")) aria-current=[(by == "hour").then_some("true")] { "By hour" }
                }
                a href=(query.with("by", "day")) aria-current=[(by == "day").then_some("true")] { "By day" }
            }
        }
    }
}

async fn key_chip(user: &SignedIn<'_>, key: KeyId, query: &Fields) -> ConsoleResult<Markup> {
    let record = user.console.store.key(user.viewer(), key).await?.ok_or(ConsoleError::NotFound)?;
    Ok(html! {
        p.chips {
            span.chip {
                "Key " strong { (record.name) } " " code { (key) }
                a href=(query.with("key", "")) { "×" span.hidden { " all keys" } }
            }
        }
    })
}

fn totals(view: &UsageView) -> Markup {
    let (now, previous) = (&view.report, &view.previous);
    let compared = view.range.previous_label();
    let requests = now.totals.requests;
    let card = |title: &str, figure: Markup, now: u64, previous: u64| {
        html! { div.card { h2 { (title) } p.figure { (figure) } (change(now, previous, &compared)) } }
    };
    let tokens =
        |title: &str, now: Measured, previous: Measured| card(title, measured(now, requests), now.sum, previous.sum);
    let (failures, previous_failures) =
        (failed(&now.totals, now.succeeded), failed(&previous.totals, previous.succeeded));
    html! {
        section.cards.totals aria-label="Totals" {
            (card("Requests", html! { (number(requests)) }, requests, previous.totals.requests))
            @let share = html! { (number(failures)) " " span.unit { (percent(failures, requests)) } };
            (card("Failed", share, failures, previous_failures))
            (tokens("Prompt tokens", now.totals.prompt, previous.totals.prompt))
            (tokens("Completion tokens", now.totals.completion, previous.totals.completion))
            (tokens("Total tokens", now.totals.total, previous.totals.total))
        }
    }
}

/// One value for every slice of the range: the report leaves out slices without requests.
fn values(view: &UsageView, value: impl Fn(Option<&TimeSlice>) -> Option<f64>) -> Vec<Option<f64>> {
    let mut slices = view.report.by_time.iter().peekable();
    let at = |start: &Timestamp| {
        while slices.next_if(|slice| slice.start < *start).is_some() {}
        value(slices.next_if(|slice| slice.start == *start))
    };
    view.range.slices.iter().map(at).collect()
}

fn slots(view: &UsageView) -> Vec<TimeSlot> {
    let slot =
        |start: &Timestamp| TimeSlot { start: start.as_millis(), name: format::slice_name(*start, view.range.step) };
    view.range.slices.iter().map(slot).collect()
}

fn bars(title: &str, view: &UsageView, series: Vec<Series<'_>>) -> Markup {
    let write = |count: f64| number(count as u64);
    Chart { title, slices: slots(view), series, kind: ChartKind::Bars, write, axis: format::short_number }.render()
}

fn requests_chart(view: &UsageView) -> Markup {
    let succeeded = values(view, |slice| Some(slice.map_or(0, |slice| slice.succeeded) as f64));
    let failures = values(view, |slice| Some(slice.map_or(0, |slice| failed(&slice.figures, slice.succeeded)) as f64));
    let series = vec![
        Series { name: "succeeded", class: "good", values: succeeded },
        Series { name: "failed", class: "bad", values: failures },
    ];
    bars("Requests", view, series)
}

fn tokens_chart(view: &UsageView) -> Markup {
    let sum = |of: fn(&TimeSlice) -> Option<u64>| values(view, |slice| slice.and_then(of).map(|sum| sum as f64));
    let series = vec![
        Series { name: "prompt tokens", class: "first", values: sum(|slice| slice.figures.prompt.get()) },
        Series { name: "completion tokens", class: "second", values: sum(|slice| slice.figures.completion.get()) },
    ];
    bars("Tokens", view, series)
}

fn latency_chart(view: &UsageView) -> Markup {
    let series = PERCENTILES.map(|(name, class, share)| {
        let percentile = |slice: &TimeSlice| slice.latencies.percentile(view.phase, share);
        let values = values(view, |slice| slice.and_then(percentile).map(|time| time.as_micros() as f64));
        Series { name, class, values }
    });
    let title = match view.phase {
        Phase::Total => "Latency".to_owned(),
        phase => format!("Latency: {}", phase.as_str()),
    };
    let series = series.into_iter().collect();
    Chart {
        title: &title,
        slices: slots(view),
        series,
        kind: ChartKind::Lines,
        write: format::micros,
        axis: format::micros,
    }
    .render()
}

fn phases(query: &Fields, view: &UsageView) -> Markup {
    let latencies = &view.report.latencies;
    html! {
        section.card {
            h2 { "Latency by phase" }
            div.scroll tabindex="0" role="region" aria-label="Latency by phase" {
                table.rows {
                    thead { tr {
                        th scope="col" { "Phase" } th.right scope="col" { "Measured" }
                        @for (name, ..) in PERCENTILES { th.right scope="col" { (name) } }
                    } }
                    tbody {
                        @for phase in Phase::ALL {
                            tr {
                                th scope="row" {
                                    @let here = (phase == view.phase).then_some("true");
                                    @let link = query.with("phase", phase.as_str());
                                    a href=(link) aria-current=[here] { (phase.as_str()) }
                                    @if here.is_some() { " " span.quiet.small { "(in the chart)" } }
                                }
                                td.right data-label="Measured" { (number(latencies.count(phase))) }
                                @for (name, _, share) in PERCENTILES {
                                    td.right data-label=(name) {
                                        @let latency = latencies.percentile(phase, share);
                                        (latency.map_or_else(|| "–".into(), format::duration))
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn groups(query: &Fields, view: &UsageView) -> Markup {
    html! {
        section.card {
            div.heading {
                h2 { "Breakdown" }
                nav.tabs aria-label="Grouping" {
                    @for group in Group::ALL {
                        @let here = (group == view.group).then_some("true");
                        a href=(query.with("group", group.name())) aria-current=[here] { "By " (group.name()) }
                    }
                }
            }
            @if view.report.totals.requests == 0 { p.quiet { "Nothing to show." } } @else { (group_table(query, view)) }
        }
    }
}

fn group_table(query: &Fields, view: &UsageView) -> Markup {
    let report = &view.report;
    let head = match view.group {
        Group::Time if view.range.step == Step::Hour => "Hour",
        Group::Time => "Day",
        Group::Key => "Key",
        Group::Outcome => "Outcome",
    };
    html! {
        div.scroll tabindex="0" role="region" aria-label={ "Usage by " (view.group.name()) } {
            table.rows {
                thead { tr {
                    th scope="col" { (head) }
                    @for column in ["Requests", "Failed", "Prompt tokens", "Completion tokens", "Total tokens"] {
                        th.right scope="col" { (column) }
                    }
                } }
                tbody {
                    @match view.group {
                        Group::Time => @for slice in report.by_time.iter().rev() {
                            @let name = format::slice_name(slice.start, view.range.step);
                            (line(html! { span data-slice=(slice.start.as_millis()) { (name) } },
                                &slice.figures, slice.succeeded))
                        },
                        Group::Outcome => @for outcome in &report.by_outcome {
                            @let name = format::outcome(outcome.status, outcome.code.as_deref());
                            @let succeeded = if outcome.code.is_none() { outcome.figures.requests } else { 0 };
                            @let link = format!("/requests?status={}", outcome.status);
                            (line(html! { a href=(link) { (name) } }, &outcome.figures, succeeded))
                        },
                        Group::Key => @for usage in report.by_key.iter().take(MAX_KEYS) {
                            @let link = query.with("key", usage.key.as_str());
                            (line(html! { a href=(link) { (usage.name) } " " code.quiet { (usage.key) } },
                                &usage.figures, usage.succeeded))
                        },
                    }
                }
                tfoot { (line(html! { "All" }, &report.totals, report.succeeded)) }
            }
        }
        @if view.group == Group::Key && report.by_key.len() > MAX_KEYS {
            p.quiet {
                "The " (MAX_KEYS) " most used of " (number(report.by_key.len() as u64)) " keys. "
                "The export has them all."
            }
        }
    }
}

fn line(name: Markup, figures: &store::Figures, succeeded: u64) -> Markup {
    let requests = figures.requests;
    html! {
        tr {
            th scope="row" { (name) }
            td.right data-label="Requests" { (number(requests)) }
            td.right data-label="Failed" { (number(failed(figures, succeeded))) }
            td.right data-label="Prompt tokens" { (measured(figures.prompt, requests)) }
            td.right data-label="Completion tokens" { (measured(figures.completion, requests)) }
            td.right data-label="Total tokens" { (measured(figures.total, requests)) }
        }
    }
}
