//! Reads the ledger: sums from the roll-ups and the rows that they lack, and rows from the end of `requests`.

use std::collections::{HashMap, HashSet};

use chat::{KeyId, RequestId, Timestamp, TokenUsage};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::Sqlite;
use super::fold::{unfolded, unfolded_sums};
use crate::latency::Latencies;
use crate::report::{KeyUsageBuilder, NamedKey, ReportBuilder, RollupRow};
use crate::rollup::{Figures, GroundingRecord, KeySum, Measured, Rollups, SumRange, sum_ranges};
use crate::scope::Scope;
use crate::usage::{Period, RequestQuery, UsageQuery, persist_us};
use crate::viewer::Viewer;
use crate::{KeyUsage, RecordedRequest, StoreError, UsageReport};

/// The columns of `Figures`.
const FIGURES: &str = "requests, prompt_tokens, prompt_measured, completion_tokens, completion_measured, total_tokens,
    total_measured, last_at";

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
            let scope = match (query.key, viewer.scope()) {
                (Some(key), _) if !is_visible(&snapshot, viewer, key)? => return Ok(None),
                (Some(key), _) => Scope::Key(key),
                (None, Some(account)) => Scope::Owner(*account),
                (None, None) => Scope::Everyone,
            };
            let unfolded = unfolded_sums(&snapshot)?;
            let mut report = read(&snapshot, &unfolded, scope, query, now)?;
            if query.by_key {
                report.by_key = by_key(&snapshot, &unfolded, viewer, query.period, query.key)?;
            }
            Ok(Some(report))
        })
    }

    pub(crate) fn usage_by_key(&self, viewer: &Viewer, period: Period) -> Result<Vec<KeyUsage>, StoreError> {
        self.with(|connection| {
            let snapshot = connection.transaction()?;
            by_key(&snapshot, &unfolded_sums(&snapshot)?, viewer, period, None)
        })
    }

    pub(crate) fn requests(&self, viewer: &Viewer, query: &RequestQuery) -> Result<Vec<RecordedRequest>, StoreError> {
        let first = RequestId::first_at(query.since).to_bytes();
        let before = query.before.map_or([0xff; 16], RequestId::to_bytes);
        // SQLite uses the index on failed requests only if the condition says so literally.
        let status = match query.status {
            None => "?3 IS NULL",
            Some(200) => "status = ?3",
            Some(_) => "status = ?3 AND status <> 200",
        };
        let within = format!("requests.id >= ?1 AND requests.id < ?2 AND {status}");
        self.with(|connection| {
            if query.key.is_none() && viewer.scope().is_none() {
                let rows = select_from("requests");
                let mut newest =
                    connection.prepare(&format!("{rows} WHERE {within} ORDER BY requests.id DESC LIMIT ?4"))?;
                let rows = newest.query_map(params![first, before, query.status, query.limit], request)?;
                return Ok(rows.collect::<Result<_, _>>()?);
            }
            // One snapshot: what is folded meanwhile would be in both lists, or in none.
            let snapshot = connection.transaction()?;
            let mut keys =
                snapshot.prepare("SELECT id FROM keys WHERE (?1 IS NULL OR owner = ?1) AND (?2 IS NULL OR id = ?2)")?;
            let keys = keys
                .query_map(params![viewer.scope_text(), query.key.as_ref().map(KeyId::as_str)], |row| key_id(row, 0))?;
            let keys = keys.collect::<Result<HashSet<_>, _>>()?;
            let mut all = Vec::new();
            // The newest requests of each key; of these, the newest.
            let rows = select_from("requests_of_keys AS listed CROSS JOIN requests USING (id)");
            let listed = within.replace("requests.id", "listed.id");
            let mut newest = snapshot
                .prepare(&format!("{rows} WHERE listed.key_id = ?5 AND {listed} ORDER BY listed.id DESC LIMIT ?4"))?;
            for key in &keys {
                let parameters = params![first, before, query.status, query.limit, key.as_str()];
                for row in newest.query_map(parameters, request)? {
                    all.push(row?);
                }
            }
            // And those that are in no list yet.
            let mut find =
                snapshot.prepare(&format!("{} WHERE requests.id = ?4 AND {within}", select_from("requests")))?;
            for id in unfolded(&snapshot)?.iter().flat_map(|commit| &commit.requests) {
                let row = find.query_row(params![first, before, query.status, id.to_bytes()], request).optional()?;
                all.extend(row.filter(|row| keys.contains(&row.key)));
            }
            all.sort_unstable_by_key(|row| std::cmp::Reverse(row.request_id));
            all.truncate(query.limit as usize);
            Ok(all)
        })
    }

    /// When keys were used last, as far as it is not in the sums.
    pub(crate) fn unfolded_uses(&self) -> Result<HashMap<KeyId, Timestamp>, StoreError> {
        self.with(|connection| Ok(unfolded_sums(&*connection.transaction()?)?.last_uses().collect()))
    }

    pub(crate) fn request(&self, viewer: &Viewer, id: RequestId) -> Result<Option<RecordedRequest>, StoreError> {
        self.with(|connection| {
            let rows = select_from("requests");
            let mut find =
                connection.prepare(&format!("{rows} WHERE requests.id = ?1 AND (?2 IS NULL OR keys.owner = ?2)"))?;
            Ok(find.query_row(params![id.to_bytes(), viewer.scope_text()], request).optional()?)
        })
    }
}

