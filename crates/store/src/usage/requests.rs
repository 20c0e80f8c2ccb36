//! Reads single requests of the ledger: by id, or the newest that match a search. A filter may match nothing among
//! millions of rows, so a search scans a limited number of them, and returns where it stopped.

use std::cmp::Reverse;
use std::ops::Range;

use chat::{FinishReason, KeyId, RequestId, TokenUsage};

use crate::database::snapshot::Snapshot;
use crate::database::sql::{Row, Value, params};
use crate::usage::query::{
    GIVEN_AWAY, RecordedRequest, RequestPage, RequestQuery, RequestScope, StatusFilter, persist_us,
};
use crate::usage::rollup::{GroundingRecord, InferenceRecord};
use crate::usage::unfolded::unfolded;
use crate::values::{AccountId, Scope, Viewer};
use crate::{StoreError, Usage};

/// Rows that one search scans, in some tens of milliseconds.
const MAX_SCANNED: u64 = 80_000;

impl Usage<'_> {
    /// Newest first. Searches on until `limit` rows are found or none are left.
    pub async fn requests(self, viewer: &Viewer, query: &RequestQuery) -> Result<Vec<RecordedRequest>, StoreError> {
        let (mut rows, mut query) = (Vec::new(), query.clone());
        loop {
            let page = self.search_requests(viewer, &query).await?;
            query.limit = query.limit.saturating_sub(page.rows.len() as u32);
            rows.extend(page.rows);
            match page.searched_to {
                Some(_) if query.limit > 0 => query.before = page.searched_to,
                _ => return Ok(rows),
            }
        }
    }

    /// Newest first. A search stops after many rows, so that other searches can run.
    pub async fn search_requests(self, viewer: &Viewer, query: &RequestQuery) -> Result<RequestPage, StoreError> {
        let (viewer, query) = (viewer.clone(), query.clone());
        self.long_read(async move |snapshot| search(snapshot, &viewer, &query, MAX_SCANNED).await).await
    }

    pub async fn request(self, viewer: &Viewer, id: RequestId) -> Result<Option<RecordedRequest>, StoreError> {
        let rows = self.short_read(async |snapshot| records(snapshot, viewer, &[id]).await).await?;
        Ok(rows.into_iter().next())
    }
}

async fn search(
    snapshot: &mut Snapshot<'_>,
    viewer: &Viewer,
    query: &RequestQuery,
    max_scanned: u64,
) -> Result<RequestPage, StoreError> {
    let search = Search::new(snapshot, viewer, query, max_scanned);
    let mut found = search.newest(snapshot).await?;
    let searched_to = if found.len() < query.limit as usize { search.last_scanned(snapshot).await? } else { None };
    if search.is_listed_late {
        found.extend(search.unfolded(snapshot).await?);
    }
    found.retain(|id| searched_to.is_none_or(|end| *id >= end));
    found.sort_unstable_by_key(|id| Reverse(*id));
    found.truncate(query.limit as usize);
    let searched_to = searched_to.filter(|_| found.len() < query.limit as usize);
    Ok(RequestPage { rows: records(snapshot, viewer, &found).await?, searched_to })
}

struct Search<'q> {
    query: &'q RequestQuery,
    scope: RequestScope,
    ids: Range<RequestId>,
    /// The key or person in the form of the database; empty for everyone.
    party: String,
    /// The rows to scan, the newest first. `$1` and `$2` are the first id and the end of the ids, and `$4` the party.
    list: String,
    max_scanned: u64,
    /// Whether unfolded rows are not yet in the list.
    is_listed_late: bool,
}

impl<'q> Search<'q> {
    fn new(snapshot: &Snapshot<'_>, viewer: &Viewer, query: &'q RequestQuery, max_scanned: u64) -> Self {
        let scope = RequestScope::new(viewer, query.key, query.person);
        let of_party = "requests_of_parties AS listed CROSS JOIN requests USING (id)
            WHERE party = $4 AND listed.id >= $1 AND listed.id < $2";
        let (rows, party) = match scope.scope {
            Scope::Key(key) => {
                let of_key = "requests WHERE key_id = $4 AND id >= $1 AND id < $2";
                (snapshot.pick(of_party, of_key), key.to_string())
            }
            Scope::Owner(person) => {
                let of_person = "requests WHERE account = $4 AND id >= $1 AND id < $2";
                (snapshot.pick(of_party, of_person), snapshot.pick("@", "").to_owned() + person.as_str())
            }
            Scope::Everyone | Scope::EachPerson => ("requests WHERE id >= $1 AND id < $2", String::new()),
        };
        // The databases use the index on failed requests only if its condition appears literally.
        let failed = match query.status {
            Some(StatusFilter::Is(status)) if status != 200 && party.is_empty() => {
                format!("AND status = {status} AND status <> 200")
            }
            _ => String::new(),
        };
        let is_filtered = query.status.is_some() || query.min_latency.is_some() || scope.owner.is_some();
        Self {
            query,
            scope,
            ids: query.ids(),
            list: format!("SELECT id, status, total_us, account FROM {rows} {failed} ORDER BY id DESC"),
            is_listed_late: !party.is_empty() && snapshot.pick(true, false),
            party,
            max_scanned: if is_filtered { max_scanned.max(query.limit.into()) } else { query.limit.into() },
        }
    }

