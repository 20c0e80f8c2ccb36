//! The breakdown on the usage page: by time, key, person, project or outcome, sorted and in pages.

use chat::Timestamp;
use format::{Group, NO_ONE, NO_PROJECT, money, number};
use maud::{Markup, html};
use store::{Cost, Figures, KeyUsage, OutcomeUsage, PersonUsage, Project, ProjectUsage, Step, TimeSlice};

use crate::page::{Column, Fields, Order, Paging, failed, measured};
use crate::usage::page::UsageView;

/// The position of the table on its page.
const ANCHOR: &str = "#breakdown";

/// One line of the table.
struct Line<'a> {
    label: Label<'a>,
    figures: &'a Figures,
    succeeded: u64,
    cost: Option<Cost>,
}

enum Label<'a> {
    Time(&'a TimeSlice),
    Key(&'a KeyUsage),
    Person(&'a PersonUsage),
    Project(&'a ProjectUsage),
    Outcome(&'a OutcomeUsage),
    All,
}

pub(crate) fn breakdown(query: &Fields, view: &UsageView, groups: &[Group]) -> Markup {
    html! {
        section.card #breakdown {
            div.heading {
                h2 { "Breakdown" }
                nav.tabs aria-label="Grouping" {
                    @for group in groups {
                        @let here = (*group == view.group).then_some("true");
                        @let link = query.without(&["page", "sort"]).with("group", group.name());
                        a href={ (link) (ANCHOR) } aria-current=[here] { "By " (group.name()) }
                    }
                }
            }
            @if view.report.totals.requests == 0 { p.quiet { "Nothing to show." } } @else { (table(query, view)) }
        }
    }
}

fn table(query: &Fields, view: &UsageView) -> Markup {
    let columns = columns(view);
    let order = Order::from_query(query, &columns, default_order(view));
    let mut lines = lines(view);
    order.sort(&mut lines);
    let paging = Paging::new(query, lines.len());
    let report = &view.report;
    html! {
        div.scroll tabindex="0" role="region" aria-label={ "Usage by " (view.group.name()) } {
            table.rows {
                thead { tr { (order.head(&query.without(&["page"]), ANCHOR)) } }
                tbody { @for line in paging.cut(&lines) { (row(query, view, line)) } }
                tfoot {
                    (row(query, view, &Line {
                        label: Label::All, figures: &report.totals, succeeded: report.succeeded, cost: report.cost,
                    }))
                }
            }
        }
        (paging.links(query, "line", ANCHOR))
        @if has_cost(view) { (cost_note(view)) }
    }
}

/// Costs are computed by key and by day, so outcomes have none. Hours show a dash.
fn has_cost(view: &UsageView) -> bool {
    view.report.cost.is_some() && view.group != Group::Outcome
}

/// The cost in units of its last decimal.
fn exact(cost: Cost) -> Option<u128> {
    cost.rounded(12).replace('.', "").parse().ok()
}

/// As in the query.
fn default_order(view: &UsageView) -> &'static str {
    match view.group {
        Group::Time | Group::Day => "-time",
        _ => "-requests",
    }
}

fn cost_note(view: &UsageView) -> Markup {
    let report = &view.report;
    let counted = report.cost.unwrap_or_default().requests;
    html! {
        p.quiet.small {
            "Costs are computed from measured tokens and current prices; they are not a bill. "
            (number(counted)) " of " (number(report.totals.requests)) " requests have measured tokens and a price. "
            @if view.group == Group::Time && view.range.step == Step::Hour && report.by_time.iter().all(|it| it.cost.is_none()) {
                "Costs are not computed by hour. Choose days to see them."
            }
        }
    }
}

fn title(view: &UsageView) -> &'static str {
    match view.group {
        Group::Time if view.range.step == Step::Hour => "Hour",
        Group::Time | Group::Day => "Day",
        Group::Key => "Key",
        Group::Person => "Person",
        Group::Project => "Project",
        Group::Outcome => "Outcome",
    }
}

fn lines(view: &UsageView) -> Vec<Line<'_>> {
    let report = &view.report;
    let line = |label, figures, succeeded, cost| Line { label, figures, succeeded, cost };
    match view.group {
        Group::Time | Group::Day => {
            let slices = report.by_time.iter();
            slices.map(|it| line(Label::Time(it), &it.figures, it.succeeded, it.cost)).collect()
        }
        Group::Key => {
            let keys = report.by_key.iter();
            keys.map(|it| line(Label::Key(it), &it.figures, it.succeeded, it.cost)).collect()
        }
        Group::Person => {
            let people = report.by_person.iter();
            people.map(|it| line(Label::Person(it), &it.figures, it.succeeded, it.cost)).collect()
        }
        Group::Project => {
            let projects = report.by_project.iter();
            projects.map(|it| line(Label::Project(it), &it.figures, it.succeeded, it.cost)).collect()
        }
        Group::Outcome => {
            let succeeded = |it: &OutcomeUsage| if it.code.is_none() { it.figures.requests } else { 0 };
            let outcomes = report.by_outcome.iter();
            outcomes.map(|it| line(Label::Outcome(it), &it.figures, succeeded(it), None)).collect()
        }
    }
}

