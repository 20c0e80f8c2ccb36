//! Sums by key and person, and the groups that they are shown in. Pure, and the same for both backends.
//!
//! Every group is made of the same parts: the use of one key while it had one owner. So all groupings have the same total
//! and the same cost.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::ops::Range;

use chat::{KeyId, Timestamp};

use crate::StoreError;
use crate::id::AccountId;
use crate::pending::PendingRows;
use crate::prices::{Cost, Price, PriceList};
use crate::project::Project;
use crate::rollup::{Figures, KeySum, Resolution, SumRange};
use crate::sql::Row;
use crate::usage::{KeyUsage, Period, Person, PersonUsage, ProjectUsage, UsageReport};
use crate::viewer::Viewer;

/// A key in a report.
#[derive(Debug, Clone)]
pub(crate) struct ReportKey {
    pub(crate) id: KeyId,
    pub(crate) name: String,
    pub(crate) last_used_at: Option<Timestamp>,
    pub(crate) project: Option<Project>,
    pub(crate) owner: Option<AccountId>,
    /// The owner before the key was first given to another person; the same as `owner` if it never was.
    pub(crate) first_owner: Option<AccountId>,
}

impl ReportKey {
    /// `$1` is an owner and `$2` a key's id, or NULL for all.
    pub(crate) const SELECT: &str = "SELECT id, name, last_used_at, project, owner FROM keys
        WHERE ($1 IS NULL OR owner = $1) AND ($2 IS NULL OR id = $2) ORDER BY id";
    /// Keys that were given to another person, and their first owners.
    pub(crate) const SELECT_GIVEN: &str = "SELECT key_id, first_owner FROM given_keys";

    pub(crate) fn read(row: &Row<'_>) -> Result<Self, StoreError> {
        let owner = row.get_optional(4)?;
        Ok(Self {
            id: row.get(0)?,
            name: row.get(1)?,
            last_used_at: row.get_optional(2)?,
            project: row.get_optional(3)?,
            owner,
            first_owner: owner,
        })
    }

    fn is_visible_to(&self, viewer: &Viewer) -> bool {
        viewer.scope().is_none_or(|account| self.owner == Some(*account))
    }

    fn visible_project(&self, viewer: &Viewer) -> Option<&Project> {
        self.project.as_ref().filter(|_| self.is_visible_to(viewer))
    }

    pub(crate) fn read_given(row: &Row<'_>) -> Result<(KeyId, Option<AccountId>), StoreError> {
        Ok((row.get(0)?, parse_person(&row.get::<String>(1)?)?))
    }

    /// `keys` are in the order of their ids.
    pub(crate) fn set_first_owners(keys: &mut [Self], given: Vec<(KeyId, Option<AccountId>)>) {
        for (key, first_owner) in given {
            if let Ok(at) = keys.binary_search_by_key(&key, |known| known.id) {
                keys[at].first_owner = first_owner;
            }
        }
    }
}

/// The column holds '' for no person.
pub(crate) fn parse_person(column: &str) -> Result<Option<AccountId>, StoreError> {
    match column {
        "" => Ok(None),
        id => id.parse().map(Some).map_err(|_| StoreError::Corrupt("owner")),
    }
}

impl Person {
    pub(crate) const SELECT: &str = "SELECT id, name, email FROM accounts";

    pub(crate) fn read(row: &Row<'_>) -> Result<Self, StoreError> {
        Ok(Self { id: row.get(0)?, name: row.get(1)?, email: row.get(2)? })
    }
}

/// Sums of keys over some time. Keys and sums come in the order of ids, so that the search for a sum's key continues from
/// the previous key, and starts over for the next range of time.
pub(crate) struct SumTable<'a> {
    keys: &'a [ReportKey],
    sums: Vec<KeySum>,
    at: usize,
    people: BTreeMap<(usize, Option<AccountId>), KeySum>,
}

