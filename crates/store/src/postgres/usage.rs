//! Reads sums from the roll-ups, and the rows that these do not contain.

use std::collections::HashMap;

use chat::{KeyId, RequestId, Timestamp};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use super::fold::{rows_between, unfolded_sums};
use super::{Parameter, Postgres, count, key_id, number, signed, text};
use crate::groups::{ReportKey, SumTable, day_range, parse_person};
use crate::id::AccountId;
use crate::latency::Latencies;
use crate::pending::PendingRows;
use crate::price_store::{SELECT_PRICES, price_list, price_row};
use crate::report::{ReportBuilder, RollupRow};
use crate::rollup::{Figures, KeySum, Measured, SumRange, sum_ranges};
use crate::scope::Scope;
use crate::usage::{Grouping, Period, Person, Step, UsageQuery};
use crate::viewer::Viewer;
use crate::{KeyUsage, PriceList, StoreError, UsageReport, sql};

/// The columns of `KeySum`.
const SUMS: &str = "requests, succeeded, prompt_tokens, prompt_measured, completion_tokens, completion_measured,
    total_tokens, total_measured";

impl Postgres {
    pub(crate) async fn usage(
        &self,
        viewer: &Viewer,
        query: &UsageQuery,
        now: Timestamp,
    ) -> Result<Option<UsageReport>, StoreError> {
        // One snapshot, so that every grouping sees the same rows.
        let report = self.report(async |client| {
            let scope = match (query.key, query.person_for(viewer)) {
                (Some(key), _) if !is_visible(client, viewer, key).await? => return Ok(None),
                (Some(key), _) => Scope::Key(key),
                (None, Some(account)) => Scope::Owner(account),
                (None, None) => Scope::Everyone,
            };
            let pending = pending_rows(client, query.period).await?;
            let mut report = read(client, &pending, scope, query, now).await?;
            group(client, &pending, viewer, query, &mut report).await?;
            Ok(Some(report))
        });
        report.await
    }

    pub(crate) async fn usage_by_key(&self, viewer: &Viewer, period: Period) -> Result<Vec<KeyUsage>, StoreError> {
        let report = self.report(async |client| {
            let pending = pending_rows(client, period).await?;
            let keys = keys(client, viewer.scope(), None).await?;
            let parts = sum_up(client, &pending, &keys, None).await?.into_parts(None);
            Ok(parts.by_key(viewer, &PriceList::default(), &pending))
        });
        report.await
    }

    /// The last uses of keys that are not yet in the sums.
    pub(crate) async fn unfolded_uses(&self) -> Result<HashMap<KeyId, Timestamp>, StoreError> {
        self.snapshot(async |client| Ok(unfolded_sums(client).await?.last_uses().collect())).await
    }
}

/// Everyone's sums, in the finest steps.
pub(super) async fn everything(client: &Client) -> Result<UsageReport, StoreError> {
    let query = UsageQuery::everything();
    let pending = pending_rows(client, query.period).await?;
    let mut report = read(client, &pending, Scope::Everyone, &query, Timestamp::default()).await?;
    group(client, &pending, &Viewer::operator(), &query, &mut report).await?;
    Ok(report)
}

async fn is_visible(client: &Client, viewer: &Viewer, key: KeyId) -> Result<bool, StoreError> {
    let find = "SELECT count(*) > 0 FROM keys WHERE id = $1 AND ($2 IS NULL OR owner = $2)";
    Ok(client.query_typed_one(find, &[text(&key.as_str()), text(&viewer.scope_text())]).await?.try_get(0)?)
}