fn columns<'a>(view: &UsageView) -> Vec<Column<Line<'a>>> {
    let label = match view.group {
        Group::Time | Group::Day => Column::time("time", title(view), |line: &Line<'_>| line.label.start()),
        _ => Column::text("name", title(view), |line: &Line<'_>| line.label.sort_name()),
    };
    let figures = [
        Column::number("requests", "Requests", |line: &Line<'_>| Some(line.figures.requests.into())),
        Column::number("failed", "Failed", |line: &Line<'_>| Some(failed(line.figures, line.succeeded).into())),
        Column::number("prompt", "Prompt tokens", |line: &Line<'_>| Some(line.figures.prompt.sum.into())),
        Column::number("completion", "Completion tokens", |line: &Line<'_>| Some(line.figures.completion.sum.into())),
        Column::number("total", "Total tokens", |line: &Line<'_>| Some(line.figures.total.sum.into())),
    ];
    let cost = Column::number("cost", "Cost (computed)", |line: &Line<'_>| line.cost.and_then(exact));
    [label].into_iter().chain(figures).chain(has_cost(view).then_some(cost)).collect()
}

impl Label<'_> {
    fn start(&self) -> Option<Timestamp> {
        match self {
            Self::Time(slice) => Some(slice.start),
            _ => None,
        }
    }

    /// Without regard to case.
    fn sort_name(&self) -> String {
        match self {
            Self::Key(usage) => usage.name.to_lowercase(),
            Self::Person(usage) => usage.person.as_ref().map_or(NO_ONE, |person| &person.name).to_lowercase(),
            Self::Project(usage) => usage.project.as_ref().map_or(NO_PROJECT, Project::as_str).to_lowercase(),
            Self::Outcome(usage) => format!("{} {}", usage.status, usage.code.as_deref().unwrap_or_default()),
            Self::Time(_) | Self::All => String::new(),
        }
    }
}

fn row(query: &Fields, view: &UsageView, line: &Line<'_>) -> Markup {
    let Line { label, figures, succeeded, cost } = line;
    let requests = figures.requests;
    let tokens =
        [("Prompt tokens", figures.prompt), ("Completion tokens", figures.completion), ("Total tokens", figures.total)];
    html! {
        tr {
            th scope="row" { (name(query, view, label)) }
            td.right data-label="Requests" { (number(requests)) }
            td.right data-label="Failed" { (number(failed(figures, *succeeded))) }
            @for (title, figure) in tokens {
                td.right data-label=(title) { (measured(figure, requests)) }
            }
            @if has_cost(view) {
                td.right data-label="Cost" {
                    @match cost.zip(view.report.currency) {
                        Some((cost, currency)) => (money(cost, currency)),
                        None => "–",
                    }
                }
            }
        }
    }
}

fn name(query: &Fields, view: &UsageView, label: &Label<'_>) -> Markup {
    let only = |name: &str, id: &str| query.without(&["page", "sort", "key", "person", "group"]).with(name, id);
    html! {
        @match label {
            Label::Time(slice) => span data-slice=(slice.start.as_millis()) { (format::slice_name(slice.start, view.range.step)) },
            Label::Key(usage) => {
                @if usage.is_visible { a href=(only("key", usage.key.as_str())) { (usage.name) } } @else { (usage.name) }
                " " code.quiet { (usage.key) }
                @if let Some(project) = &usage.project { div.quiet.small { (project) } }
            }
            Label::Person(usage) => @match &usage.person {
                Some(person) => {
                    a href=(only("person", person.id.as_str())) { (person.name) } div.quiet.small { (person.email) }
                }
                None => (NO_ONE),
            },
            Label::Project(usage) => @match &usage.project {
                Some(project) => a href=(Fields::default().with_path("/keys", "find", project.as_str())) { (project) },
                None => (NO_PROJECT),
            },
            Label::Outcome(usage) => {
                a href={ "/requests?status=" (usage.status) } { (format::outcome(usage.status, usage.code.as_deref())) }
            }
            Label::All => "All",
        }
    }
}
