//! What was used, when, by which key, and how it ended. Every figure is from the roll-ups, as those of `adriaticum usage`.

use chat::KeyId;
use format::{number, percent};
use maud::{Markup, html};
use store::{KeyUsage, Period, Phase, Step, TimeSlice, UsageQuery, UsageReport};

use crate::chart::{Chart, Kind, Series, Slot};
use crate::page::{self, Area, change};
use crate::range::{CHOICES, Range};
use crate::reply::{Problem, Reply};
use crate::room::Room;
use crate::show::{self, failed, measured};
use crate::visit::Fields;

/// Keys that are listed; the export has them all.
const MOST_KEYS: usize = 100;
const SHARES: [(&str, &str, f64); 3] = [("p50", "low", 0.5), ("p95", "middle", 0.95), ("p99", "high", 0.99)];

/// What the table on the page is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    Time,
    Key,
    Outcome,
}

impl Group {
    const ALL: [Self; 3] = [Self::Time, Self::Key, Self::Outcome];

    pub(crate) fn of(query: &Fields) -> Self {
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

/// Figures for a query, and those of the time before.
pub(crate) struct Read {
    pub(crate) range: Range,
    pub(crate) group: Group,
    pub(crate) key: Option<KeyId>,
    /// Whose latencies the chart shows.
    phase: Phase,
    pub(crate) report: UsageReport,
    before: UsageReport,
}

/// Reads what a query asks for.
pub(crate) async fn read(room: &Room<'_>, query: &Fields) -> Result<Read, Problem> {
    let (range, group) = (Range::of(query, show::now()), Group::of(query));
    let key: Option<KeyId> = match query.get("key") {
        "" => None,
        id => Some(id.parse().map_err(|_| Problem::NotFound)?),
    };
    let ask = |period, by_key| UsageQuery { period, key, step: range.step, by_key };
    let store = &room.console.store;
    let report = store.usage(room.viewer(), &ask(range.period, group == Group::Key)).await?.ok_or(Problem::NotFound)?;
    let before = store.usage(room.viewer(), &ask(range.before, false)).await?.ok_or(Problem::NotFound)?;
    let phase = Phase::ALL.into_iter().find(|phase| phase.as_str() == query.get("phase")).unwrap_or(Phase::Total);
    Ok(Read { range, group, key, phase, report, before })
}

/// Everything of the last day, for the overview.
pub(crate) async fn last_day(room: &Room<'_>) -> Result<UsageReport, Problem> {
    let period = Period::since(show::now().saturating_sub(86_400_000));
    let query = UsageQuery { period, key: None, step: Step::Day, by_key: false };
    Ok(room.console.store.usage(room.viewer(), &query).await?.unwrap_or_default())
}

pub(crate) async fn page(room: &Room<'_>, query: &Fields) -> Result<Reply, Problem> {
    let read = read(room, query).await?;
    let kept = query.only(&["range", "from", "to", "by", "group", "key", "phase"]);
    let content = html! {
        (page::heading("Usage", html! {
            a.button href={ "/usage.csv" (kept.with("", "")) } { "Export CSV" }
        }))
        (ranges(&kept, &read))
        @if let Some(key) = read.key { (key_chip(room, key, &kept).await?) }
        div data-live {
            p.quiet {
                "Since " (show::time(read.range.period.from_millis())) ", in whole hours. Days begin at midnight UTC."
            }
            (totals(&read))
            @if read.report.totals.requests == 0 {
                (page::empty("No requests in this time", html! {
                    p { "Choose a longer one, or send a request: " a href="/" { "the overview has one to copy" } "." }
                }))
            } @else {
                div.charts { (requests_chart(&read)) (tokens_chart(&read)) (latency_chart(&read)) }
                (phases(&kept, &read))
            }
            (groups(&kept, &read))
        }
    };
    Ok(Reply::page(page::page(room, Area::Usage, "Usage", content)))
}

fn ranges(query: &Fields, read: &Read) -> Markup {
    let (from, to) = read.range.dates();
    let by = if read.range.step == Step::Hour { "hour" } else { "day" };
    html! {
        div.toolbar {
            nav.tabs aria-label="Time" {
                @for (name, called, _) in CHOICES {
                    a href=(query.with("range", name)) aria-current=[(read.range.name == name).then_some("true")] { (called) }
                }
            }
            form.filters method="get" action="/usage" {
                input type="hidden" name="range" value="custom";
                @for name in ["group", "key", "phase"] { input type="hidden" name=(name) value=(query.get(name)); }
                label { "From" input type="date" name="from" value=(from) required; }
                label { "To" input type="date" name="to" value=(to) required; }
                button.plain type="submit" { "Show" }
            }
            nav.tabs aria-label="Slices" {
                @if read.range.fits_hours() {
                    a href=(query.with("by", "hour")) aria-current=[(by == "hour").then_some("true")] { "By hour" }
                }
                a href=(query.with("by", "day")) aria-current=[(by == "day").then_some("true")] { "By day" }
            }
        }
    }
}

async fn key_chip(room: &Room<'_>, key: KeyId, query: &Fields) -> Result<Markup, Problem> {
    let record = room.console.store.key(room.viewer(), key).await?.ok_or(Problem::NotFound)?;
    Ok(html! {
        p.chips {
            span.chip {
                "Key " strong { (record.name) } " " code { (key) }
                a href=(query.with("key", "")) { "×" span.hidden { " all keys" } }
            }
        }
    })
}

fn totals(read: &Read) -> Markup {
    let (now, before) = (&read.report, &read.before);
    let compared = read.range.before_name();
    let requests = now.totals.requests;
    let card = |title: &str, figure: Markup, now: u64, before: u64| {
        html! { div.card { h2 { (title) } p.figure { (figure) } (change(now, before, &compared)) } }
    };
    let (failures, failures_before) = (failed(&now.totals, now.succeeded), failed(&before.totals, before.succeeded));
    html! {
        section.cards.totals aria-label="Totals" {
            (card("Requests", html! { (number(requests)) }, requests, before.totals.requests))
            (card("Failed", html! { (number(failures)) " " span.unit { (percent(failures, requests)) } }, failures, failures_before))
            (card("Prompt tokens", measured(now.totals.prompt, requests), now.totals.prompt.sum, before.totals.prompt.sum))
            (card("Completion tokens", measured(now.totals.completion, requests),
                now.totals.completion.sum, before.totals.completion.sum))
            (card("Total tokens", measured(now.totals.total, requests), now.totals.total.sum, before.totals.total.sum))
        }
    }
}

/// One value for every slice of the range, also for those without requests.
fn values(read: &Read, value: impl Fn(Option<&TimeSlice>) -> Option<f64>) -> Vec<Option<f64>> {
    let mut slices = read.report.by_time.iter().peekable();
    let at = |start: &u64| {
        while slices.next_if(|slice| slice.start < *start).is_some() {}
        value(slices.next_if(|slice| slice.start == *start))
    };
    read.range.slices.iter().map(at).collect()
}

fn slots(read: &Read) -> Vec<Slot> {
    let slot = |start: &u64| Slot { start: *start, name: format::slice_name(*start, read.range.step) };
    read.range.slices.iter().map(slot).collect()
}

/// Counts as bars: exact where they are told, short at the axis.
fn bars(title: &str, read: &Read, series: Vec<Series<'_>>) -> Markup {
    let write = |count: f64| number(count as u64);
    Chart { title, slices: slots(read), series, kind: Kind::Bars, write, axis: format::short_number }.draw()
}

fn requests_chart(read: &Read) -> Markup {
    let succeeded = values(read, |slice| Some(slice.map_or(0, |slice| slice.succeeded) as f64));
    let failures = values(read, |slice| Some(slice.map_or(0, |slice| failed(&slice.figures, slice.succeeded)) as f64));
    let series = vec![
        Series { name: "succeeded", class: "good", values: succeeded },
        Series { name: "failed", class: "bad", values: failures },
    ];
    bars("Requests", read, series)
}

fn tokens_chart(read: &Read) -> Markup {
    let sum = |of: fn(&TimeSlice) -> Option<u64>| values(read, |slice| slice.and_then(of).map(|sum| sum as f64));
    let series = vec![
        Series { name: "prompt tokens", class: "first", values: sum(|slice| slice.figures.prompt.get()) },
        Series { name: "completion tokens", class: "second", values: sum(|slice| slice.figures.completion.get()) },
    ];
    bars("Tokens", read, series)
}

fn latency_chart(read: &Read) -> Markup {
    let series = SHARES.map(|(name, class, share)| {
        let percentile = |slice: &TimeSlice| slice.latencies.percentile(read.phase, share);
        let values = values(read, |slice| slice.and_then(percentile).map(|time| time.as_micros() as f64));
        Series { name, class, values }
    });
    let title = match read.phase {
        Phase::Total => "Time to answer".to_owned(),
        phase => format!("Time: {}", phase.as_str()),
    };
    let series = series.into_iter().collect();
    Chart { title: &title, slices: slots(read), series, kind: Kind::Lines, write: format::micros, axis: format::micros }
        .draw()
}

/// Where the time went, phase by phase; each can be drawn.
fn phases(query: &Fields, read: &Read) -> Markup {
    let latencies = &read.report.latencies;
    html! {
        section.card {
            h2 { "Where the time went" }
            div.scroll tabindex="0" role="region" aria-label="Where the time went" {
                table.rows {
                    thead { tr {
                        th scope="col" { "Phase" } th.right scope="col" { "Measured" }
                        @for (name, ..) in SHARES { th.right scope="col" { (name) } }
                    } }
                    tbody {
                        @for phase in Phase::ALL {
                            tr {
                                th scope="row" {
                                    @let here = (phase == read.phase).then_some("true");
                                    a href=(query.with("phase", phase.as_str())) aria-current=[here] { (phase.as_str()) }
                                    @if here.is_some() { " " span.quiet.small { "(in the chart)" } }
                                }
                                td.right data-label="Measured" { (number(latencies.count(phase))) }
                                @for (name, _, share) in SHARES {
                                    td.right data-label=(name) {
                                        (latencies.percentile(phase, share).map_or_else(|| "–".into(), format::duration))
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

fn groups(query: &Fields, read: &Read) -> Markup {
    html! {
        section.card {
            div.heading {
                h2 { "Figures" }
                nav.tabs aria-label="Grouping" {
                    @for group in Group::ALL {
                        @let here = (group == read.group).then_some("true");
                        a href=(query.with("group", group.name())) aria-current=[here] { "By " (group.name()) }
                    }
                }
            }
            @if read.report.totals.requests == 0 { p.quiet { "Nothing to show." } } @else { (group_table(query, read)) }
        }
    }
}

fn group_table(query: &Fields, read: &Read) -> Markup {
    let report = &read.report;
    let head = match read.group {
        Group::Time if read.range.step == Step::Hour => "Hour",
        Group::Time => "Day",
        Group::Key => "Key",
        Group::Outcome => "Outcome",
    };
    html! {
        div.scroll tabindex="0" role="region" aria-label={ "Figures by " (read.group.name()) } {
            table.rows {
                thead { tr {
                    th scope="col" { (head) }
                    @for column in ["Requests", "Failed", "Prompt tokens", "Completion tokens", "Total tokens"] {
                        th.right scope="col" { (column) }
                    }
                } }
                tbody {
                    @match read.group {
                        Group::Time => @for slice in report.by_time.iter().rev() {
                            (line(html! { span data-slice=(slice.start) { (format::slice_name(slice.start, read.range.step)) } },
                                &slice.figures, slice.succeeded))
                        },
                        Group::Outcome => @for outcome in &report.by_outcome {
                            @let name = format::outcome(outcome.status, outcome.code.as_deref());
                            @let succeeded = if outcome.code.is_none() { outcome.figures.requests } else { 0 };
                            @let link = format!("/requests?status={}", outcome.status);
                            (line(html! { a href=(link) { (name) } }, &outcome.figures, succeeded))
                        },
                        Group::Key => @for KeyUsage { key, name, figures, succeeded } in report.by_key.iter().take(MOST_KEYS) {
                            (line(html! { a href=(query.with("key", key.as_str())) { (name) } " " code.quiet { (key) } },
                                figures, *succeeded))
                        },
                    }
                }
                tfoot { (line(html! { "All" }, &report.totals, report.succeeded)) }
            }
        }
        @if read.group == Group::Key && report.by_key.len() > MOST_KEYS {
            p.quiet { "The " (MOST_KEYS) " most used of " (number(report.by_key.len() as u64)) " keys; the export has them all." }
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
