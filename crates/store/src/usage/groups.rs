//! The groups of a report, and their costs. Pure.
//!
//! Every group is made of the same parts: the use of one key while it had one owner and one project. So all groupings have
//! the same total and the same cost.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use chat::{KeyId, Timestamp};

use crate::StoreError;
use crate::database::sql::Row;
use crate::usage::cost::{Cost, Price, PriceList};
use crate::usage::query::{GIVEN_AWAY, GroupLabel, Grouping, Person, Step, UsageGroup, UsageReport, UsedKey};
use crate::usage::rollup::{KeySum, Part, Resolution};
use crate::values::{AccountId, Project, Viewer};

/// A key as it is now.
pub(crate) struct KnownKey {
    key: UsedKey,
    owner: Option<AccountId>,
    pub(crate) last_used_at: Option<Timestamp>,
}

/// What labels show, by id; only what the grouping needs.
#[derive(Default)]
pub(crate) struct Names {
    pub(crate) keys: HashMap<KeyId, KnownKey>,
    pub(crate) people: HashMap<AccountId, Person>,
}

impl KnownKey {
    pub(crate) const SELECT: &str = "SELECT id, name, project, owner, last_used_at FROM keys";

    pub(crate) fn read(row: &Row<'_>) -> Result<(KeyId, Self), StoreError> {
        let (id, name, project) = (row.get(0)?, row.get(1)?, row.get_optional(2)?);
        let key = UsedKey { id, name, project, is_visible: true };
        Ok((id, Self { key, owner: row.get_optional(3)?, last_used_at: row.get_optional(4)? }))
    }

    /// A former owner does not see what became of the key.
    fn shown_to(&self, viewer: &Viewer) -> UsedKey {
        match viewer.scope() {
            Some(account) if self.owner != Some(*account) => {
                UsedKey { id: self.key.id, name: GIVEN_AWAY.into(), project: None, is_visible: false }
            }
            _ => self.key.clone(),
        }
    }
}

impl Person {
    pub(crate) const SELECT: &str = "SELECT id, name, email FROM accounts";

    pub(crate) fn read(row: &Row<'_>) -> Result<(AccountId, Self), StoreError> {
        let id = row.get(0)?;
        Ok((id, Self { id, name: row.get(1)?, email: row.get(2)? }))
    }
}

/// What the parts of a group have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Common {
    /// The start of a day.
    Day(u64),
    Key(KeyId),
    Owner(Option<AccountId>),
    Project(Option<Project>),
}

/// The sums of groups, each by project, because projects have prices.
pub(crate) struct Groups {
    grouping: Grouping,
    sums: HashMap<(Common, Option<Project>), KeySum>,
}

impl Groups {
    pub(crate) fn new(grouping: Grouping) -> Self {
        Self { grouping, sums: HashMap::new() }
    }

    /// Adds the sum of a part over a time that starts then.
    pub(crate) fn add(&mut self, start: u64, part: Part, sum: &KeySum) {
        let common = match self.grouping {
            Grouping::Time => Common::Day(Resolution::Day.start_of(start)),
            Grouping::Key => Common::Key(part.key),
            Grouping::Person => Common::Owner(part.owner),
            Grouping::Project => Common::Project(part.project.clone()),
        };
        self.sums.entry((common, part.project)).or_default().merge(sum);
    }

    /// Puts the groups and their costs into the report. Days are among its slices of time, and hours have no costs.
    pub(crate) fn finish(
        self,
        report: &mut UsageReport,
        step: Step,
        names: &Names,
        viewer: &Viewer,
        prices: &PriceList,
    ) {
        let mut by_project: BTreeMap<Option<Project>, KeySum> = BTreeMap::new();
        let mut groups: BTreeMap<Common, (KeySum, Cost)> = BTreeMap::new();
        for ((common, project), sum) in self.sums {
            let (all, cost) = groups.entry(common).or_default();
            all.merge(&sum);
            cost.merge(&Cost::from_figures(&sum.figures, prices.price_for(project.as_ref())));
            by_project.entry(project).or_default().merge(&sum);
        }
        let has_costs = !prices.is_empty();
        if has_costs {
            let total = report.cost.get_or_insert_default();
            for (project, sum) in by_project {
                total.merge(&Cost::from_figures(&sum.figures, prices.price_for(project.as_ref())));
            }
        }
        for slice in report.by_time.iter_mut().filter(|_| has_costs && step == Step::Day) {
            let day = slice.start().map(|start| Common::Day(start.as_seconds()));
            slice.cost = day.and_then(|day| groups.get(&day)).map(|(_, cost)| *cost);
        }
        let group = |(common, (mut sum, cost)): (Common, (KeySum, Cost))| {
            let label = match common {
                Common::Day(_) => return None,
                Common::Key(id) => {
                    let known = names.keys.get(&id)?;
                    let key = known.shown_to(viewer);
                    sum.figures.last_at = known.last_used_at.filter(|_| key.is_visible).unwrap_or_default();
                    GroupLabel::Key(key)
                }
                Common::Owner(id) => GroupLabel::Person(id.and_then(|id| names.people.get(&id)).cloned()),
                Common::Project(project) => GroupLabel::Project(project),
            };
            let cost = has_costs.then_some(cost);
            Some(UsageGroup { cost, ..UsageGroup::new(label, sum.figures, sum.succeeded) })
        };
        report.groups = groups.into_iter().filter_map(group).collect();
        report.groups.sort_by_key(|group| Reverse(group.figures.requests));
    }
}

impl UsageReport {
    /// Used if there is only the default price or none: then no parts need be read.
    pub(crate) fn set_uniform_cost(&mut self, price: Option<Price>) {
        let Some(price) = price else { return };
        self.by_time.iter_mut().for_each(|slice| slice.cost = Some(Cost::from_figures(&slice.figures, Some(price))));
        self.cost = Some(Cost::from_figures(&self.totals, Some(price)));
    }
}