    fn parameters(&self, third: u64) -> Vec<Value<'_>> {
        let mut parameters = params![self.ids.start, self.ids.end, third].to_vec();
        parameters.extend((!self.party.is_empty()).then_some(Value::from(&*self.party)));
        parameters
    }

    /// The newest matching rows of the list. Filters keep its order.
    async fn newest(&self, snapshot: &mut Snapshot<'_>) -> Result<Vec<RequestId>, StoreError> {
        let status = match self.query.status {
            None => String::new(),
            Some(StatusFilter::Is(status)) => format!("AND status = {status}"),
            Some(StatusFilter::Failed) => "AND status <> 200".into(),
        };
        let slow = self.query.min_micros().map_or_else(String::new, |least| format!("AND total_us >= {least}"));
        let owner = if self.scope.owner.is_some() { "AND account = $5" } else { "" };
        let (list, limit) = (&self.list, self.query.limit);
        let find =
            format!("SELECT id FROM ({list} LIMIT $3) AS scanned WHERE 1 = 1 {status} {slow} {owner} LIMIT {limit}");
        let mut parameters = self.parameters(self.max_scanned);
        parameters.extend(self.scope.owner.as_ref().map(Value::from));
        snapshot.query(&find, &parameters, |row| row.get(0)).await
    }

    /// Where the scan stopped, if not at the end of the list.
    async fn last_scanned(&self, snapshot: &mut Snapshot<'_>) -> Result<Option<RequestId>, StoreError> {
        let find = format!("{} LIMIT 1 OFFSET $3", self.list);
        let last = self.parameters(self.max_scanned.saturating_sub(1));
        Ok(snapshot.query(&find, &last, |row| row.get(0)).await?.pop())
    }

    /// The matching rows that are not yet in the list.
    async fn unfolded(&self, snapshot: &mut Snapshot<'_>) -> Result<Vec<RequestId>, StoreError> {
        let (commits, _) = unfolded(snapshot).await?;
        let ids = commits.into_iter().flat_map(|commit| commit.requests);
        let ids: Vec<_> = ids.filter(|id| self.ids.contains(id)).collect();
        let read = |row: &Row<'_>| {
            let (id, key, account): (_, KeyId, _) = (row.get(0)?, row.get(1)?, row.get_optional::<AccountId>(2)?);
            let is_match = self.scope.key().is_none_or(|wanted| key == wanted)
                && self.scope.person().is_none_or(|person| account == Some(person))
                && self.query.matches(row.get(3)?, row.get(4)?);
            Ok(is_match.then_some(id))
        };
        let select = "SELECT id, key_id, account, status, total_us FROM requests";
        Ok(snapshot.requests(select, &ids, read).await?.into_iter().flatten().collect())
    }
}

/// Those of these requests that the viewer may see, in this order if it is the newest first.
async fn records(
    snapshot: &mut Snapshot<'_>,
    viewer: &Viewer,
    ids: &[RequestId],
) -> Result<Vec<RecordedRequest>, StoreError> {
    let select = "SELECT requests.id, requests.key_id, status, code, prompt_tokens, completion_tokens, total_tokens,
            queue_us, search_us, inference_us, total_us, persisted_at_us, score, scorer, sources, runtime,
            finish_reason, account, owner, coalesce(keys.name, '')
        FROM requests LEFT JOIN commits ON commits.id = commit_id LEFT JOIN keys ON keys.id = requests.key_id";
    let rows = snapshot.requests(select, ids, |row| record(row, viewer)).await?;
    let mut rows: Vec<_> = rows.into_iter().flatten().collect();
    rows.sort_unstable_by_key(|row| Reverse(row.request_id));
    Ok(rows)
}

