//! Reads reports: sums from the roll-ups, and the rows that these do not contain. Everything in a report comes from one
//! snapshot, so that every grouping sees the same rows.

use std::collections::{BTreeMap, HashMap};

use chat::{KeyId, RequestId, Timestamp};

use crate::database::snapshot::Snapshot;
use crate::database::sql::{Row, params};
use crate::usage::groups::{Groups, KnownKey, Names};
use crate::usage::pending::PendingRows;
use crate::usage::prices::{SELECT_PRICES, price_list, price_row};
use crate::usage::query::{Grouping, Period, Person, RequestScope, Step, UsageQuery, UsageReport};
use crate::usage::report::ReportBuilder;
use crate::usage::rollup::{Figures, KeySum, Measured, Part, Resolution, sum_ranges};
use crate::usage::unfolded::{rows_between, unfolded_sums};
use crate::values::Viewer;
use crate::{StoreError, Usage};

impl Usage<'_> {
    /// Sums from the roll-ups; `None` for a key that the viewer may not see.
    pub async fn report(self, viewer: &Viewer, query: &UsageQuery) -> Result<Option<UsageReport>, StoreError> {
        let (viewer, query, now) = (viewer.clone(), *query, self.now());
        self.long_read(async move |snapshot| read_report(snapshot, &viewer, &query, now).await).await
    }

    /// The use of each key. Keys that were not used may be missing.
    pub async fn by_key(self, viewer: &Viewer, period: Period) -> Result<HashMap<KeyId, Figures>, StoreError> {
        let scope = RequestScope::new(viewer, None, None);
        let read = async move |snapshot: &mut Snapshot<'_>| {
            let pending = pending_rows(snapshot, period).await?;
            let mut keys: HashMap<KeyId, Figures> = HashMap::new();
            let add = |_, part: Part, sum: &KeySum| keys.entry(part.key).or_default().merge(&sum.figures);
            each_sum(snapshot, scope, &pending, Resolution::EightDays, add).await?;
            Ok(keys)
        };
        self.long_read(read).await
    }

    /// The last uses of keys that are not yet in the sums.
    pub(crate) async fn unfolded_uses(self) -> Result<BTreeMap<KeyId, Timestamp>, StoreError> {
        self.short_read(async |snapshot| Ok(unfolded_sums(snapshot).await?.last_uses())).await
    }
}

/// Everyone's sums, in the finest steps.
pub(crate) async fn read_everything(snapshot: &mut Snapshot<'_>) -> Result<UsageReport, StoreError> {
    let report = read_report(snapshot, &Viewer::operator(), &UsageQuery::everything(), Timestamp::default()).await?;
    report.ok_or(StoreError::Corrupt("report"))
}

async fn read_report(
    snapshot: &mut Snapshot<'_>,
    viewer: &Viewer,
    query: &UsageQuery,
    now: Timestamp,
) -> Result<Option<UsageReport>, StoreError> {
    if let Some(key) = &query.key {
        let find = "SELECT count(*) > 0 FROM keys WHERE id = $1 AND ($2 IS NULL OR owner = $2)";
        if !snapshot.value::<bool>(find, params![key, viewer.scope()]).await? {
            return Ok(None);
        }
    }
    let scope = RequestScope::new(viewer, query.key, query.person);
    let pending = pending_rows(snapshot, query.period).await?;
    let mut report = read_rollups(snapshot, scope, &pending, query.step, now).await?;
    if let Some(grouping) = query.group {
        group(snapshot, scope, &pending, viewer, (grouping, query.step), &mut report).await?;
    }
    Ok(Some(report))
}

/// Sums the roll-ups of one scope in one pass, by time and outcome.
async fn read_rollups(
    snapshot: &mut Snapshot<'_>,
    scope: RequestScope,
    pending: &PendingRows,
    step: Step,
    now: Timestamp,
) -> Result<UsageReport, StoreError> {
    let read = "SELECT start, status, code, latencies, last_at, requests, prompt_tokens, prompt_measured,
            completion_tokens, completion_measured, total_tokens, total_measured FROM rollups
        WHERE party = $1 AND start >= $2 AND start < $3 AND ($4 IS NULL OR account = $4)";
    let hours = pending.period().whole_hours();
    let (party, mut sums) = (scope.scope.to_string(), ReportBuilder::new(step));
    let add = |row: &Row<'_>| {
        let figures = Figures { last_at: row.get(4)?, ..figures(row, 5)? };
        sums.add(row.get(0)?, row.get(1)?, &row.get::<String>(2)?, &figures, &row.get(3)?);
        Ok(())
    };
    snapshot.each(read, params![&*party, hours.start, hours.end, scope.owner.as_ref()], add).await?;
    Ok(sums.finish(scope, pending, now))
}

