//! Usage by group, for exports of the console and the command line.

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Value, json};
use store::{Cost, Currency, Figures, GroupLabel, Grouping, UsageGroup, UsageReport};

use crate::csv::spreadsheet_safe;
use crate::times::{date, rfc3339_millis, rfc3339_seconds};
use crate::usage::{TOKEN_COLUMNS, token_sums};

/// How usage is grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Hours or days.
    Time,
    Day,
    Key,
    Person,
    Project,
    Outcome,
}

impl Group {
    pub fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Day => "day",
            Self::Key => "key",
            Self::Person => "person",
            Self::Project => "project",
            Self::Outcome => "outcome",
        }
    }

    /// The grouping for the store's report; `None` for outcomes, which every report contains.
    pub fn grouping(self) -> Option<Grouping> {
        match self {
            Self::Time | Self::Day => Some(Grouping::Time),
            Self::Key => Some(Grouping::Key),
            Self::Person => Some(Grouping::Person),
            Self::Project => Some(Grouping::Project),
            Self::Outcome => None,
        }
    }

    /// The groups of this kind in a report that was made with this grouping.
    pub fn of(self, report: &UsageReport) -> &[UsageGroup] {
        match self {
            Self::Time | Self::Day => &report.by_time,
            Self::Key | Self::Person | Self::Project => &report.groups,
            Self::Outcome => &report.by_outcome,
        }
    }
}

/// The id and the name of a group.
fn id_and_name(label: &GroupLabel, group: Group) -> (Option<String>, String) {
    match label {
        GroupLabel::Time(start) if group == Group::Day => (Some(date(*start)), String::new()),
        GroupLabel::Time(start) => (Some(rfc3339_millis(*start)), String::new()),
        GroupLabel::Key(key) => (Some(key.id.to_string()), key.name.clone()),
        GroupLabel::Person(Some(person)) => (Some(person.email.to_string()), person.name.clone()),
        GroupLabel::Person(None) => (None, NO_ONE.into()),
        GroupLabel::Project(Some(project)) => (Some(project.to_string()), String::new()),
        GroupLabel::Project(None) => (None, NO_PROJECT.into()),
        GroupLabel::Outcome(status, code) => (Some(status.to_string()), code.clone().unwrap_or_else(|| "ok".into())),
    }
}

/// The names of groups without a person or project.
pub const NO_ONE: &str = "No one";
pub const NO_PROJECT: &str = "No project";

/// One group, or the total of all.
#[derive(Debug)]
pub struct GroupRow {
    group: Group,
    /// The key's id, the person's e-mail address, the project, the time or the status; `None` for no one and no project.
    id: Option<String>,
    name: String,
    is_total: bool,
    pub figures: Figures,
    succeeded: u64,
    pub cost: Option<Cost>,
}

impl GroupRow {
    /// The CSV's column names.
    pub fn columns(group: Group, has_costs: bool) -> Vec<&'static str> {
        let costs: &[_] = if has_costs { &["cost", "currency", "cost_requests"] } else { &[] };
        let figures = [group.name(), "name", "requests", "failed"].into_iter().chain(TOKEN_COLUMNS);
        figures.chain(costs.iter().copied()).collect()
    }

    /// The groups of a report; the total is last.
    pub fn all(report: &UsageReport, group: Group) -> Vec<Self> {
        let row = |usage: &UsageGroup| {
            let (id, name) = id_and_name(&usage.label, group);
            let UsageGroup { figures, succeeded, cost, .. } = *usage;
            Self { group, id, name, is_total: false, figures, succeeded, cost }
        };
        let mut rows: Vec<_> = group.of(report).iter().map(row).collect();
        rows.push(Self {
            group,
            id: None,
            name: String::new(),
            is_total: true,
            figures: report.totals,
            succeeded: report.succeeded,
            cost: report.cost,
        });
        rows
    }

    /// The group in a table of text.
    pub fn title(&self) -> String {
        match (self.group, &self.id) {
            _ if self.is_total => "all".into(),
            (Group::Key, Some(id)) => format!("{id} {}", self.name),
            (Group::Person, Some(email)) => format!("{} <{email}>", self.name),
            (_, id) => id.as_ref().unwrap_or(&self.name).clone(),
        }
    }

    /// The cells of the CSV, with costs if there is a currency.
    pub fn cells(&self, currency: Option<Currency>) -> Vec<String> {
        let number = |figure: Option<u64>| figure.map_or_else(String::new, |figure| figure.to_string());
        let id = if self.is_total { "all" } else { self.id.as_deref().unwrap_or_default() };
        let mut cells = vec![
            spreadsheet_safe(id),
            spreadsheet_safe(&self.name),
            self.figures.requests.to_string(),
            self.failed().to_string(),
        ];
        cells.extend(token_sums(&self.figures).map(|(_, value)| number(value)));
        if let Some(currency) = currency {
            let exact = self.cost.map_or_else(String::new, |cost| cost.exact());
            cells.extend([exact, currency.to_string(), number(self.cost.map(|cost| cost.requests))]);
        }
        cells
    }

    pub fn failed(&self) -> u64 {
        self.figures.requests.saturating_sub(self.succeeded)
    }
}

impl Serialize for GroupRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if !self.is_total {
            map.serialize_entry(self.group.name(), &self.id)?;
            map.serialize_entry("name", &self.name)?;
        }
        map.serialize_entry("requests", &self.figures.requests)?;
        map.serialize_entry("failed", &self.failed())?;
        for (column, value) in token_sums(&self.figures) {
            map.serialize_entry(column, &value)?;
        }
        if let Some(cost) = &self.cost {
            map.serialize_entry("cost", &cost.exact())?;
            map.serialize_entry("cost_requests", &cost.requests)?;
        }
        map.end()
    }
}

/// A whole report by group, as JSON. Costs are texts, because they are exact.
pub fn group_report(report: &UsageReport, group: Group) -> Value {
    let mut groups = GroupRow::all(report, group);
    let all = groups.pop();
    let mut document = json!({
        "since": rfc3339_seconds(report.since),
        "until": rfc3339_seconds(report.until),
        // Whether the range was widened to whole hours, because their requests were deleted.
        "widened": report.is_widened,
        "by": group.name(),
    });
    if let Some(currency) = report.currency {
        document["currency"] = currency.to_string().into();
    }
    document["groups"] = json!(groups);
    document["all"] = json!(all);
    document
}