/// Everyone's sums, in the finest steps.
pub(super) fn everything(connection: &Connection) -> Result<UsageReport, StoreError> {
    let query = UsageQuery::everything();
    let unfolded = unfolded_sums(connection)?;
    let mut report = read(connection, &unfolded, Scope::Everyone, &query, Timestamp::default())?;
    report.by_key = by_key(connection, &unfolded, &Viewer::operator(), query.period, None)?;
    Ok(report)
}

fn is_visible(connection: &Connection, viewer: &Viewer, key: KeyId) -> Result<bool, rusqlite::Error> {
    let mut find =
        connection.prepare_cached("SELECT count(*) > 0 FROM keys WHERE id = ?1 AND (?2 IS NULL OR owner = ?2)")?;
    find.query_row(params![key.as_str(), viewer.scope_text()], |row| row.get(0))
}

/// Sums the roll-ups of one scope in one pass, by everything except the key.
fn read(
    connection: &Connection,
    unfolded: &Rollups,
    scope: Scope,
    query: &UsageQuery,
    now: Timestamp,
) -> Result<UsageReport, StoreError> {
    let mut rollups = connection.prepare_cached(&format!(
        "SELECT {FIGURES}, start, status, code, latencies FROM rollups
         WHERE span = 3600 AND key_id = ?1 AND start >= ?2 AND start < ?3 ORDER BY start"
    ))?;
    let hours = query.period.seconds();
    let stored = rollups.query_and_then(params![scope.to_string(), hours.start, hours.end], rollup)?;
    let mut sums = ReportBuilder::new(query);
    sums.add_all(scope, stored, unfolded)?;
    Ok(sums.finish(now))
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

/// Sums by key, from the narrow table: coarse ranges of time in the middle, finer ones at the edges. There are ten rows
/// for each key, so every column that is not read saves time.
fn by_key(
    connection: &Connection,
    unfolded: &Rollups,
    viewer: &Viewer,
    period: Period,
    only: Option<KeyId>,
) -> Result<Vec<KeyUsage>, StoreError> {
    let mut names = connection.prepare_cached(
        "SELECT id, name, last_used_at FROM keys
         WHERE (?1 IS NULL OR owner = ?1) AND (?2 IS NULL OR id = ?2) ORDER BY id",
    )?;
    let named = names.query_map(params![viewer.scope_text(), only.as_ref().map(KeyId::as_str)], |row| {
        Ok(NamedKey {
            id: key_id(row, 0)?,
            name: row.get(1)?,
            last_used_at: row.get::<_, Option<_>>(2)?.map(Timestamp::from_millis),
        })
    })?;
    let mut sums = KeyUsageBuilder::new(named.collect::<Result<_, _>>()?);
    let mut scan = connection.prepare_cached(
        "SELECT key_id, requests, succeeded, prompt_tokens, prompt_measured, completion_tokens, completion_measured,
             total_tokens, total_measured FROM key_sums
         WHERE span = ?1 AND start >= ?2 AND start < ?3 ORDER BY start, key_id",
    )?;
    for SumRange { span, starts, added } in sum_ranges(&period.seconds()) {
        let mut rows = scan.query(params![span.seconds(), starts.start, starts.end])?;
        while let Some(row) = rows.next()? {
            let key = row.get_ref(0)?.as_bytes().map_err(|_| StoreError::Corrupt("sum"))?;
            sums.add(key, added, || key_sum(row))?;
        }
    }
    sums.add_unfolded(unfolded, period);
    Ok(sums.finish())
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

/// Selects what `request` reads.
fn select_from(requests: &str) -> String {
    format!(
        "SELECT requests.id, requests.key_id, status, code, prompt_tokens, completion_tokens, total_tokens, queue_us,
             search_us, inference_us, total_us, persisted_at_us, coalesce(keys.name, ''), score, scorer, sources
         FROM {requests} LEFT JOIN commits ON commits.id = commit_id LEFT JOIN keys ON keys.id = requests.key_id"
    )
}

fn request(row: &Row<'_>) -> Result<RecordedRequest, rusqlite::Error> {
    let request_id = RequestId::from_bytes(row.get(0)?);
    let total_us = row.get(10)?;
    Ok(RecordedRequest {
        request_id,
        key: key_id(row, 1)?,
        key_name: row.get(12)?,
        status: row.get(2)?,
        code: row.get(3)?,
        usage: TokenUsage { prompt: row.get(4)?, completion: row.get(5)?, total: row.get(6)? },
        queue_us: row.get(7)?,
        search_us: row.get(8)?,
        inference_us: row.get(9)?,
        total_us,
        persist_us: row.get::<_, Option<u64>>(11)?.and_then(|at| persist_us(request_id, total_us, at)),
        grounding: grounding(row)?,
    })
}

pub(super) fn key_id(row: &Row<'_>, column: usize) -> Result<KeyId, rusqlite::Error> {
    let text = row.get_ref(column)?.as_str()?;
    text.parse().map_err(|_| rusqlite::Error::InvalidColumnType(column, "key id".into(), rusqlite::types::Type::Text))
}

fn grounding(row: &Row<'_>) -> Result<Option<GroundingRecord>, rusqlite::Error> {
    let (score, scorer): (Option<f32>, Option<u16>) = (row.get(13)?, row.get(14)?);
    let sources = row.get(15)?;
    Ok(score.zip(scorer).map(|(score, scorer)| GroundingRecord { score, scorer, sources }))
}
