//! Reads sums from the roll-ups, and the rows that these do not contain.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::ops::Range;

use chat::{KeyId, RequestId, Timestamp};
use rusqlite::{Connection, Row, params, params_from_iter};

use super::Sqlite;
use super::fold::{rows_between, unfolded_sums};
use super::pool::numbered;
use crate::groups::{ReportKey, SumTable, day_range, parse_person};
use crate::id::AccountId;
use crate::latency::Latencies;
use crate::pending::PendingRows;
use crate::price_store::{SELECT_PRICES, price_list, price_row};
use crate::report::{ReportBuilder, RollupRow};
use crate::rollup::{Figures, KeySum, Measured, Resolution, SumRange, sum_ranges};
use crate::scope::Scope;
use crate::sum_cache::{HourTotals, SumCache, SumsByKey};
use crate::usage::{Grouping, Period, Person, Step, UsageQuery};
use crate::viewer::Viewer;
use crate::{KeyUsage, PriceList, StoreError, UsageReport, sql};

/// The columns of `Figures`.
const FIGURES: &str = "requests, prompt_tokens, prompt_measured, completion_tokens, completion_measured, total_tokens,
    total_measured, last_at";
/// The columns of `KeySum`.
const SUMS: &str = "requests, succeeded, prompt_tokens, prompt_measured, completion_tokens, completion_measured,
    total_tokens, total_measured";

impl Sqlite {
    pub(crate) fn usage(
        &self,
        viewer: &Viewer,
        query: &UsageQuery,
        now: Timestamp,
    ) -> Result<Option<UsageReport>, StoreError> {
        self.with(|connection| {
            // One read transaction, so that every grouping sees the same rows.
            let snapshot = connection.transaction()?;
            let scope = match (query.key, query.person_for(viewer)) {
                (Some(key), _) if !is_visible(&snapshot, viewer, key)? => return Ok(None),
                (Some(key), _) => Scope::Key(key),
                (None, Some(account)) => Scope::Owner(account),
                (None, None) => Scope::Everyone,
            };
            let pending = pending_rows(&snapshot, query.period)?;
            let mut report = read(&snapshot, &pending, scope, query, now)?;
            group(&snapshot, &self.sums, &pending, viewer, query, &mut report)?;
            Ok(Some(report))
        })
    }

    pub(crate) fn usage_by_key(&self, viewer: &Viewer, period: Period) -> Result<Vec<KeyUsage>, StoreError> {
        self.with(|connection| {
            let snapshot = connection.transaction()?;
            let pending = pending_rows(&snapshot, period)?;
            let keys = keys(&snapshot, viewer.scope(), None)?;
            let parts = Sums::new(&snapshot, &self.sums, &pending)?.of_period(&keys)?.into_parts(None);
            Ok(parts.by_key(viewer, &PriceList::default(), &pending))
        })
    }

    /// The last uses of keys that are not yet in the sums.
    pub(crate) fn unfolded_uses(&self) -> Result<HashMap<KeyId, Timestamp>, StoreError> {
        self.with(|connection| Ok(unfolded_sums(&*connection.transaction()?)?.last_uses().collect()))
    }
}

/// Everyone's sums, in the finest steps.
pub(super) fn everything(connection: &Connection) -> Result<UsageReport, StoreError> {
    let query = UsageQuery::everything();
    let pending = pending_rows(connection, query.period)?;
    let mut report = read(connection, &pending, Scope::Everyone, &query, Timestamp::default())?;
    group(connection, &SumCache::default(), &pending, &Viewer::operator(), &query, &mut report)?;
    Ok(report)
}

fn is_visible(connection: &Connection, viewer: &Viewer, key: KeyId) -> Result<bool, rusqlite::Error> {
    let mut find =
        connection.prepare_cached("SELECT count(*) > 0 FROM keys WHERE id = ?1 AND (?2 IS NULL OR owner = ?2)")?;
    find.query_row(params![key.as_str(), viewer.scope_text()], |row| row.get(0))
}

/// Sums the roll-ups of one scope in one pass, by time and outcome.
fn read(
    connection: &Connection,
    pending: &PendingRows,
    scope: Scope,
    query: &UsageQuery,
    now: Timestamp,
) -> Result<UsageReport, StoreError> {
    let mut rollups = connection.prepare_cached(&format!(
        "SELECT {FIGURES}, start, status, code, latencies FROM rollups
         WHERE party = ?1 AND start >= ?2 AND start < ?3"
    ))?;
    let hours = pending.period().whole_hours();
    let stored = rollups.query_and_then(params![scope.to_string(), hours.start, hours.end], rollup)?;
    let mut sums = ReportBuilder::new(query.step);
    sums.add_all(scope, stored, pending)?;
    Ok(sums.finish(pending, now))
}