/// The rows of a period that the sums do not contain.
async fn pending_rows(snapshot: &mut Snapshot<'_>, period: Period) -> Result<PendingRows, StoreError> {
    let mut pending = PendingRows::new(period, unfolded_sums(snapshot).await?);
    for hour in period.cut_hours() {
        let [first, end] = [hour, hour + 3600].map(|second| RequestId::first_at(Timestamp::from_seconds(second)));
        let rows = "SELECT count(*) FROM requests WHERE id >= $1 AND id < $2";
        let rows = snapshot.value(rows, params![first, end]).await?;
        let folded = "SELECT CAST(coalesce(sum(requests), 0) AS bigint) FROM rollups WHERE party = '' AND start = $1";
        let folded = snapshot.value(folded, params![hour]).await?;
        if pending.require_rows(hour, rows, folded) {
            rows_between(snapshot, period.part_of(hour), |row| pending.add(&row)).await?;
        }
    }
    Ok(pending)
}

/// Adds groups and costs to a report.
async fn group(
    snapshot: &mut Snapshot<'_>,
    scope: RequestScope,
    pending: &PendingRows,
    viewer: &Viewer,
    (grouping, step): (Grouping, Step),
    report: &mut UsageReport,
) -> Result<(), StoreError> {
    let prices = price_list(snapshot.query(SELECT_PRICES, &[], price_row).await?);
    report.currency = prices.currency;
    if grouping == Grouping::Time && prices.projects.is_empty() {
        report.set_uniform_cost(prices.default);
        return Ok(());
    }
    let widest = if grouping == Grouping::Time { Resolution::Day } else { Resolution::EightDays };
    let mut groups = Groups::new(grouping);
    each_sum(snapshot, scope, pending, widest, |start, part, sum| groups.add(start, part, sum)).await?;
    let mut names = Names::default();
    match grouping {
        Grouping::Key => {
            names.keys = snapshot.query(KnownKey::SELECT, &[], KnownKey::read).await?.into_iter().collect();
            for (key, last_use) in pending.unfolded().last_uses() {
                names.keys.entry(key).and_modify(|known| known.last_used_at = known.last_used_at.max(Some(last_use)));
            }
        }
        Grouping::Person => {
            names.people = snapshot.query(Person::SELECT, &[], Person::read).await?.into_iter().collect();
        }
        Grouping::Time | Grouping::Project => {}
    }
    groups.finish(report, step, &names, viewer, &prices);
    Ok(())
}

/// Reads the sums of all parts of a period, with their start.
async fn each_sum(
    snapshot: &mut Snapshot<'_>,
    scope: RequestScope,
    pending: &PendingRows,
    widest: Resolution,
    mut take: impl FnMut(u64, Part, &KeySum),
) -> Result<(), StoreError> {
    let read = "SELECT start, key_id, nullif(account, ''), nullif(project, ''), succeeded, requests, prompt_tokens,
            prompt_measured, completion_tokens, completion_measured, total_tokens, total_measured FROM sums
        WHERE span = $1 AND start >= $2 AND start < $3 AND ($4 IS NULL OR key_id = $4)
            AND ($5 IS NULL OR account = $5)";
    let (key, person) = (scope.key(), scope.person());
    for range in sum_ranges(&pending.period().whole_hours(), widest) {
        let add = |row: &Row<'_>| {
            let part = Part { key: row.get(1)?, owner: row.get_optional(2)?, project: row.get_optional(3)? };
            take(row.get(0)?, part, &KeySum { succeeded: row.get(4)?, figures: figures(row, 5)? });
            Ok(())
        };
        let (span, starts) = (range.span.seconds(), range.starts);
        let within = params![span, starts.start, starts.end, key.as_ref().map(KeyId::as_str), person.as_ref()];
        snapshot.each(read, within, add).await?;
    }
    for (key, sum) in pending.sums().filter(|(key, _)| scope.contains(&key.part)) {
        take(key.start, key.part.clone(), sum);
    }
    Ok(())
}

/// Reads `Figures`, without the time of the last request, from this column on.
fn figures(row: &Row<'_>, first: usize) -> Result<Figures, StoreError> {
    let measured = |at| Ok::<_, StoreError>(Measured { sum: row.get(at)?, count: row.get(at + 1)? });
    Ok(Figures {
        requests: row.get(first)?,
        prompt: measured(first + 1)?,
        completion: measured(first + 3)?,
        total: measured(first + 5)?,
        last_at: Timestamp::default(),
    })
}