impl<'a> SumTable<'a> {
    /// `keys` are in the order of their ids.
    pub(crate) fn new(keys: &'a [ReportKey]) -> Self {
        Self { keys, sums: vec![KeySum::default(); keys.len()], at: 0, people: BTreeMap::new() }
    }

    /// Adds or subtracts a key's sums. `part` is read only for keys that are in the report.
    pub(crate) fn add<E>(
        &mut self,
        key: &[u8],
        added: bool,
        part: impl FnOnce() -> Result<KeySum, E>,
    ) -> Result<(), E> {
        let Self { keys, sums, at, .. } = self;
        if *at > 0 && keys[*at - 1].id.as_bytes() >= key {
            *at = 0;
        }
        while keys.get(*at).is_some_and(|known| known.id.as_bytes() < key) {
            *at += 1;
        }
        if keys.get(*at).is_some_and(|known| known.id.as_bytes() == key) {
            apply(&mut sums[*at], added, &part()?);
            *at += 1;
        }
        Ok(())
    }

    /// Adds or subtracts the part of a key's sums that belongs to one person.
    pub(crate) fn add_person(&mut self, key: KeyId, person: Option<AccountId>, added: bool, part: &KeySum) {
        if let Ok(at) = self.keys.binary_search_by_key(&key, |known| known.id) {
            apply(self.people.entry((at, person)).or_default(), added, part);
        }
    }

    /// Adds the rows that the stored sums of these hours do not contain.
    pub(crate) fn add_pending(&mut self, pending: &PendingRows, hours: &Range<u64>) {
        for (key, sum) in pending.sums().filter(|(key, _)| hours.contains(&key.start)) {
            let Ok(()) = self.add(key.key.as_bytes(), true, || Ok::<_, Infallible>(*sum));
        }
        for (key, sum) in pending.people().filter(|(key, _)| hours.contains(&key.of_key.start)) {
            self.add_person(key.of_key.key, key.person, true, sum);
        }
    }

    /// The parts of one person, or all parts; in the order of keys.
    pub(crate) fn into_parts(self, of: Option<AccountId>) -> Parts<'a> {
        let mut parts = Vec::with_capacity(self.keys.len());
        let mut people = self.people.into_iter().peekable();
        let mut add = |key, person, sum: KeySum| {
            if sum.figures.requests > 0 && of.is_none_or(|wanted| person == Some(wanted)) {
                parts.push(Part { key, person, sum });
            }
        };
        for (at, (key, mut rest)) in self.keys.iter().zip(self.sums).enumerate() {
            while let Some(((_, person), part)) = people.next_if(|((of_key, _), _)| *of_key == at) {
                rest.subtract(&part);
                add(key, person, part);
            }
            // The rest, which is in no sum by person, belongs to the first owner.
            add(key, key.first_owner, rest);
        }
        Parts(parts)
    }
}

fn apply(sum: &mut KeySum, added: bool, part: &KeySum) {
    if added { sum.merge(part) } else { sum.subtract(part) }
}

/// The use of one key while it had one owner.
struct Part<'a> {
    key: &'a ReportKey,
    person: Option<AccountId>,
    sum: KeySum,
}

pub(crate) struct Parts<'a>(Vec<Part<'a>>);

