//! The ledger's writer: one thread that commits rows in groups, and folds and prunes in between.
//!
//! It blocks for the first row, takes all others that are queued, commits once, then sends all replies. It never sleeps to
//! collect more rows. When a commit fails, every request in it gets an error and the ledger is unhealthy until a test write
//! succeeds. A panic is handled in the same way: it fails the current rows, and the writer continues on a new connection.
//! Ending the process instead would abort every request in flight because of one row.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use chat::Timestamp;

use crate::StoreError;
use crate::database::clock::StoreClock;
use crate::ledger::counters::LedgerCounters;
use crate::ledger::fold::{Backlog, CommitTime};
use crate::ledger::fold_schedule::FoldSchedule;
use crate::ledger::health::Health;
use crate::ledger::pruning::{ClockReading, Deleted, Due, Pruner};
use crate::ledger::queue::{QueuedRow, RecordError, WriterCommand};
use crate::ledger::replies::Replies;
use crate::usage::commit_id::CommitId;

/// Limited so that the first row of a group does not wait too long.
const MAX_GROUP_ROWS: usize = 1_024;
/// The interval of test writes while the ledger is unhealthy.
const PROBE_INTERVAL: Duration = Duration::from_millis(250);

/// A database's part of the ledger. After a failed call, the next one reconnects if the connection is unusable.
pub(crate) trait LedgerBackend: Send {
    /// Commits a group of rows, all or none. Rows that the database refuses do not fail the others.
    fn commit(&mut self, group: &[QueuedRow]) -> Result<Committed, StoreError>;

    /// Stores when commits became durable, and adds rows to the sums; `None` if another thread adds them.
    fn fold(&mut self, times: &[CommitTime]) -> Result<Option<Backlog>, StoreError>;

    /// Test write as large as a group.
    fn probe(&mut self) -> Result<(), StoreError>;

    fn read_clock(&mut self) -> Result<ClockReading, StoreError>;

    /// Stores the ledger's time, unless another process has changed it from `before`.
    fn store_time(&mut self, before: Option<Timestamp>, time: Timestamp) -> Result<(), StoreError>;

    /// Deletes sessions, links, challenges and counts that have ended. They are no longer visible.
    fn delete_ended(&mut self, due: Due) -> Result<(), StoreError>;

    /// Deletes a batch of the rows that are due.
    fn prune(&mut self, due: Due) -> Result<Deleted, StoreError>;

    /// Drops the connection, which a panic may have left in any state. The next call opens another.
    fn disconnect(&mut self);

    /// Called last.
    fn close(&mut self);
}

pub(crate) struct Committed {
    /// `None` if no row was new.
    pub(crate) commit: Option<CommitId>,
    /// Indexes in the group of rows that the database refused.
    pub(crate) refused: Vec<usize>,
}

pub(crate) struct Writer {
    health: Arc<Health>,
    counters: Arc<LedgerCounters>,
    clock: Arc<StoreClock>,
    backend: Box<dyn LedgerBackend>,
    /// The rows that are being committed.
    group: Vec<QueuedRow>,
    fold: FoldSchedule,
    pruner: Pruner,
    stopping: bool,
}

impl Writer {
    pub(crate) fn new(
        backend: Box<dyn LedgerBackend>,
        health: Arc<Health>,
        counters: Arc<LedgerCounters>,
        clock: Arc<StoreClock>,
        retention: Duration,
    ) -> Self {
        Self {
            health,
            counters,
            clock,
            backend,
            group: Vec::with_capacity(MAX_GROUP_ROWS),
            fold: FoldSchedule::new(),
            pruner: Pruner::new(retention),
            stopping: false,
        }
    }

