//! Reads single rows of the ledger, the newest first or by id.

use std::collections::HashSet;

use chat::{FinishReason, KeyId, RequestId, TokenUsage};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::Sqlite;
use super::fold::unfolded;
use super::pool::numbered;
use super::usage::key_id;
use crate::request_search::{KEYS_OF_PERSON, Matches};
use crate::rollup::{GroundingRecord, InferenceRecord};
use crate::usage::{RequestQuery, StatusFilter, persist_us};
use crate::viewer::Viewer;
use crate::{RecordedRequest, RequestPage, StoreError};

/// The columns that filters use.
const FILTERED: &str = "requests.id, status, total_us, account";

impl Sqlite {
    pub(crate) fn search_requests(&self, viewer: &Viewer, query: &RequestQuery) -> Result<RequestPage, StoreError> {
        self.with(|connection| {
            // One snapshot: rows that are folded meanwhile would otherwise be in both lists, or in none.
            let snapshot = connection.transaction()?;
            let matches = match keys_of(&snapshot, viewer, query)? {
                None => search_all(&snapshot, query)?,
                Some(keys) => search_keys(&snapshot, query, &keys)?,
            };
            let (found, searched_to) = matches.finish(query.limit as usize);
            let mut find = snapshot.prepare(&format!("{} WHERE requests.id = ?1", select_from("requests")))?;
            let rows = found.iter().map(|id| find.query_row([id.to_bytes()], request));
            Ok(RequestPage { rows: rows.collect::<Result<_, _>>()?, searched_to })
        })
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

/// The keys whose lists are searched; `None` for all requests.
fn keys_of(
    connection: &Connection,
    viewer: &Viewer,
    query: &RequestQuery,
) -> Result<Option<HashSet<KeyId>>, StoreError> {
    let keys = match (query.key, viewer.scope(), query.person) {
        (None, None, None) => return Ok(None),
        (None, None, Some(person)) => {
            let mut list = connection.prepare(&numbered(KEYS_OF_PERSON))?;
            list.query_map([person.as_str()], |row| key_id(row, 0))?.collect::<Result<_, _>>()?
        }
        (key, ..) => {
            let mut list = connection
                .prepare("SELECT id FROM keys WHERE (?1 IS NULL OR owner = ?1) AND (?2 IS NULL OR id = ?2)")?;
            let parameters = params![viewer.scope_text(), key.as_ref().map(KeyId::as_str)];
            list.query_map(parameters, |row| key_id(row, 0))?.collect::<Result<_, _>>()?
        }
    };
    Ok(Some(keys))
}

fn search_all(connection: &Connection, query: &RequestQuery) -> Result<Matches, StoreError> {
    // SQLite uses the index on failed requests only if its condition appears literally.
    let status = match query.status {
        Some(StatusFilter::Is(status)) if status != 200 => format!("AND status = {status} AND status <> 200"),
        _ => String::new(),
    };
    let ids = query.ids();
    let mut newest = connection
        .prepare(&format!("SELECT {FILTERED} FROM requests WHERE id >= ?1 AND id < ?2 {status} ORDER BY id DESC"))?;
    let mut matches = Matches::default();
    search(&mut newest.query(params![ids.start.to_bytes(), ids.end.to_bytes()])?, query, 1, &mut matches)?;
    Ok(matches)
}

fn search_keys(connection: &Connection, query: &RequestQuery, keys: &HashSet<KeyId>) -> Result<Matches, StoreError> {
    let (ids, mut matches) = (query.ids(), Matches::default());
    let mut newest = connection.prepare(&format!(
        "SELECT {FILTERED} FROM requests_of_keys AS listed CROSS JOIN requests USING (id)
         WHERE listed.key_id = ?3 AND listed.id >= ?1 AND listed.id < ?2 ORDER BY listed.id DESC"
    ))?;
    for key in keys {
        let within = params![ids.start.to_bytes(), ids.end.to_bytes(), key.as_str()];
        search(&mut newest.query(within)?, query, keys.len(), &mut matches)?;
    }
    // Unfolded rows are not yet in a list.
    let mut find = connection.prepare(&format!("SELECT {FILTERED}, key_id FROM requests WHERE id = ?1"))?;
    for id in unfolded(connection)?.0.into_iter().flat_map(|commit| commit.requests).filter(|id| ids.contains(id)) {
        let mut rows = find.query([id.to_bytes()])?;
        if let Some(row) = rows.next()?
            && keys.contains(&key_id(row, 4)?)
            && is_match(row, query)?
        {
            matches.add(id);
        }
    }
    Ok(matches)
}

/// Searches one of `lists` lists.
fn search(
    rows: &mut rusqlite::Rows<'_>,
    query: &RequestQuery,
    lists: usize,
    matches: &mut Matches,
) -> Result<(), StoreError> {
    let (mut left, mut wanted) = (query.scan_limit(lists), query.limit);
    while wanted > 0 {
        let Some(row) = rows.next()? else { break };
        let id = RequestId::from_bytes(row.get(0)?);
        if is_match(row, query)? {
            matches.add(id);
            wanted -= 1;
        }
        left -= 1;
        if left == 0 {
            matches.stop_at(id);
            break;
        }
    }
    Ok(())
}

fn is_match(row: &Row<'_>, query: &RequestQuery) -> Result<bool, StoreError> {
    let account = row.get_ref(3)?.as_str_or_null().map_err(|_| StoreError::Corrupt("owner"))?;
    let account = account.map(str::parse).transpose().map_err(|_| StoreError::Corrupt("owner"))?;
    Ok(query.matches(row.get(1)?, row.get(2)?, account))
}

/// Selects the columns that `request` reads.
fn select_from(requests: &str) -> String {
    format!(
        "SELECT requests.id, requests.key_id, status, code, prompt_tokens, completion_tokens, total_tokens, queue_us,
             search_us, inference_us, total_us, persisted_at_us, coalesce(keys.name, ''), score, scorer, sources,
             runtime, finish_reason
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
        inference: InferenceRecord {
            runtime: row.get::<_, Option<String>>(16)?.map(Into::into),
            finish_reason: row.get_ref(17)?.as_str_or_null()?.and_then(FinishReason::parse),
        },
    })
}

fn grounding(row: &Row<'_>) -> Result<Option<GroundingRecord>, rusqlite::Error> {
    let (score, scorer): (Option<f32>, Option<u16>) = (row.get(13)?, row.get(14)?);
    let sources = row.get(15)?;
    Ok(score.zip(scorer).map(|(score, scorer)| GroundingRecord { score, scorer, sources }))
}
