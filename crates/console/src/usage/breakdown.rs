//! The breakdown on the usage page: by time, key, person, project or outcome, sorted and in pages.

use format::{Group, NO_ONE, NO_PROJECT, money, number};
use maud::{Markup, html};
use store::{Cost, Figures, GroupLabel, Project, Step, UsageGroup};

use crate::page::{Column, Fields, Order, Paging, failed, measured};
use crate::usage::page::UsageView;

/// The position of the table on its page.
const ANCHOR: &str = "#breakdown";

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
    let report = &view.report;
    let mut groups: Vec<&UsageGroup> = view.group.of(report).iter().collect();
    order.sort(&mut groups);
    let paging = Paging::new(query, groups.len());
    html! {
        div.scroll tabindex="0" role="region" aria-label={ "Usage by " (view.group.name()) } {
            table.rows {
                thead { tr { (order.head(&query.without(&["page"]), ANCHOR)) } }
                tbody {
                    @for group in paging.cut(&groups) {
                        (row(view, name(query, view, &group.label), &group.figures, group.succeeded, group.cost))
                    }
                }
                tfoot { (row(view, html! { "All" }, &report.totals, report.succeeded, report.cost)) }
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

fn columns(view: &UsageView) -> Vec<Column<UsageGroup>> {
    let label = match view.group {
        Group::Time | Group::Day => Column::time("time", title(view), UsageGroup::start),
        _ => Column::text("name", title(view), |line: &UsageGroup| sort_name(&line.label)),
    };
    let figures = [
        Column::number("requests", "Requests", |line: &UsageGroup| Some(line.figures.requests.into())),
        Column::number("failed", "Failed", |line: &UsageGroup| Some(failed(&line.figures, line.succeeded).into())),
        Column::number("prompt", "Prompt tokens", |line: &UsageGroup| Some(line.figures.prompt.sum.into())),
        Column::number("completion", "Completion tokens", |line: &UsageGroup| Some(line.figures.completion.sum.into())),
        Column::number("total", "Total tokens", |line: &UsageGroup| Some(line.figures.total.sum.into())),
    ];
    let cost = Column::number("cost", "Cost (computed)", |line: &UsageGroup| line.cost.and_then(exact));
    [label].into_iter().chain(figures).chain(has_cost(view).then_some(cost)).collect()
}

/// Without regard to case.
fn sort_name(label: &GroupLabel) -> String {
    match label {
        GroupLabel::Key(key) => key.name.to_lowercase(),
        GroupLabel::Person(person) => person.as_ref().map_or(NO_ONE, |person| &person.name).to_lowercase(),
        GroupLabel::Project(project) => project.as_ref().map_or(NO_PROJECT, Project::as_str).to_lowercase(),
        GroupLabel::Outcome(status, code) => format!("{status} {}", code.as_deref().unwrap_or_default()),
        GroupLabel::Time(_) => String::new(),
    }
}

fn row(view: &UsageView, name: Markup, figures: &Figures, succeeded: u64, cost: Option<Cost>) -> Markup {
    let requests = figures.requests;
    let tokens =
        [("Prompt tokens", figures.prompt), ("Completion tokens", figures.completion), ("Total tokens", figures.total)];
    html! {
        tr {
            th scope="row" { (name) }
            td.right data-label="Requests" { (number(requests)) }
            td.right data-label="Failed" { (number(failed(figures, succeeded))) }
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

fn name(query: &Fields, view: &UsageView, label: &GroupLabel) -> Markup {
    let only = |name: &str, id: &str| query.without(&["page", "sort", "key", "person", "group"]).with(name, id);
    html! {
        @match label {
            GroupLabel::Time(start) => span data-slice=(start.as_millis()) { (format::slice_name(*start, view.range.step)) },
            GroupLabel::Key(key) => {
                @if key.is_visible { a href=(only("key", key.id.as_str())) { (key.name) } } @else { (key.name) }
                " " code.quiet { (key.id) }
                @if let Some(project) = &key.project { div.quiet.small { (project) } }
            }
            GroupLabel::Person(Some(person)) => {
                a href=(only("person", person.id.as_str())) { (person.name) } div.quiet.small { (person.email) }
            }
            GroupLabel::Person(None) => (NO_ONE),
            GroupLabel::Project(Some(project)) => {
                a href=(Fields::default().with_path("/keys", "find", project.as_str())) { (project) }
            }
            GroupLabel::Project(None) => (NO_PROJECT),
            GroupLabel::Outcome(status, code) => {
                a href={ "/requests?status=" (status) } { (format::outcome(*status, code.as_deref())) }
            }
        }
    }
}
