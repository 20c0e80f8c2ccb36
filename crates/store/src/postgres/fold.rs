//! PostgreSQL's part of folding: one replica at a time adds the rows of all replicas to the sums, on a separate thread and
//! connection. Any other replica takes over when it stops.
//!
//! Commits are folded once they are visible, in any order.

use std::collections::{BTreeMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use chat::{KeyId, RequestId, TokenUsage};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row, Statement};
use uuid::Uuid;

use super::columns::FigureColumns;
use super::schema::FOLD_LOCK;
use super::server::{Server, Session};
use super::usage::{status, tokens};
use super::{count, count_if_any, key_id, number};
use crate::StoreError;
use crate::clock::StoreClock;
use crate::commit_id::CommitId;
use crate::counters::LedgerCounters;
use crate::fold::{Backlog, UnfoldedCommit, log_unreadable, take_ready};
use crate::rollup::{KeySum, LedgerRow, PersonSumKey, Rollups};
use crate::usage::persist_us;

/// Rows per transaction.
const MAX_ROWS: usize = 8_192;
const INTERVAL: Duration = Duration::from_millis(500);

/// Folds until it is dropped.
pub(crate) struct FoldThread {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FoldThread {
    pub(super) fn start(
        server: Server,
        clock: Arc<StoreClock>,
        counters: Arc<LedgerCounters>,
    ) -> Result<Self, StoreError> {
        let (stop, stopped) = channel();
        let run = move || run(&server, &clock, &counters, &stopped);
        let thread = std::thread::Builder::new().name("fold".into()).spawn(run).map_err(StoreError::Thread)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for FoldThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the fold thread panicked");
        }
    }
}

fn run(server: &Server, clock: &StoreClock, counters: &LedgerCounters, stopped: &Receiver<()>) {
    let (mut open, mut failing_since) = (None, None);
    let mut is_stopped = false;
    loop {
        let fold = AssertUnwindSafe(|| server.block_on(fold_once(server, &mut open, clock.now_micros())));
        // A panic must not end the thread: rows would no longer be folded.
        let folded = catch_unwind(fold).unwrap_or(Err(StoreError::Panicked));
        let wait = match folded {
            Ok(backlog) => {
                failing_since = None;
                counters.set_backlog(&backlog, clock.now_micros());
                if backlog.is_ready { Duration::ZERO } else { INTERVAL }
            }
            Err(error) => {
                open = None;
                if failing_since.is_none() {
                    tracing::warn!(cause = %error, "rows could not be added to the sums; retrying twice a second");
                }
                counters.set_fold_lag(failing_since.get_or_insert_with(Instant::now).elapsed());
                INTERVAL
            }
        };
        if is_stopped {
            return;
        }
        // Once more after the last commit, unless folding fails: it would delay the stop of the service.
        is_stopped = stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout);
        if is_stopped && failing_since.is_some() {
            return;
        }
    }
}

async fn fold_once(server: &Server, open: &mut Option<FoldConnection>, now_micros: u64) -> Result<Backlog, StoreError> {
    let limited = tokio::time::timeout(server.timeout(), async {
        let connection = match open.take() {
            Some(open) if !open.client.is_closed() => open,
            _ => FoldConnection::new(server).await?,
        };
        open.insert(connection).fold(now_micros).await
    });
    limited.await.unwrap_or(Err(StoreError::TimedOut))
}

struct FoldConnection {
    client: Session,
    touch_keys: Statement,
    add_sums: Statement,
    add_people: Statement,
    add_hours: Statement,
}

impl FoldConnection {
    async fn new(server: &Server) -> Result<Self, StoreError> {
        let client = server.connect().await?;
        Ok(Self {
            touch_keys: client.prepare(TOUCH_KEYS).await?,
            add_sums: client.prepare(&ADD_SUMS.replace("ADD_FIGURES", ADD_FIGURES)).await?,
            add_people: client.prepare(&ADD_PEOPLE.replace("ADD_FIGURES", ADD_FIGURES)).await?,
            add_hours: client.prepare(&ADD_HOURS.replace("ADD_FIGURES", ADD_FIGURES)).await?,
            client,
        })
    }