fn rollup(row: &Row<'_>) -> Result<RollupRow, StoreError> {
    let blob = row.get_ref(11)?.as_blob().map_err(|_| StoreError::Corrupt("roll-up"))?;
    Ok(RollupRow {
        start: row.get(8)?,
        status: row.get(9)?,
        code: row.get(10)?,
        figures: figures(row)?,
        latencies: Latencies::decode(blob).ok_or(StoreError::Corrupt("roll-up"))?,
    })
}

/// The rows of a period that the sums do not contain.
fn pending_rows(connection: &Connection, period: Period) -> Result<PendingRows, StoreError> {
    let mut pending = PendingRows::new(period, unfolded_sums(connection)?);
    for hour in period.cut_hours() {
        let [first, end] = [hour, hour + 3600].map(|second| RequestId::first_at(Timestamp::from_seconds(second)));
        let mut rows = connection.prepare_cached("SELECT count(*) FROM requests WHERE id >= ?1 AND id < ?2")?;
        let rows = rows.query_row([first.to_bytes(), end.to_bytes()], |row| row.get(0))?;
        let mut folded = connection
            .prepare_cached("SELECT coalesce(sum(requests), 0) FROM rollups WHERE party = '' AND start = ?1")?;
        let folded = folded.query_row([hour], |row| row.get(0))?;
        if pending.require_rows(hour, rows, folded) {
            rows_between(connection, period.part_of(hour), |row| pending.add(row))?;
        }
    }
    Ok(pending)
}

/// Adds groups and costs to a report.
fn group(
    connection: &Connection,
    kept: &SumCache,
    pending: &PendingRows,
    viewer: &Viewer,
    query: &UsageQuery,
    report: &mut UsageReport,
) -> Result<(), StoreError> {
    let Some(grouping) = query.group else { return Ok(()) };
    let prices = price_list(all(connection, SELECT_PRICES, &[], price_row)?);
    report.currency = prices.currency;
    if grouping == Grouping::Time && prices.projects.is_empty() {
        report.set_uniform_cost(prices.default);
        return Ok(());
    }
    let sums = Sums::new(connection, kept, pending)?;
    let keys = keys(connection, None, query.key)?;
    let person = query.person_for(viewer).filter(|_| query.key.is_none());
    let parts = sums.of_period(&keys)?.into_parts(person);
    report.cost = parts.cost(&prices);
    match grouping {
        Grouping::Time if query.step == Step::Day => {
            for slice in &mut report.by_time {
                let day = slice.start.as_seconds();
                let mut table = SumTable::new(&keys);
                sums.add(&mut table, &day_range(pending.period(), day))?;
                table.add_pending(pending, &(day..day + 86_400));
                slice.cost = table.into_parts(person).cost(&prices);
            }
        }
        Grouping::Time => {}
        Grouping::Key => report.by_key = parts.by_key(viewer, &prices, pending),
        Grouping::Person => {
            let people = all(connection, Person::SELECT, &[], Person::read)?;
            let people = people.into_iter().map(|person| (person.id, person)).collect();
            report.by_person = parts.by_person(&people, &prices);
        }
        Grouping::Project => report.by_project = parts.by_project(viewer, &prices),
    }
    Ok(())
}

fn keys(connection: &Connection, owner: Option<&AccountId>, only: Option<KeyId>) -> Result<Vec<ReportKey>, StoreError> {
    let parameters = [owner.map(AccountId::as_str), only.as_ref().map(KeyId::as_str)];
    let mut keys = all(connection, ReportKey::SELECT, &parameters, ReportKey::read)?;
    ReportKey::set_first_owners(&mut keys, all(connection, ReportKey::SELECT_GIVEN, &[], ReportKey::read_given)?);
    Ok(keys)
}

fn all<T>(
    connection: &Connection,
    sql: &str,
    parameters: &[Option<&str>],
    read: impl Fn(&sql::Row<'_>) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let mut statement = connection.prepare_cached(&numbered(sql))?;
    let rows = statement.query_and_then(params_from_iter(parameters), |row| read(&sql::Row::Sqlite(row)))?;
    rows.collect()
}

/// Sums by key, from the narrow tables, in one snapshot.
struct Sums<'a> {
    connection: &'a Connection,
    kept: &'a SumCache,
    totals: HourTotals,
    pending: &'a PendingRows,
}