/// Sums the roll-ups of one scope in one pass, by time and outcome.
async fn read(
    client: &Client,
    pending: &PendingRows,
    scope: Scope,
    query: &UsageQuery,
    now: Timestamp,
) -> Result<UsageReport, StoreError> {
    let rollups =
        "SELECT requests, prompt_tokens, prompt_measured, completion_tokens, completion_measured, total_tokens,
            total_measured, last_at, start, status, code, latencies FROM rollups
        WHERE party = $1 AND start >= $2 AND start < $3";
    let hours = pending.period().whole_hours();
    let (party, from, to) = (scope.to_string(), signed(hours.start), signed(hours.end));
    let stored = client.query_typed(rollups, &[text(&party), number(&from), number(&to)]).await?;
    let mut sums = ReportBuilder::new(query.step);
    sums.add_all(scope, stored.iter().map(rollup), pending)?;
    Ok(sums.finish(pending, now))
}

fn rollup(row: &Row) -> Result<RollupRow, StoreError> {
    let packed: Vec<i64> = row.try_get(11)?;
    Ok(RollupRow {
        start: count(row, 8)?,
        status: status(row, 9)?,
        code: row.try_get(10)?,
        figures: figures(row)?,
        latencies: Latencies::unpack(&packed).ok_or(StoreError::Corrupt("roll-up"))?,
    })
}

/// The rows of a period that the sums do not contain.
async fn pending_rows(client: &Client, period: Period) -> Result<PendingRows, StoreError> {
    let mut pending = PendingRows::new(period, unfolded_sums(client).await?);
    for hour in period.cut_hours() {
        let [first, end] = [hour, hour + 3600].map(first_at);
        let rows = "SELECT count(*), (SELECT coalesce(sum(requests), 0)::bigint FROM rollups
                WHERE party = '' AND start = $3) FROM requests WHERE id >= $1 AND id < $2";
        let start = signed(hour);
        let parameters = [(&first as _, Type::UUID), (&end as _, Type::UUID), number(&start)];
        let counted = client.query_typed_one(rows, &parameters).await?;
        if pending.require_rows(hour, count(&counted, 0)?, count(&counted, 1)?) {
            let part = period.part_of(hour);
            rows_between(client, first_at(part.start), first_at(part.end), |row| pending.add(row)).await?;
        }
    }
    Ok(pending)
}

fn first_at(second: u64) -> Uuid {
    Uuid::from_bytes(RequestId::first_at(Timestamp::from_seconds(second)).to_bytes())
}

/// Adds groups and costs to a report.
async fn group(
    client: &Client,
    pending: &PendingRows,
    viewer: &Viewer,
    query: &UsageQuery,
    report: &mut UsageReport,
) -> Result<(), StoreError> {
    let Some(grouping) = query.group else { return Ok(()) };
    let prices = price_list(all(client, SELECT_PRICES, &[], price_row).await?);
    report.currency = prices.currency;
    if grouping == Grouping::Time && prices.projects.is_empty() {
        report.set_uniform_cost(prices.default);
        return Ok(());
    }
    let keys = keys(client, None, query.key).await?;
    let person = query.person_for(viewer).filter(|_| query.key.is_none());
    let parts = sum_up(client, pending, &keys, query.key).await?.into_parts(person);
    report.cost = parts.cost(&prices);
    match grouping {
        Grouping::Time if query.step == Step::Day => {
            for slice in &mut report.by_time {
                let day = slice.start.as_seconds();
                let mut table = SumTable::new(&keys);
                add_sums(client, &mut table, &day_range(pending.period(), day), query.key).await?;
                table.add_pending(pending, &(day..day + 86_400));
                slice.cost = table.into_parts(person).cost(&prices);
            }
        }
        Grouping::Time => {}
        Grouping::Key => report.by_key = parts.by_key(viewer, &prices, pending),
        Grouping::Person => {
            let people = all(client, Person::SELECT, &[], Person::read).await?;
            let people = people.into_iter().map(|person| (person.id, person)).collect();
            report.by_person = parts.by_person(&people, &prices);
        }
        Grouping::Project => report.by_project = parts.by_project(viewer, &prices),
    }
    Ok(())
}