    pub(crate) fn run(mut self, commands: &Receiver<WriterCommand>) {
        while !self.stopping {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.run_once(commands))) {
                self.recover(&*panic);
            }
        }
        self.backend.close();
    }

    /// Waits for a command or for the next task that is due, and runs it.
    fn run_once(&mut self, commands: &Receiver<WriterCommand>) {
        // Before a row is taken: the first reading of the clock may need the newest row of an earlier process.
        self.prune_if_due();
        match commands.recv_timeout(self.idle_timeout()) {
            Ok(WriterCommand::Record(row)) => self.group.push(row),
            Ok(WriterCommand::Stop) | Err(RecvTimeoutError::Disconnected) => self.stopping = true,
            Err(RecvTimeoutError::Timeout) => {}
        }
        while self.group.len() < MAX_GROUP_ROWS && !self.stopping {
            match commands.try_recv() {
                Ok(WriterCommand::Record(row)) => self.group.push(row),
                Ok(WriterCommand::Stop) => self.stopping = true,
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        if !self.group.is_empty() {
            self.commit();
        } else if !self.health.is_healthy() {
            self.probe();
        }
        if self.health.is_healthy() && (self.fold.is_due() || self.stopping) {
            self.fold();
        }
    }

    /// After a panic it is unknown whether the current rows were committed and whether the connection is usable. The ledger
    /// is unhealthy until a test write succeeds on another connection.
    fn recover(&mut self, panic: &(dyn Any + Send)) {
        self.health.commit_finished(false);
        self.counters.stats.lock().panics += 1;
        if self.health.set_failing() {
            let (cause, rows) = (panic_message(panic), self.group.len());
            tracing::error!(cause, rows, "the ledger's writer panicked: completions are refused until it writes again");
        }
        self.fold.postpone();
        self.fail_group();
        self.backend.disconnect();
    }

    /// Replies to every request in the group that its row may not have been committed.
    fn fail_group(&mut self) {
        if !self.group.is_empty() {
            let mut stats = self.counters.stats.lock();
            stats.failed_commits += 1;
            stats.not_recorded += self.group.len() as u64;
            drop(stats);
            let mut replies = Replies::default();
            self.group
                .drain(..)
                .for_each(|row| replies.add(row.entry.request_id, row.reply, Err(RecordError::CommitFailed)));
            replies.send();
        }
    }

    fn idle_timeout(&self) -> Duration {
        match self.health.is_healthy() {
            true => self.pruner.wait().min(self.fold.wait()),
            false => PROBE_INTERVAL,
        }
    }

    /// Commits a group and sends its replies.
    fn commit(&mut self) {
        self.health.commit_started();
        self.counters.rows_dequeued(self.group.len());
        let began = Instant::now();
        let result = self.backend.commit(&self.group);
        self.health.commit_finished(result.is_ok());
        let committed = match result {
            Ok(committed) => committed,
            Err(failure) => {
                self.mark_failing(failure);
                return self.fail_group();
            }
        };
        self.counters.committed(self.group.len(), began.elapsed());
        self.counters.stats.lock().not_recorded += committed.refused.len() as u64;
        self.fold.rows_committed(self.group.len() - committed.refused.len());
        let persisted_at_micros = self.clock.now_micros();
        let mut replies = Replies::default();
        for (at, row) in self.group.drain(..).enumerate() {
            let is_refused = committed.refused.contains(&at);
            // Before the reply, so that the caller's next request finds the place free.
            match row.permit {
                Some(permit) if !is_refused => (*permit).settle(),
                permit => drop(permit),
            }
            let result = if is_refused { Err(RecordError::RowRefused) } else { Ok(persisted_at_micros) };
            replies.add(row.entry.request_id, row.reply, result);
        }
        replies.send();
        if let Some(commit) = committed.commit {
            self.fold.add_time(CommitTime { commit, persisted_at_micros });
        }
    }

    fn fold(&mut self) {
        self.health.commit_started(); // rows wait while this runs
        let folded = self.backend.fold(self.fold.times());
        let can_write = folded.is_ok() || self.backend.probe().is_ok();
        self.health.commit_finished(can_write);
        match folded {
            Ok(backlog) => {
                backlog.iter().for_each(|backlog| self.counters.set_backlog(backlog, self.clock.now_micros()));
                self.fold.done(&backlog.unwrap_or_default());
            }
            Err(failure) => {
                self.counters.stats.lock().fold_lag_seconds = self.fold.lag().as_secs_f64();
                let is_first = self.fold.postpone();
                if !can_write {
                    self.mark_failing(failure);
                } else if is_first {
                    tracing::warn!(cause = %failure, "rows could not be added to the sums; retrying every second");
                }
            }
        }
    }

    /// Deletes a batch of old rows, even while new rows keep coming.
    fn prune_if_due(&mut self) {
        if !self.health.is_healthy() || !self.pruner.is_due() {
            return;
        }
        self.health.commit_started(); // rows wait while this runs
        let pruned = self.pruner.run(&mut *self.backend, &self.clock, &self.counters);
        let can_write = pruned.is_ok() || self.backend.probe().is_ok();
        self.health.commit_finished(can_write);
        match pruned {
            Ok(()) => {}
            // Rows can still be recorded.
            Err(failure) if can_write => {
                tracing::warn!(cause = %failure, "old rows could not be deleted; retrying in a minute");
                self.pruner.postpone();
            }
            Err(failure) => self.mark_failing(failure),
        }
    }

    fn mark_failing(&self, failure: StoreError) {
        if self.health.set_failing() {
            tracing::error!(cause = %failure, "the ledger cannot write: completions are refused until it can");
        }
    }

    fn probe(&mut self) {
        match self.backend.probe() {
            Ok(()) => self.health.commit_finished(true),
            Err(failure) => tracing::debug!(cause = %failure, "the ledger still cannot write"),
        }
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