impl<'a> Sums<'a> {
    fn new(connection: &'a Connection, kept: &'a SumCache, pending: &'a PendingRows) -> Result<Self, StoreError> {
        let mut totals = connection.prepare_cached(
            "SELECT start, sum(requests) FROM rollups WHERE party = '' AND start >= ?1 GROUP BY start",
        )?;
        // The first eight-day sum may start before the period.
        let first = Resolution::EightDays.start_of(pending.period().whole_hours().start);
        let totals = totals.query_map([first], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
        Ok(Self { connection, kept, totals, pending })
    }

    /// Coarse ranges of time in the middle, finer ones at the edges.
    fn of_period<'k>(&self, keys: &'k [ReportKey]) -> Result<SumTable<'k>, StoreError> {
        let mut table = SumTable::new(keys);
        for range in sum_ranges(&self.pending.period().whole_hours()) {
            self.add(&mut table, &range)?;
        }
        table.add_pending(self.pending, &(0..u64::MAX));
        Ok(table)
    }

    fn add(&self, table: &mut SumTable<'_>, range: &SumRange) -> Result<(), StoreError> {
        let SumRange { span, ref starts, added } = *range;
        match span {
            Resolution::Hour => {
                for hours in self.totals.divide(starts) {
                    self.add_sums(table, span, &hours, added)?;
                }
            }
            Resolution::Day | Resolution::EightDays => {
                for start in self.totals.starts_within(starts, span) {
                    self.add_sums(table, span, &(start..start + span.seconds()), added)?;
                }
            }
        }
        let mut scan = self.connection.prepare_cached(&format!(
            "SELECT key_id, {SUMS}, account FROM person_sums WHERE span = ?1 AND start >= ?2 AND start < ?3",
        ))?;
        let mut rows = scan.query(params![span.seconds(), starts.start, starts.end])?;
        while let Some(row) = rows.next()? {
            let person = parse_person(row.get_ref(9)?.as_str().map_err(|_| StoreError::Corrupt("owner"))?)?;
            table.add_person(key_id(row, 0)?, person, added, &key_sum(row)?);
        }
        Ok(())
    }

    /// Adds the sums that start within `time`, from the cache if possible.
    fn add_sums(
        &self,
        table: &mut SumTable<'_>,
        span: Resolution,
        time: &Range<u64>,
        added: bool,
    ) -> Result<(), StoreError> {
        let Some(past) = self.totals.past(span, time) else {
            return self.read(span, time, |key, sum| table.add(key, added, sum));
        };
        let sums = match self.kept.get(&past) {
            Some(sums) => sums,
            None => {
                let sums = self.sum_up(span, time)?;
                self.kept.keep(past, sums.clone());
                sums
            }
        };
        for (key, sum) in &*sums {
            let Ok(()) = table.add(key.as_bytes(), added, || Ok::<_, Infallible>(*sum));
        }
        Ok(())
    }

    fn sum_up(&self, span: Resolution, time: &Range<u64>) -> Result<SumsByKey, StoreError> {
        let mut sums: BTreeMap<KeyId, KeySum> = BTreeMap::new();
        self.read(span, time, |key, sum| {
            let key = std::str::from_utf8(key).ok().and_then(|key| key.parse().ok());
            sums.entry(key.ok_or(StoreError::Corrupt("sum"))?).or_default().merge(&sum()?);
            Ok(())
        })?;
        Ok(sums.into_iter().collect())
    }

    /// Reads the sums that start within a range, by start and key. Many belong to keys that were not requested, so `take`
    /// reads a sum only if it needs it.
    fn read(
        &self,
        span: Resolution,
        starts: &Range<u64>,
        mut take: impl FnMut(&[u8], &dyn Fn() -> Result<KeySum, StoreError>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut scan = self.connection.prepare_cached(&format!(
            "SELECT key_id, {SUMS} FROM key_sums WHERE span = ?1 AND start >= ?2 AND start < ?3 ORDER BY start, key_id",
        ))?;
        let mut rows = scan.query(params![span.seconds(), starts.start, starts.end])?;
        while let Some(row) = rows.next()? {
            let key = row.get_ref(0)?.as_bytes().map_err(|_| StoreError::Corrupt("sum"))?;
            take(key, &|| key_sum(row))?;
        }
        Ok(())
    }
}

/// Reads a key's sums from the columns after its id.
fn key_sum(row: &Row<'_>) -> Result<KeySum, StoreError> {
    let number = |at: usize| {
        let number = row.get_ref(at)?.as_i64().map_err(|_| StoreError::Corrupt("sum"))?;
        u64::try_from(number).map_err(|_| StoreError::Corrupt("sum"))
    };
    let measured = |at| Ok::<_, StoreError>(Measured { sum: number(at)?, count: number(at + 1)? });
    let figures = Figures {
        requests: number(1)?,
        prompt: measured(3)?,
        completion: measured(5)?,
        total: measured(7)?,
        last_at: Timestamp::default(),
    };
    Ok(KeySum { figures, succeeded: number(2)? })
}

/// Reads `Figures` from the first columns of a row.
fn figures(row: &Row<'_>) -> Result<Figures, rusqlite::Error> {
    let measured = |at| Ok::<_, rusqlite::Error>(Measured { sum: row.get(at)?, count: row.get(at + 1)? });
    Ok(Figures {
        requests: row.get(0)?,
        prompt: measured(1)?,
        completion: measured(3)?,
        total: measured(5)?,
        last_at: Timestamp::from_millis(row.get(7)?),
    })
}

pub(super) fn key_id(row: &Row<'_>, column: usize) -> Result<KeyId, rusqlite::Error> {
    let text = row.get_ref(column)?.as_str()?;
    text.parse().map_err(|_| rusqlite::Error::InvalidColumnType(column, "key id".into(), rusqlite::types::Type::Text))
}
