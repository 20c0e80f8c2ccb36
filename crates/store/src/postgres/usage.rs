//! Reads the ledger: sums from the roll-ups and the rows that they lack, and rows from the end of `requests`.

use std::collections::HashMap;

use chat::{KeyId, RequestId, Timestamp, TokenUsage};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use super::fold::unfolded_sums;
use super::{Postgres, count, count_if_any, key_id, number, signed, text};
use crate::latency::Latencies;
use crate::report::{KeyUsageBuilder, NamedKey, ReportBuilder, RollupRow};
use crate::rollup::{Figures, GroundingRecord, KeySum, Measured, Rollups, SumRange, sum_ranges};
use crate::scope::Scope;
use crate::usage::{Period, RequestQuery, UsageQuery, persist_us};
use crate::viewer::Viewer;
use crate::{KeyUsage, RecordedRequest, StoreError, UsageReport};

impl Postgres {
    pub(crate) async fn usage(
        &self,
        viewer: &Viewer,
        query: &UsageQuery,
        now: Timestamp,
    ) -> Result<Option<UsageReport>, StoreError> {
        // One snapshot, so that every grouping sees the same rows.
        let report = self.snapshot(async |client| {
            let scope = match (query.key, viewer.scope()) {
                (Some(key), _) if !is_visible(client, viewer, key).await? => return Ok(None),
                (Some(key), _) => Scope::Key(key),
                (None, Some(account)) => Scope::Owner(*account),
                (None, None) => Scope::Everyone,
            };
            let unfolded = unfolded_sums(client).await?;
            let mut report = read(client, &unfolded, scope, query, now).await?;
            if query.by_key {
                report.by_key = by_key(client, &unfolded, viewer, query.period, query.key).await?;
            }
            Ok(Some(report))
        });
        report.await
    }

    pub(crate) async fn usage_by_key(&self, viewer: &Viewer, period: Period) -> Result<Vec<KeyUsage>, StoreError> {
        let report = self.snapshot(async |client| {
            let unfolded = unfolded_sums(client).await?;
            by_key(client, &unfolded, viewer, period, None).await
        });
        report.await
    }

    /// When keys were used last, as far as it is not in the sums.
    pub(crate) async fn unfolded_uses(&self) -> Result<HashMap<KeyId, Timestamp>, StoreError> {
        self.snapshot(async |client| Ok(unfolded_sums(client).await?.last_uses().collect())).await
    }

    pub(crate) async fn requests(
        &self,
        viewer: &Viewer,
        query: &RequestQuery,
    ) -> Result<Vec<RecordedRequest>, StoreError> {
        let first = uuid(RequestId::first_at(query.since));
        let before = query.before.map_or(Uuid::max(), uuid);
        // The planner uses the index on failed requests only if the condition says so literally.
        let status = match query.status {
            None => "$3::bigint IS NULL",
            Some(200) => "status = $3",
            Some(_) => "status = $3 AND status <> 200",
        };
        let within = format!("requests.id >= $1 AND requests.id < $2 AND {status}");
        let (wanted, limit) = (query.status.map(i64::from), i64::from(query.limit));
        let mut parameters =
            vec![(&first as _, Type::UUID), (&before as _, Type::UUID), number(&wanted), number(&limit)];
        let (scope, key) = (viewer.scope_text(), query.key.map(|key| key.to_string()));
        let newest = if query.key.is_none() && viewer.scope().is_none() {
            format!("SELECT * FROM requests WHERE {within} ORDER BY id DESC LIMIT $4")
        } else {
            parameters.extend([text(&scope), text(&key)]);
            // The newest requests of each key, by the index on keys; of these, the newest.
            format!(
                "SELECT requests.* FROM keys CROSS JOIN LATERAL (
                     SELECT * FROM requests WHERE key_id = keys.id AND {within} ORDER BY id DESC LIMIT $4
                 ) AS requests
                 WHERE ($5 IS NULL OR owner = $5) AND ($6 IS NULL OR keys.id = $6) ORDER BY id DESC LIMIT $4"
            )
        };
        let rows = self.client().await?.query_typed(&rows_of(&newest), &parameters).await?;
        rows.iter().map(request).collect()
    }

    pub(crate) async fn request(&self, viewer: &Viewer, id: RequestId) -> Result<Option<RecordedRequest>, StoreError> {
        let find = format!(
            "{} WHERE $2 IS NULL OR keys.owner = $2",
            ROWS.replace("{requests}", "SELECT * FROM requests WHERE id = $1")
        );
        let found = self
            .client()
            .await?
            .query_typed(&find, &[(&uuid(id) as _, Type::UUID), text(&viewer.scope_text())])
            .await?;
        found.first().map(request).transpose()
    }
}

/// Everyone's sums, in the finest steps.
pub(super) async fn everything(client: &Client) -> Result<UsageReport, StoreError> {
    let query = UsageQuery::everything();
    let unfolded = unfolded_sums(client).await?;
    let mut report = read(client, &unfolded, Scope::Everyone, &query, Timestamp::default()).await?;
    report.by_key = by_key(client, &unfolded, &Viewer::operator(), query.period, None).await?;
    Ok(report)
}

async fn is_visible(client: &Client, viewer: &Viewer, key: KeyId) -> Result<bool, StoreError> {
    let find = "SELECT count(*) > 0 FROM keys WHERE id = $1 AND ($2 IS NULL OR owner = $2)";
    Ok(client.query_typed_one(find, &[text(&key.as_str()), text(&viewer.scope_text())]).await?.try_get(0)?)
}