/// `None` if the viewer may not see it.
fn record(row: &Row<'_>, viewer: &Viewer) -> Result<Option<RecordedRequest>, StoreError> {
    let (account, owner): (Option<AccountId>, Option<AccountId>) = (row.get_optional(17)?, row.get_optional(18)?);
    let sees = |person| viewer.scope().is_none_or(|me| person == Some(*me));
    if !sees(account) {
        return Ok(None);
    }
    let (request_id, total_us) = (row.get(0)?, row.get(10)?);
    let (score, scorer, sources) = (row.get_optional(12)?, row.get_optional(13)?, row.get_optional(14)?);
    Ok(Some(RecordedRequest {
        request_id,
        key: row.get(1)?,
        is_key_visible: sees(owner),
        key_name: if sees(owner) { row.get(19)? } else { GIVEN_AWAY.into() },
        status: row.get(2)?,
        code: row.get_optional(3)?,
        usage: TokenUsage {
            prompt: row.get_optional(4)?,
            completion: row.get_optional(5)?,
            total: row.get_optional(6)?,
        },
        queue_us: row.get_optional(7)?,
        search_us: row.get_optional(8)?,
        inference_us: row.get_optional(9)?,
        total_us,
        persist_us: row.get_optional(11)?.and_then(|at| persist_us(request_id, total_us, at)),
        grounding: Option::zip(score, scorer).map(|(score, scorer)| GroundingRecord { score, scorer, sources }),
        inference: InferenceRecord {
            // An address of the operator's network: only administrators see it.
            runtime: row.text(15)?.filter(|_| viewer.scope().is_none()).map(Into::into),
            finish_reason: row.text(16)?.and_then(FinishReason::parse),
        },
    }))
}

impl RequestQuery {
    /// The ids to search.
    fn ids(&self) -> Range<RequestId> {
        let end = self.until.map_or(RequestId::from_bytes([0xff; 16]), RequestId::first_at);
        RequestId::first_at(self.since)..self.before.map_or(end, |before| before.min(end))
    }

    fn min_micros(&self) -> Option<u64> {
        self.min_latency.map(|latency| latency.as_micros() as u64)
    }

    /// Whether a row of the wanted key, person and time matches.
    fn matches(&self, status: u16, total_us: u64) -> bool {
        let has_status = match self.status {
            None => true,
            Some(StatusFilter::Is(wanted)) => status == wanted,
            Some(StatusFilter::Failed) => status != 200,
        };
        has_status && self.min_micros().is_none_or(|least| total_us >= least)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use chat::Timestamp;

    use super::*;
    use crate::usage::rollup::{Entry, Outcome, Timings};
    use crate::{Database, PostgresSettings, Store};

    /// Repeated searches, each from where the previous one stopped, find every match once, newest first.
    #[tokio::test]
    async fn repeated_searches_find_every_match() {
        let folder = tempfile::tempdir().unwrap();
        let url = testbed::Cluster::shared().create_database().parse().unwrap();
        let server = PostgresSettings { url, connections: 2, timeout: Duration::from_secs(5) };
        let keys: [KeyId; 2] = ["000000000001", "000000000002"].map(|key| key.parse().unwrap());
        for database in [Database::Sqlite(folder.path().join("test.db")), Database::Postgres(server)] {
            let store = Store::open(&database).await.unwrap();
            let (ledger, writer) = store.start_ledger(Duration::from_secs(86_400)).unwrap();
            let now = Timestamp::from(SystemTime::now()).as_millis() * 1000;
            let mut rows = Vec::new();
            for number in 0..90_u64 {
                let entry = Entry {
                    request_id: RequestId::at_micros(now - number * 1_000, number << 4),
                    key: keys[usize::from(number % 5 == 0)],
                    owner: None,
                    project: None,
                    outcome: Outcome { status: if number % 3 == 0 { 502 } else { 200 }, code: None },
                    usage: Default::default(),
                    timings: Timings::default(),
                    grounding: None,
                    inference: Default::default(),
                };
                ledger.record(entry.clone(), None).await.unwrap();
                rows.push(entry);
            }
            for (key, limit, max_scanned) in
                [(None, 4, 7), (None, 1, 1), (None, 50, 10), (Some(keys[0]), 3, 5), (Some(keys[1]), 10, 3)]
            {
                let status = Some(StatusFilter::Is(502));
                let mut query = RequestQuery { key, limit, status, ..RequestQuery::default() };
                let mut found = Vec::new();
                loop {
                    let search_once = query.clone();
                    let page = store.base.long_read(async move |snapshot| {
                        search(snapshot, &Viewer::operator(), &search_once, max_scanned).await
                    });
                    let page = page.await.unwrap();
                    found.extend(page.rows.iter().map(|row| row.request_id));
                    let full = page.rows.last().filter(|_| page.rows.len() == limit as usize);
                    match page.searched_to.or(full.map(|row| row.request_id)) {
                        Some(end) => query.before = Some(end),
                        None => break,
                    }
                }
                let is_match = |row: &&Entry| row.outcome.status == 502 && key.is_none_or(|key| row.key == key);
                let expected: Vec<_> = rows.iter().filter(is_match).map(|row| row.request_id).collect();
                assert_eq!(found, expected, "{database}: {key:?} {limit} {max_scanned}");
            }
            writer.stop();
        }
    }
}
