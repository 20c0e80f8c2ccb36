//! Reading the ledger: sums from the roll-ups, rows from the end of `requests`.

use chat::{RequestId, TokenUsage};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::Sqlite;
use super::keys::key_id;
use crate::latency::Latencies;
use crate::rollup::{Figures, Measured, Span, Stretch, stretches};
use crate::{KeyUsage, OutcomeUsage, RequestRecord, StoreError, UsageReport};

/// The columns of `Figures`, summed up.
const SUMS: &str = "sum(requests), sum(prompt_tokens), sum(prompt_measured), sum(completion_tokens),
    sum(completion_measured), sum(total_tokens), sum(total_measured), max(last_at)";

impl Sqlite {
    pub(crate) fn usage(&self, since: u64, now: u64) -> Result<UsageReport, StoreError> {
        self.with(|connection| {
            // One read transaction, so that every grouping sees the same rows.
            let snapshot = connection.transaction()?;
            let from = Span::Hour.start_of(since / 1000);
            let by_outcome = by_outcome(&snapshot, from)?;
            let mut totals = Figures::default();
            by_outcome.iter().for_each(|outcome| totals.merge(&outcome.figures));
            Ok(UsageReport {
                since: from * 1000,
                until: now,
                totals,
                latencies: latencies(&snapshot, from)?,
                by_outcome,
                by_key: by_key(&snapshot, from)?,
            })
        })
    }

    pub(crate) fn requests(&self, since: u64, limit: u32) -> Result<Vec<RequestRecord>, StoreError> {
        self.with(|connection| {
            let mut newest = connection.prepare(
                "SELECT requests.id, key_id, status, code, prompt_tokens, completion_tokens, total_tokens,
                     queue_us, search_us, inference_us, total_us, persisted_at_us
                 FROM requests LEFT JOIN commits ON commits.id = commit_id
                 WHERE requests.id >= ?1 ORDER BY requests.id DESC LIMIT ?2",
            )?;
            let rows = newest.query_map(params![RequestId::first_of_millis(since).to_bytes(), limit], request)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }
}

fn by_outcome(connection: &Connection, from: u64) -> Result<Vec<OutcomeUsage>, StoreError> {
    let mut query = connection.prepare(&format!(
        "SELECT {SUMS}, status, code FROM rollups WHERE span = ?1 AND key_id = '' AND start >= ?2
         GROUP BY status, code ORDER BY status, code"
    ))?;
    let rows = query.query_map(params![Span::Hour.seconds(), from], |row| {
        let code = row.get::<_, String>(9)?;
        Ok(OutcomeUsage { figures: figures(row)?, status: row.get(8)?, code: (!code.is_empty()).then_some(code) })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn latencies(connection: &Connection, from: u64) -> Result<Latencies, StoreError> {
    let mut query =
        connection.prepare("SELECT latencies FROM rollups WHERE span = ?1 AND key_id = '' AND start >= ?2")?;
    let mut rows = query.query(params![Span::Hour.seconds(), from])?;
    let mut all = Latencies::default();
    while let Some(row) = rows.next()? {
        let blob = row.get_ref(0)?.as_blob().map_err(|_| StoreError::Corrupt("roll-up"))?;
        all.merge(&Latencies::decode(blob).ok_or(StoreError::Corrupt("roll-up"))?);
    }
    Ok(all)
}

/// Sums by key. Goes from one key with roll-ups to the next, so keys that were never used cost nothing, and sums up here
/// rather than in SQL, which takes three times as long per row.
fn by_key(connection: &Connection, from: u64) -> Result<Vec<KeyUsage>, StoreError> {
    let mut next_key =
        connection.prepare("SELECT key_id FROM rollups WHERE span = ?1 AND key_id > ?2 ORDER BY key_id LIMIT 1")?;
    let mut name = connection.prepare("SELECT name FROM keys WHERE id = ?1")?;
    let mut rollups = connection.prepare(
        "SELECT requests, prompt_tokens, prompt_measured, completion_tokens, completion_measured, total_tokens,
             total_measured, last_at, code = '' FROM rollups
         WHERE span = ?1 AND key_id = ?2 AND start >= ?3 AND start < ?4",
    )?;
    let mut used = Vec::new();
    let mut last = String::new();
    while let Some(key) = next_key.query_row(params![Span::Block.seconds(), last], |row| key_id(row, 0)).optional()? {
        key.as_str().clone_into(&mut last);
        let (mut sums, mut succeeded) = (Figures::default(), 0);
        for Stretch { span, starts, added } in stretches(from) {
            let mut rows = rollups.query(params![span.seconds(), key.as_str(), starts.start, starts.end])?;
            while let Some(row) = rows.next()? {
                let part = figures(row)?;
                let succeeding = if row.get(8)? { part.requests } else { 0 };
                if added {
                    sums.merge(&part);
                    succeeded += succeeding;
                } else {
                    sums.take_away(&part);
                    succeeded -= succeeding;
                }
            }
        }
        if sums.requests > 0 {
            let name = name.query_row([key.as_str()], |row| row.get(0))?;
            used.push(KeyUsage { key, name, figures: sums, succeeded });
        }
    }
    used.sort_by_key(|usage| (std::cmp::Reverse(usage.figures.requests), usage.key));
    Ok(used)
}

/// Reads the columns of `Figures` at a row's beginning.
fn figures(row: &Row<'_>) -> Result<Figures, rusqlite::Error> {
    let measured = |at| Ok::<_, rusqlite::Error>(Measured { sum: row.get(at)?, count: row.get(at + 1)? });
    Ok(Figures {
        requests: row.get(0)?,
        prompt: measured(1)?,
        completion: measured(3)?,
        total: measured(5)?,
        last_at: row.get(7)?,
    })
}

fn request(row: &Row<'_>) -> Result<RequestRecord, rusqlite::Error> {
    let request_id = RequestId::from_bytes(row.get(0)?);
    let total_us: u64 = row.get(10)?;
    let handed_over = request_id.unix_micros() + total_us;
    // If the clock was set back meanwhile, the difference means nothing and is left out.
    let persist_us = row.get::<_, Option<u64>>(11)?.and_then(|persisted| persisted.checked_sub(handed_over));
    Ok(RequestRecord {
        request_id,
        key: key_id(row, 1)?,
        status: row.get(2)?,
        code: row.get(3)?,
        usage: TokenUsage { prompt: row.get(4)?, completion: row.get(5)?, total: row.get(6)? },
        queue_us: row.get(7)?,
        search_us: row.get(8)?,
        inference_us: row.get(9)?,
        total_us,
        persist_us,
    })
}
