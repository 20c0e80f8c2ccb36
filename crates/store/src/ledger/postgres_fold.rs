//! PostgreSQL's part of folding: one replica at a time adds the rows of all replicas to the sums, on a separate thread and
//! connection. Any other replica takes over when it stops.
//!
//! Commits are folded once they are visible, in any order.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio_postgres::types::ToSql;

use crate::StoreError;
use crate::database::clock::StoreClock;
use crate::database::postgres::migrate::FOLD_LOCK;
use crate::database::postgres::server::{Server, Session};
use crate::database::postgres::typed;
use crate::database::snapshot::Snapshot;
use crate::database::sql::params;
use crate::ledger::counters::LedgerCounters;
use crate::ledger::fold::{Backlog, log_unreadable, take_ready};
use crate::ledger::postgres_columns::FigureColumns;
use crate::usage::rollup::{KeySum, Rollups};
use crate::usage::unfolded::{each_row, unfolded};
use crate::values::{AccountId, Project};

/// Rows per transaction.
const MAX_ROWS: usize = 8_192;
const INTERVAL: Duration = Duration::from_millis(500);

/// Folds until it is dropped.
pub(crate) struct FoldThread {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FoldThread {
    pub(crate) fn start(
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
    let (mut session, mut failing_since) = (None, None);
    let mut is_stopped = false;
    loop {
        let now_micros = clock.now_micros();
        let fold = server.with(&mut session, async |session| fold(session, now_micros).await);
        let fold = AssertUnwindSafe(|| server.block_on(fold));
        // A panic must not end the thread: rows would no longer be folded.
        let folded = catch_unwind(fold).unwrap_or(Err(StoreError::Panicked));
        let wait = match folded {
            Ok(backlog) => {
                failing_since = None;
                counters.set_backlog(&backlog, clock.now_micros());
                if backlog.is_ready { Duration::ZERO } else { INTERVAL }
            }
            Err(error) => {
                session = None; // also after a panic
                if failing_since.is_none() {
                    tracing::warn!(cause = %error, "rows could not be added to the sums; retrying twice a second");
                }
                let failing_for = failing_since.get_or_insert_with(Instant::now).elapsed();
                counters.stats.lock().fold_lag_seconds = failing_for.as_secs_f64();
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

/// Adds rows to the sums, unless another replica holds the lock.
async fn fold(session: &Session, now_micros: u64) -> Result<Backlog, StoreError> {
    session.batch_execute("BEGIN").await?;
    let lock = "SELECT pg_try_advisory_xact_lock($1)";
    let holds_lock: bool = session.query_typed_one(lock, &typed(params![FOLD_LOCK])).await?.try_get(0)?;
    let mut snapshot = Snapshot::Postgres(session);
    let (listed, mut unreadable) = unfolded(&mut snapshot).await?;
    let (ready, mut backlog) = take_ready(listed, now_micros, MAX_ROWS);
    if !holds_lock {
        ready.iter().for_each(|commit| backlog.add(commit));
        backlog.is_ready = false;
    } else if !ready.is_empty() || !unreadable.is_empty() {
        let mut rollups = Rollups::default();
        unreadable.extend(each_row(&mut snapshot, &ready, |row| rollups.add(&row)).await?);
        backlog.unreadable = unreadable.len() as u64;
        let numbers: Vec<_> = unreadable.iter().map(|commit| commit.number()).collect();
        session.execute(SET_ASIDE, &[&numbers]).await?;
        touch_keys(session, &rollups).await?;
        add_sums(session, &rollups).await?;
        add_hours(session, &rollups).await?;
        let commits: Vec<_> = ready.iter().map(|commit| commit.id.number()).collect();
        session.execute("DELETE FROM unfolded WHERE commit_id = ANY ($1)", &[&commits]).await?;
    }
    session.batch_execute("COMMIT").await?;
    log_unreadable(&unreadable[..backlog.unreadable as usize]);
    Ok(backlog)
}

async fn touch_keys(session: &Session, rollups: &Rollups) -> Result<(), StoreError> {
    let (keys, at): (Vec<_>, Vec<_>) =
        rollups.last_uses().into_iter().map(|(key, at)| (key.to_string(), at.as_millis() as i64)).unzip();
    if !keys.is_empty() {
        session.execute(&session.prepared(TOUCH_KEYS).await?, &[&keys, &at]).await?;
    }
    Ok(())
}

async fn add_sums(session: &Session, rollups: &Rollups) -> Result<(), StoreError> {
    let (mut spans, mut starts, mut keys, mut owners, mut projects) = (vec![], vec![], vec![], vec![], vec![]);
    let (mut figures, mut succeeded) = (FigureColumns::default(), vec![]);
    for (key, KeySum { figures: sums, succeeded: count }) in rollups.sums() {
        spans.push(key.span.seconds() as i64);
        starts.push(key.start as i64);
        keys.push(key.part.key.to_string());
        owners.push(key.part.owner.as_ref().map_or("", AccountId::as_str));
        projects.push(key.part.project.as_ref().map_or("", Project::as_str));
        succeeded.push(*count as i64);
        figures.push(sums);
    }
    if !keys.is_empty() {
        let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&spans, &starts, &keys, &owners, &projects];
        parameters.extend(figures.parameters());
        parameters.push(&succeeded);
        let add = session.prepared(&ADD_SUMS.replace("ADD_FIGURES", ADD_FIGURES)).await?;
        session.execute(&add, &parameters).await?;
    }
    Ok(())
}

async fn add_hours(session: &Session, rollups: &Rollups) -> Result<(), StoreError> {
    let (mut scopes, mut starts, mut statuses, mut codes, mut owners) = (vec![], vec![], vec![], vec![], vec![]);
    let (mut figures, mut last_uses) = (FigureColumns::default(), vec![]);
    // One array for all latencies, with each row's bounds in it: `unnest` would flatten an array of arrays.
    let (mut latencies, mut begins, mut ends) = (Vec::new(), vec![], vec![]);
    for (key, sums, counts) in rollups.hours() {
        scopes.push(key.scope.to_string());
        starts.push(key.start as i64);
        statuses.push(key.status as i16);
        codes.push(key.code.as_str());
        owners.push(key.owner.as_ref().map_or("", AccountId::as_str));
        figures.push(sums);
        last_uses.push(sums.last_at.as_millis() as i64);
        begins.push(latencies.len() as i32 + 1);
        latencies.extend(counts.packed());
        ends.push(latencies.len() as i32);
    }
    if !scopes.is_empty() {
        let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&scopes, &starts, &statuses, &codes];
        parameters.extend(figures.parameters());
        parameters.extend([&last_uses as &(dyn ToSql + Sync), &begins, &ends, &latencies, &owners]);
        let add = session.prepared(&ADD_HOURS.replace("ADD_FIGURES", ADD_FIGURES)).await?;
        session.execute(&add, &parameters).await?;
    }
    Ok(())
}

const SET_ASIDE: &str = "WITH unreadable AS (DELETE FROM unfolded WHERE commit_id = ANY ($1) RETURNING *)
    INSERT INTO unreadable_commits SELECT * FROM unreadable";

const TOUCH_KEYS: &str = "UPDATE keys SET last_used_at = used.at FROM (
        SELECT keys.id, each.at FROM keys JOIN unnest($1::text[], $2::bigint[]) AS each (id, at) ON each.id = keys.id
        WHERE last_used_at IS NULL OR last_used_at < each.at ORDER BY keys.id FOR NO KEY UPDATE OF keys
    ) AS used WHERE keys.id = used.id";

/// The part that both statements share.
const ADD_FIGURES: &str = "requests = sums.requests + excluded.requests,
    prompt_tokens = sums.prompt_tokens + excluded.prompt_tokens,
    prompt_measured = sums.prompt_measured + excluded.prompt_measured,
    completion_tokens = sums.completion_tokens + excluded.completion_tokens,
    completion_measured = sums.completion_measured + excluded.completion_measured,
    total_tokens = sums.total_tokens + excluded.total_tokens,
    total_measured = sums.total_measured + excluded.total_measured";

const ADD_SUMS: &str = r#"INSERT INTO sums AS sums SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[],
        $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[],
        $12::bigint[], $13::bigint[]) AS new (span, start, key_id, account, project)
    ORDER BY span, start, key_id COLLATE "C", account COLLATE "C", project COLLATE "C"
    ON CONFLICT (span, start, key_id, account, project) DO UPDATE SET
        ADD_FIGURES,
        succeeded = sums.succeeded + excluded.succeeded"#;

/// Descending, so that the scope of everyone, the empty text, comes last.
const ADD_HOURS: &str = r#"INSERT INTO rollups AS sums
    SELECT party, start, status, code, requests, prompt_tokens, prompt_measured, completion_tokens, completion_measured,
        total_tokens, total_measured, last_at, ($15::bigint[])[begins:ends], account
    FROM unnest($1::text[], $2::bigint[], $3::smallint[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[],
        $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::integer[], $14::integer[],
        $16::text[])
        AS new (party, start, status, code, requests, prompt_tokens, prompt_measured, completion_tokens,
            completion_measured, total_tokens, total_measured, last_at, begins, ends, account)
    ORDER BY party COLLATE "C" DESC, start, status, code COLLATE "C", account COLLATE "C"
    ON CONFLICT (party, start, status, code, account) DO UPDATE SET
        ADD_FIGURES,
        last_at = greatest(sums.last_at, excluded.last_at),
        latencies = merge_latencies(sums.latencies, excluded.latencies)"#;