    /// Adds rows to the sums, unless another replica holds the lock.
    async fn fold(&mut self, now_micros: u64) -> Result<Backlog, StoreError> {
        self.client.batch_execute("BEGIN").await?;
        let lock = "SELECT pg_try_advisory_xact_lock($1)";
        let holds_lock: bool = self.client.query_typed_one(lock, &[number(&FOLD_LOCK)]).await?.try_get(0)?;
        let (listed, mut unreadable) = unfolded(&self.client).await?;
        let (ready, mut backlog) = take_ready(listed, now_micros, MAX_ROWS);
        if !holds_lock {
            ready.iter().for_each(|commit| backlog.add(commit));
            backlog.is_ready = false;
        } else if !ready.is_empty() || !unreadable.is_empty() {
            let (rollups, others) = roll_up(&self.client, &ready).await?;
            unreadable.extend(others);
            backlog.unreadable = unreadable.len() as u64;
            let numbers: Vec<_> = unreadable.iter().map(|commit| commit.number()).collect();
            self.client.execute(SET_ASIDE, &[&numbers]).await?;
            self.touch_keys(&rollups).await?;
            self.add_sums(&rollups).await?;
            self.add_people(&rollups).await?;
            self.add_hours(&rollups).await?;
            let commits: Vec<_> = ready.iter().map(|commit| commit.id.number()).collect();
            self.client.execute("DELETE FROM unfolded WHERE commit_id = ANY ($1)", &[&commits]).await?;
        }
        self.client.batch_execute("COMMIT").await?;
        log_unreadable(&unreadable[..backlog.unreadable as usize]);
        Ok(backlog)
    }

    async fn touch_keys(&self, rollups: &Rollups) -> Result<(), StoreError> {
        let used: BTreeMap<_, _> = rollups.last_uses().collect();
        let (keys, at): (Vec<_>, Vec<_>) =
            used.into_iter().map(|(key, at)| (key.to_string(), at.as_millis() as i64)).unzip();
        if !keys.is_empty() {
            self.client.execute(&self.touch_keys, &[&keys, &at]).await?;
        }
        Ok(())
    }

    async fn add_sums(&self, rollups: &Rollups) -> Result<(), StoreError> {
        let (mut spans, mut starts, mut keys, mut succeeded) = (vec![], vec![], vec![], vec![]);
        let mut figures = FigureColumns::default();
        for (key, KeySum { figures: sums, succeeded: count }) in rollups.sums() {
            spans.push(key.span.seconds() as i64);
            starts.push(key.start as i64);
            keys.push(key.key.to_string());
            succeeded.push(*count as i64);
            figures.push(sums);
        }
        if !keys.is_empty() {
            let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&spans, &starts, &keys];
            parameters.extend(figures.parameters());
            parameters.push(&succeeded);
            self.client.execute(&self.add_sums, &parameters).await?;
        }
        Ok(())
    }

    async fn add_people(&self, rollups: &Rollups) -> Result<(), StoreError> {
        let (mut spans, mut starts, mut keys, mut people, mut succeeded) = (vec![], vec![], vec![], vec![], vec![]);
        let mut figures = FigureColumns::default();
        for (PersonSumKey { of_key, person }, KeySum { figures: sums, succeeded: count }) in rollups.people() {
            spans.push(of_key.span.seconds() as i64);
            starts.push(of_key.start as i64);
            keys.push(of_key.key.to_string());
            people.push(person.map_or_else(String::new, |person| person.to_string()));
            succeeded.push(*count as i64);
            figures.push(sums);
        }
        if !keys.is_empty() {
            let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&spans, &starts, &keys, &people];
            parameters.extend(figures.parameters());
            parameters.push(&succeeded);
            self.client.execute(&self.add_people, &parameters).await?;
        }
        Ok(())
    }

    async fn add_hours(&self, rollups: &Rollups) -> Result<(), StoreError> {
        let (mut scopes, mut starts, mut statuses, mut codes) = (vec![], vec![], vec![], vec![]);
        let mut figures = FigureColumns::default();
        // One array for all latencies, with each row's bounds in it: `unnest` would flatten an array of arrays.
        let (mut latencies, mut begins, mut ends) = (Vec::new(), vec![], vec![]);
        for (key, sums, counts) in rollups.hours() {
            scopes.push(key.scope.to_string());
            starts.push(key.start as i64);
            statuses.push(key.status as i16);
            codes.push(key.code.as_str());
            figures.push(sums);
            begins.push(latencies.len() as i32 + 1);
            latencies.extend(counts.packed());
            ends.push(latencies.len() as i32);
        }
        if !scopes.is_empty() {
            let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&scopes, &starts, &statuses, &codes];
            parameters.extend(figures.parameters());
            parameters.extend([&begins as &(dyn ToSql + Sync), &ends, &latencies]);
            self.client.execute(&self.add_hours, &parameters).await?;
        }
        Ok(())
    }
}

/// The rows that are not yet in the sums.
pub(super) async fn unfolded_sums(client: &Client) -> Result<Rollups, StoreError> {
    Ok(roll_up(client, &unfolded(client).await?.0).await?.0)
}