impl Parts<'_> {
    pub(crate) fn by_key(&self, viewer: &Viewer, prices: &PriceList, pending: &PendingRows) -> Vec<KeyUsage> {
        let last_uses: HashMap<_, _> = pending.unfolded().last_uses().collect();
        let usage = |parts: &[Part<'_>]| {
            let key = parts[0].key;
            let is_visible = key.is_visible_to(viewer);
            let last_at = key.last_used_at.max(last_uses.get(&key.id).copied()).unwrap_or_default();
            let mut group = Group::default();
            parts.iter().for_each(|part| group.add(part, prices));
            KeyUsage {
                key: key.id,
                name: if is_visible { key.name.clone() } else { "given to another person".into() },
                project: key.visible_project(viewer).cloned(),
                is_visible,
                figures: Figures { last_at, ..group.sum.figures },
                succeeded: group.sum.succeeded,
                cost: group.cost(prices),
            }
        };
        let mut keys: Vec<_> = self.0.chunk_by(|one, next| one.key.id == next.key.id).map(usage).collect();
        keys.sort_unstable_by_key(|usage| (Reverse(usage.figures.requests), usage.key));
        keys
    }

    pub(crate) fn by_person(&self, people: &HashMap<AccountId, Person>, prices: &PriceList) -> Vec<PersonUsage> {
        let usage = |(person, group): (Option<AccountId>, Group)| PersonUsage {
            person: person.and_then(|id| people.get(&id)).cloned(),
            cost: group.cost(prices),
            figures: group.sum.figures,
            succeeded: group.sum.succeeded,
        };
        let mut all: Vec<_> = self.grouped(|part| part.person, prices).into_iter().map(usage).collect();
        all.sort_by_key(|usage| Reverse(usage.figures.requests));
        all
    }

    /// A previous owner does not see the project of a key that was given away.
    pub(crate) fn by_project(&self, viewer: &Viewer, prices: &PriceList) -> Vec<ProjectUsage> {
        let usage = |(project, group): (Option<&Project>, Group)| ProjectUsage {
            project: project.cloned(),
            cost: group.cost(prices),
            figures: group.sum.figures,
            succeeded: group.sum.succeeded,
        };
        let groups = self.grouped(|part| part.key.visible_project(viewer), prices);
        let mut all: Vec<_> = groups.into_iter().map(usage).collect();
        all.sort_by_key(|usage| Reverse(usage.figures.requests));
        all
    }

    /// The cost of all parts; `None` if there are no prices.
    pub(crate) fn cost(&self, prices: &PriceList) -> Option<Cost> {
        let mut cost = Cost::default();
        self.0.iter().for_each(|part| cost.merge(&part.cost(prices)));
        (!prices.is_empty()).then_some(cost)
    }

    fn grouped<'a, By: Ord>(&'a self, by: impl Fn(&'a Part<'a>) -> By, prices: &PriceList) -> BTreeMap<By, Group> {
        let mut groups: BTreeMap<By, Group> = BTreeMap::new();
        self.0.iter().for_each(|part| groups.entry(by(part)).or_default().add(part, prices));
        groups
    }
}

impl Part<'_> {
    fn cost(&self, prices: &PriceList) -> Cost {
        Cost::from_figures(&self.sum.figures, prices.price_for(self.key.project.as_ref()))
    }
}

#[derive(Default)]
struct Group {
    sum: KeySum,
    cost: Cost,
}

impl Group {
    fn add(&mut self, part: &Part<'_>, prices: &PriceList) {
        self.sum.merge(&part.sum);
        self.cost.merge(&part.cost(prices));
    }

    fn cost(&self, prices: &PriceList) -> Option<Cost> {
        (!prices.is_empty()).then_some(self.cost)
    }
}

impl UsageReport {
    /// Used if there is only the default price or none: then the keys need not be read.
    pub(crate) fn set_uniform_cost(&mut self, price: Option<Price>) {
        let Some(price) = price else { return };
        self.by_time.iter_mut().for_each(|slice| slice.cost = Some(Cost::from_figures(&slice.figures, Some(price))));
        self.cost = Some(Cost::from_figures(&self.totals, Some(price)));
    }
}

/// The sums that make up a day of a period: the day's, or those of its hours if the day lies only partly in the period.
pub(crate) fn day_range(period: Period, day: u64) -> SumRange {
    let (hours, end) = (period.whole_hours(), day + Resolution::Day.seconds());
    let starts = day.max(hours.start)..end.min(hours.end);
    match starts == (day..end) {
        true => SumRange { span: Resolution::Day, starts: day..day + 1, added: true },
        false => SumRange { span: Resolution::Hour, starts, added: true },
    }
}