async fn keys(client: &Client, owner: Option<&AccountId>, only: Option<KeyId>) -> Result<Vec<ReportKey>, StoreError> {
    let (owner, only) = (owner.map(AccountId::as_str), only.map(|key| key.to_string()));
    let mut keys = all(client, ReportKey::SELECT, &[text(&owner), text(&only)], ReportKey::read).await?;
    ReportKey::set_first_owners(&mut keys, all(client, ReportKey::SELECT_GIVEN, &[], ReportKey::read_given).await?);
    Ok(keys)
}

async fn all<T>(
    client: &Client,
    sql: &str,
    parameters: &[Parameter<'_>],
    read: impl Fn(&sql::Row<'_>) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    client.query_typed(sql, parameters).await?.iter().map(|row| read(&sql::Row::Postgres(row))).collect()
}

/// Sums by key, from the narrow tables: coarse ranges of time in the middle, finer ones at the edges.
async fn sum_up<'k>(
    client: &Client,
    pending: &PendingRows,
    keys: &'k [ReportKey],
    only: Option<KeyId>,
) -> Result<SumTable<'k>, StoreError> {
    let mut table = SumTable::new(keys);
    for range in sum_ranges(&pending.period().whole_hours()) {
        add_sums(client, &mut table, &range, only).await?;
    }
    table.add_pending(pending, &(0..u64::MAX));
    Ok(table)
}

async fn add_sums(
    client: &Client,
    table: &mut SumTable<'_>,
    range: &SumRange,
    only: Option<KeyId>,
) -> Result<(), StoreError> {
    let [span, from, to] = [range.span.seconds(), range.starts.start, range.starts.end].map(signed);
    let only = only.map(|key| key.to_string());
    let within = [number(&span), number(&from), number(&to), text(&only)];
    let scan = format!(
        "SELECT key_id, {SUMS} FROM key_sums
         WHERE span = $1 AND start >= $2 AND start < $3 AND ($4 IS NULL OR key_id = $4) ORDER BY start, key_id"
    );
    for row in client.query_typed(&scan, &within).await? {
        table.add(row.try_get::<_, &str>(0)?.as_bytes(), range.added, || key_sum(&row))?;
    }
    let scan = format!(
        "SELECT key_id, {SUMS}, account FROM person_sums
         WHERE span = $1 AND start >= $2 AND start < $3 AND ($4 IS NULL OR key_id = $4)"
    );
    for row in client.query_typed(&scan, &within).await? {
        table.add_person(key_id(&row, 0)?, parse_person(row.try_get(9)?)?, range.added, &key_sum(&row)?);
    }
    Ok(())
}

/// Reads a key's sums from the columns after its id.
fn key_sum(row: &Row) -> Result<KeySum, StoreError> {
    let figures = Figures {
        requests: count(row, 1)?,
        prompt: measured(row, 3)?,
        completion: measured(row, 5)?,
        total: measured(row, 7)?,
        last_at: Timestamp::default(),
    };
    Ok(KeySum { figures, succeeded: count(row, 2)? })
}

/// Reads `Figures` from the first columns of a row.
fn figures(row: &Row) -> Result<Figures, StoreError> {
    Ok(Figures {
        requests: count(row, 0)?,
        prompt: measured(row, 1)?,
        completion: measured(row, 3)?,
        total: measured(row, 5)?,
        last_at: Timestamp::from_millis(count(row, 7)?),
    })
}

fn measured(row: &Row, column: usize) -> Result<Measured, StoreError> {
    Ok(Measured { sum: count(row, column)?, count: count(row, column + 1)? })
}

pub(super) fn status(row: &Row, column: usize) -> Result<u16, StoreError> {
    u16::try_from(row.try_get::<_, i16>(column)?).map_err(|_| StoreError::Corrupt("status"))
}

pub(super) fn tokens(row: &Row, column: usize) -> Result<Option<u32>, StoreError> {
    let figure: Option<i64> = row.try_get(column)?;
    figure.map(u32::try_from).transpose().map_err(|_| StoreError::Corrupt("request"))
}