/// The visible unfolded commits, the oldest first; and those whose list of rows cannot be read.
async fn unfolded(client: &Client) -> Result<(Vec<UnfoldedCommit>, Vec<CommitId>), StoreError> {
    let list = "SELECT commit_id, persisted_at_us, requests FROM unfolded LEFT JOIN commits ON commits.id = commit_id
        ORDER BY commit_id";
    let (mut commits, mut unreadable) = (Vec::new(), Vec::new());
    for row in &client.query_typed(list, &[]).await? {
        let id = CommitId::from_number(row.try_get(0)?);
        match row.try_get::<_, Vec<Uuid>>(2) {
            Ok(ids) => commits.push(UnfoldedCommit {
                id,
                persisted_at_micros: count_if_any(row, 1)?,
                requests: ids.into_iter().map(|id| RequestId::from_bytes(id.into_bytes())).collect(),
            }),
            Err(_) => unreadable.push(id),
        }
    }
    Ok((commits, unreadable))
}

/// The sums over commits, and the commits with an unreadable row, which are found by reading commits one by one.
async fn roll_up(client: &Client, commits: &[UnfoldedCommit]) -> Result<(Rollups, Vec<CommitId>), StoreError> {
    match roll_up_all(client, commits.iter()).await {
        Err(error) if error.is_unreadable() => {}
        all => return Ok((all?, Vec::new())),
    }
    let (mut readable, mut unreadable) = (Vec::new(), Vec::new());
    for commit in commits {
        match roll_up_all(client, [commit].into_iter()).await {
            Err(error) if error.is_unreadable() => unreadable.push(commit.id),
            read => readable.push(read.map(|_| commit)?),
        }
    }
    Ok((roll_up_all(client, readable.into_iter()).await?, unreadable))
}

/// Reads rows in batches: if folding lags, there may be millions.
async fn roll_up_all<'a>(
    client: &Client,
    commits: impl Iterator<Item = &'a UnfoldedCommit>,
) -> Result<Rollups, StoreError> {
    // Read after the commits were listed, so that it includes every key that was given away before one of their rows.
    let mut rollups = Rollups::new(given_keys(client).await?);
    let listed = |commit: &UnfoldedCommit| {
        let persisted = commit.persisted_at_micros.map(|at| at as i64);
        commit.requests.iter().map(move |id| (Uuid::from_bytes(id.to_bytes()), persisted)).collect::<Vec<_>>()
    };
    let mut listed = commits.flat_map(listed).peekable();
    while listed.peek().is_some() {
        let (ids, persisted): (Vec<_>, Vec<_>) = listed.by_ref().take(MAX_ROWS).unzip();
        add_rows(client, &mut rollups, &ids, &persisted).await?;
    }
    Ok(rollups)
}

pub(super) async fn given_keys(client: &Client) -> Result<HashSet<KeyId>, StoreError> {
    client.query_typed("SELECT key_id FROM given_keys", &[]).await?.iter().map(|row| key_id(row, 0)).collect()
}

/// The columns that `ledger_row` reads after a row's id and the time of its commit.
const LEDGER_ROW: &str = "key_id, account, status, code, prompt_tokens, completion_tokens, total_tokens, total_us,
    queue_us, search_us, inference_us";

/// Adds rows, with the times at which they became durable.
async fn add_rows(
    client: &Client,
    rollups: &mut Rollups,
    ids: &[Uuid],
    persisted: &[Option<i64>],
) -> Result<(), StoreError> {
    let find = format!(
        "SELECT id, persisted_at_us, {LEDGER_ROW}
         FROM unnest($1::uuid[], $2::bigint[]) AS listed (id, persisted_at_us) JOIN requests USING (id)"
    );
    let parameters = [(&ids as _, Type::UUID_ARRAY), (&persisted as _, Type::INT8_ARRAY)];
    let rows = client.query_typed(&find, &parameters).await?;
    if rows.len() != ids.len() {
        return Err(StoreError::Corrupt("commit"));
    }
    for row in rows {
        rollups.add(&ledger_row(&row)?);
    }
    Ok(())
}