/// Sums the roll-ups of one scope in one pass, by everything except the key.
async fn read(
    client: &Client,
    unfolded: &Rollups,
    scope: Scope,
    query: &UsageQuery,
    now: Timestamp,
) -> Result<UsageReport, StoreError> {
    let rollups =
        "SELECT requests, prompt_tokens, prompt_measured, completion_tokens, completion_measured, total_tokens,
            total_measured, last_at, start, status, code, latencies FROM rollups
        WHERE party = $1 AND start >= $2 AND start < $3 ORDER BY start";
    let hours = query.period.seconds();
    let (party, from, to) = (scope.to_string(), signed(hours.start), signed(hours.end));
    let stored = client.query_typed(rollups, &[text(&party), number(&from), number(&to)]).await?;
    let mut sums = ReportBuilder::new(query);
    sums.add_all(scope, stored.iter().map(rollup), unfolded)?;
    Ok(sums.finish(now))
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

/// Sums by key, from the narrow table: coarse ranges of time in the middle, finer ones at the edges.
async fn by_key(
    client: &Client,
    unfolded: &Rollups,
    viewer: &Viewer,
    period: Period,
    only: Option<KeyId>,
) -> Result<Vec<KeyUsage>, StoreError> {
    let names = "SELECT id, name, last_used_at FROM keys
        WHERE ($1 IS NULL OR owner = $1) AND ($2 IS NULL OR id = $2) ORDER BY id";
    let only = only.map(|key| key.to_string());
    let mut keys = Vec::new();
    for row in client.query_typed(names, &[text(&viewer.scope_text()), text(&only)]).await? {
        keys.push(NamedKey {
            id: key_id(&row, 0)?,
            name: row.try_get(1)?,
            last_used_at: count_if_any(&row, 2)?.map(Timestamp::from_millis),
        });
    }
    let mut sums = KeyUsageBuilder::new(keys);
    let scan = "SELECT key_id, requests, succeeded, prompt_tokens, prompt_measured, completion_tokens,
            completion_measured, total_tokens, total_measured FROM key_sums
        WHERE span = $1 AND start >= $2 AND start < $3 AND ($4 IS NULL OR key_id = $4) ORDER BY start, key_id";
    for SumRange { span, starts, added } in sum_ranges(&period.seconds()) {
        let [span, from, to] = [span.seconds(), starts.start, starts.end].map(signed);
        for row in client.query_typed(scan, &[number(&span), number(&from), number(&to), text(&only)]).await? {
            sums.add(row.try_get::<_, &str>(0)?.as_bytes(), added, || key_sum(&row))?;
        }
    }
    sums.add_unfolded(unfolded, period);
    Ok(sums.finish())
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

const ROWS: &str = "SELECT requests.id, key_id, status, code, prompt_tokens, completion_tokens, total_tokens,
        queue_us, search_us, inference_us, total_us, persisted_at_us, coalesce(keys.name, ''),
        score, scorer, sources
    FROM ({requests}) AS requests LEFT JOIN commits ON commits.id = commit_id LEFT JOIN keys ON keys.id = key_id";

/// The records of some requests, newest first. Limits apply before anything is joined.
fn rows_of(requests: &str) -> String {
    format!("{} ORDER BY requests.id DESC", ROWS.replace("{requests}", requests))
}

fn request(row: &Row) -> Result<RecordedRequest, StoreError> {
    let request_id = RequestId::from_bytes(row.try_get::<_, Uuid>(0)?.into_bytes());
    let total_us = count(row, 10)?;
    Ok(RecordedRequest {
        request_id,
        key: key_id(row, 1)?,
        key_name: row.try_get(12)?,
        status: status(row, 2)?,
        code: row.try_get(3)?,
        usage: TokenUsage { prompt: tokens(row, 4)?, completion: tokens(row, 5)?, total: tokens(row, 6)? },
        queue_us: count_if_any(row, 7)?,
        search_us: count_if_any(row, 8)?,
        inference_us: count_if_any(row, 9)?,
        total_us,
        persist_us: count_if_any(row, 11)?.and_then(|at| persist_us(request_id, total_us, at)),
        grounding: grounding(row)?,
    })
}

fn grounding(row: &Row) -> Result<Option<GroundingRecord>, StoreError> {
    let small = |column| {
        let number: Option<i32> = row.try_get(column)?;
        number.map(u16::try_from).transpose().map_err(|_| StoreError::Corrupt("request"))
    };
    let (score, scorer, sources): (Option<f32>, _, _) = (row.try_get(13)?, small(14)?, small(15)?);
    Ok(score.zip(scorer).map(|(score, scorer)| GroundingRecord { score, scorer, sources }))
}

pub(super) fn status(row: &Row, column: usize) -> Result<u16, StoreError> {
    u16::try_from(row.try_get::<_, i16>(column)?).map_err(|_| StoreError::Corrupt("status"))
}

pub(super) fn tokens(row: &Row, column: usize) -> Result<Option<u32>, StoreError> {
    let figure: Option<i64> = row.try_get(column)?;
    figure.map(u32::try_from).transpose().map_err(|_| StoreError::Corrupt("request"))
}

fn uuid(id: RequestId) -> Uuid {
    Uuid::from_bytes(id.to_bytes())
}
