//! Reads single rows of the ledger, the newest first or by id.

use chat::{FinishReason, RequestId, TokenUsage};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::usage::{status, tokens};
use super::{Parameter, Postgres, count, count_if_any, key_id, number, signed, text};
use crate::request_search::KEYS_OF_PERSON;
use crate::rollup::{GroundingRecord, InferenceRecord};
use crate::usage::{RequestQuery, StatusFilter, persist_us};
use crate::viewer::Viewer;
use crate::{RecordedRequest, RequestPage, StoreError};

impl Postgres {
    pub(crate) async fn search_requests(
        &self,
        viewer: &Viewer,
        query: &RequestQuery,
    ) -> Result<RequestPage, StoreError> {
        self.report(async |client| {
            let keys = keys_of(client, viewer, query).await?;
            let search = Search::new(query, keys);
            let rows = client.query_typed(&search.newest(), &search.parameters()).await?;
            let mut rows = rows.iter().map(request).collect::<Result<Vec<_>, _>>()?;
            if !query.is_filtered() {
                return Ok(RequestPage { rows, searched_to: None });
            }
            let stopped = client.query_typed_opt(&search.last_scanned(), &search.parameters()).await?;
            let stopped = stopped.map(|row| row.try_get::<_, Uuid>(0)).transpose()?;
            let stopped = stopped.map(|id| RequestId::from_bytes(id.into_bytes()));
            rows.retain(|row| stopped.is_none_or(|end| row.request_id >= end));
            let searched_to = stopped.filter(|_| rows.len() < query.limit as usize);
            Ok(RequestPage { rows, searched_to })
        })
        .await
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

/// The keys whose lists are searched; `None` for all requests.
async fn keys_of(
    client: &tokio_postgres::Client,
    viewer: &Viewer,
    query: &RequestQuery,
) -> Result<Option<Vec<String>>, StoreError> {
    let (scope, key) = (viewer.scope_text(), query.key.map(|key| key.to_string()));
    let rows = match (&key, scope, query.person) {
        (None, None, None) => return Ok(None),
        (None, None, Some(person)) => client.query_typed(KEYS_OF_PERSON, &[text(&person.as_str())]).await?,
        _ => {
            let list = "SELECT id FROM keys WHERE ($1 IS NULL OR owner = $1) AND ($2 IS NULL OR id = $2)";
            client.query_typed(list, &[text(&scope), text(&key)]).await?
        }
    };
    Ok(Some(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?))
}

/// The statements of a search. `$1` to `$7`: the first id, the end of the ids, the limit of the result, the rows to scan of
/// each list, the minimum latency, the person, and the keys.
struct Search {
    first: Uuid,
    end: Uuid,
    limit: i64,
    scanned: i64,
    min_micros: Option<i64>,
    person: Option<String>,
    keys: Option<Vec<String>>,
    status: Option<StatusFilter>,
}

impl Search {
    fn new(query: &RequestQuery, keys: Option<Vec<String>>) -> Self {
        let ids = query.ids();
        let lists = keys.as_ref().map_or(1, Vec::len);
        Self {
            first: uuid(ids.start),
            end: uuid(ids.end),
            limit: query.limit.into(),
            scanned: signed(query.scan_limit(lists) as u64),
            min_micros: query.min_micros().map(signed),
            person: query.person.map(|person| person.to_string()),
            keys,
            status: query.status,
        }
    }

    fn parameters(&self) -> [Parameter<'_>; 7] {
        [
            (&self.first, Type::UUID),
            (&self.end, Type::UUID),
            number(&self.limit),
            number(&self.scanned),
            number(&self.min_micros),
            text(&self.person),
            (&self.keys, Type::TEXT_ARRAY),
        ]
    }

    /// The rows to scan, newest first. Without keys the planner uses the index on failed requests, but only if its
    /// condition appears literally.
    fn list(&self, of_key: &str) -> String {
        let status = match self.status {
            Some(StatusFilter::Is(status)) if status != 200 && self.keys.is_none() => {
                format!("AND status = {status} AND status <> 200")
            }
            _ => String::new(),
        };
        format!("SELECT * FROM requests WHERE {of_key} id >= $1 AND id < $2 {status} ORDER BY id DESC")
    }

    fn newest(&self) -> String {
        let status = match self.status {
            None => "true".to_owned(),
            Some(StatusFilter::Is(status)) => format!("status = {status}"),
            Some(StatusFilter::Failed) => "status <> 200".into(),
        };
        let matching = |list: String| {
            format!(
                "SELECT * FROM ({list} LIMIT $4) AS scanned WHERE {status} AND ($5 IS NULL OR total_us >= $5)
                     AND ($6 IS NULL OR account = $6) ORDER BY id DESC LIMIT $3"
            )
        };
        rows_of(&match self.keys {
            None => format!("{} ", matching(self.list("$7::text[] IS NULL AND"))),
            // The newest requests of each key, by the index on keys; then the newest of all of them.
            Some(_) => format!(
                "SELECT requests.* FROM unnest($7::text[]) AS keys (id) CROSS JOIN LATERAL ({}) AS requests
                 ORDER BY id DESC LIMIT $3",
                matching(self.list("key_id = keys.id AND"))
            ),
        })
    }

    /// The newest of the last scanned rows, over the lists that were not scanned to their end.
    fn last_scanned(&self) -> String {
        let unused = "$3::bigint IS NOT NULL AND ($5::bigint IS NULL OR true) AND ($6::text IS NULL OR true)";
        match self.keys {
            None => format!(
                "SELECT id FROM ({} OFFSET $4 - 1 LIMIT 1) AS last WHERE {unused}",
                self.list("$7::text[] IS NULL AND")
            ),
            Some(_) => format!(
                "SELECT last.id FROM unnest($7::text[]) AS keys (id)
                 CROSS JOIN LATERAL ({} OFFSET $4 - 1 LIMIT 1) AS last WHERE {unused} ORDER BY last.id DESC LIMIT 1",
                self.list("key_id = keys.id AND")
            ),
        }
    }
}

const ROWS: &str = "SELECT requests.id, key_id, status, code, prompt_tokens, completion_tokens, total_tokens,
        queue_us, search_us, inference_us, total_us, persisted_at_us, coalesce(keys.name, ''),
        score, scorer, sources, runtime, finish_reason
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
        inference: InferenceRecord {
            runtime: row.try_get::<_, Option<String>>(16)?.map(Into::into),
            finish_reason: row.try_get::<_, Option<&str>>(17)?.and_then(FinishReason::parse),
        },
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

fn uuid(id: RequestId) -> Uuid {
    Uuid::from_bytes(id.to_bytes())
}