/// Reads the rows of a range of ids, in batches.
pub(super) async fn rows_between(
    client: &Client,
    mut first: Uuid,
    end: Uuid,
    mut take: impl FnMut(&LedgerRow),
) -> Result<(), StoreError> {
    let scan = format!(
        "SELECT requests.id, persisted_at_us, {LEDGER_ROW} FROM requests LEFT JOIN commits ON commits.id = commit_id
         WHERE requests.id >= $1 AND requests.id < $2 ORDER BY requests.id LIMIT {MAX_ROWS}"
    );
    loop {
        let rows = client.query_typed(&scan, &[(&first as _, Type::UUID), (&end as _, Type::UUID)]).await?;
        for row in &rows {
            take(&ledger_row(row)?);
        }
        let Some(last) = rows.last().filter(|_| rows.len() == MAX_ROWS) else { return Ok(()) };
        first = Uuid::from_u128(last.try_get::<_, Uuid>(0)?.as_u128() + 1);
    }
}

fn ledger_row(row: &Row) -> Result<LedgerRow, StoreError> {
    let request_id = RequestId::from_bytes(row.try_get::<_, Uuid>(0)?.into_bytes());
    let owner: Option<&str> = row.try_get(3)?;
    let total_us = count(row, 9)?;
    let persist = count_if_any(row, 1)?.and_then(|at| persist_us(request_id, total_us, at));
    Ok(LedgerRow {
        request_id,
        key: key_id(row, 2)?,
        owner: owner.map(str::parse).transpose().map_err(|_| StoreError::Corrupt("owner"))?,
        status: status(row, 4)?,
        code: row.try_get::<_, Option<_>>(5)?.unwrap_or_default(),
        usage: TokenUsage { prompt: tokens(row, 6)?, completion: tokens(row, 7)?, total: tokens(row, 8)? },
        micros: [Some(total_us), count_if_any(row, 10)?, count_if_any(row, 11)?, count_if_any(row, 12)?, persist],
    })
}

const SET_ASIDE: &str = "WITH unreadable AS (DELETE FROM unfolded WHERE commit_id = ANY ($1) RETURNING *)
    INSERT INTO unreadable_commits SELECT * FROM unreadable";

const TOUCH_KEYS: &str = "UPDATE keys SET last_used_at = used.at FROM (
        SELECT keys.id, each.at FROM keys JOIN unnest($1::text[], $2::bigint[]) AS each (id, at) ON each.id = keys.id
        WHERE last_used_at IS NULL OR last_used_at < each.at ORDER BY keys.id FOR NO KEY UPDATE OF keys
    ) AS used WHERE keys.id = used.id";

/// The part that all three statements share.
const ADD_FIGURES: &str = "requests = sums.requests + excluded.requests,
    prompt_tokens = sums.prompt_tokens + excluded.prompt_tokens,
    prompt_measured = sums.prompt_measured + excluded.prompt_measured,
    completion_tokens = sums.completion_tokens + excluded.completion_tokens,
    completion_measured = sums.completion_measured + excluded.completion_measured,
    total_tokens = sums.total_tokens + excluded.total_tokens,
    total_measured = sums.total_measured + excluded.total_measured,
    last_at = greatest(sums.last_at, excluded.last_at)";

const ADD_SUMS: &str = r#"INSERT INTO key_sums AS sums SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[],
        $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[],
        $11::bigint[], $12::bigint[]) AS new (span, start, key_id)
    ORDER BY span, start, key_id COLLATE "C"
    ON CONFLICT (span, start, key_id) DO UPDATE SET
        ADD_FIGURES,
        succeeded = sums.succeeded + excluded.succeeded"#;

const ADD_PEOPLE: &str = r#"INSERT INTO person_sums AS sums SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[],
        $4::text[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[],
        $11::bigint[], $12::bigint[], $13::bigint[]) AS new (span, start, key_id, account)
    ORDER BY span, start, key_id COLLATE "C", account COLLATE "C"
    ON CONFLICT (span, start, key_id, account) DO UPDATE SET
        ADD_FIGURES,
        succeeded = sums.succeeded + excluded.succeeded"#;

/// Descending, so that the scope of everyone, the empty text, comes last.
const ADD_HOURS: &str = r#"INSERT INTO rollups AS sums
    SELECT party, start, status, code, requests, prompt_tokens, prompt_measured, completion_tokens, completion_measured,
        total_tokens, total_measured, last_at, ($15::bigint[])[begins:ends]
    FROM unnest($1::text[], $2::bigint[], $3::smallint[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[],
        $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::integer[], $14::integer[])
        AS new (party, start, status, code, requests, prompt_tokens, prompt_measured, completion_tokens,
            completion_measured, total_tokens, total_measured, last_at, begins, ends)
    ORDER BY party COLLATE "C" DESC, start, status, code COLLATE "C"
    ON CONFLICT (party, start, status, code) DO UPDATE SET
        ADD_FIGURES,
        latencies = merge_latencies(sums.latencies, excluded.latencies)"#;
