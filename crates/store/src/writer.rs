//! The ledger's writer: one thread that commits rows in groups, and folds and prunes in between.
//!
//! It blocks for the first row, takes all others that are queued, commits once, then replies to everyone. It never
//! sleeps to collect more rows. When a commit fails, everyone in it gets an error, the ledger is unhealthy, and test
//! writes find out when it works again. A panic is such a failure, too: it costs the rows in hand, and the writer goes on
//! with a new connection. Ending the process instead would end every request in flight because of one row.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use chat::Timestamp;

use crate::clock::StoreClock;
use crate::commit_id::CommitId;
use crate::counters::LedgerCounters;
use crate::fold::{Backlog, CommitTime};
use crate::fold_schedule::FoldSchedule;
use crate::health::Health;
use crate::ledger::{QueuedRow, RecordError, WriterCommand};
use crate::pruning::{ClockReading, Deleted, Due, Pruner};
use crate::replies::Replies;

/// Limited so that the first row of a group does not wait too long.
const MAX_GROUP_ROWS: usize = 1_024;
/// How often an unhealthy ledger tries a test write.
const PROBE_INTERVAL: Duration = Duration::from_millis(250);

/// A database's side of the ledger. After a call that failed, the next one reconnects if the connection is no longer
/// usable.
pub(crate) trait LedgerBackend: Send {
    /// Commits a group of rows and nothing else. All or nothing, except that a row that the database refuses does not
    /// fail the others.
    fn commit(&mut self, group: &[QueuedRow]) -> Result<Committed, CommitError>;

    /// Stores when commits became durable, and adds rows to the sums; `None` if another thread does that.
    fn fold(&mut self, times: &[CommitTime]) -> Result<Option<Backlog>, CommitError>;

    /// Writes something as large as a group, to find out whether writing works.
    fn probe(&mut self) -> Result<(), CommitError>;

    fn read_clock(&mut self) -> Result<ClockReading, CommitError>;

    /// Stores the ledger's own time, unless another process has changed it from what it was.
    fn store_time(&mut self, before: Option<Timestamp>, time: Timestamp) -> Result<(), CommitError>;

    /// Deletes sessions, links, challenges and counts that have ended. Nothing shows them any more.
    fn delete_ended(&mut self, due: Due) -> Result<(), CommitError>;

    /// Deletes a batch of the rows that are due.
    fn prune(&mut self, due: Due) -> Result<Deleted, CommitError>;

    /// Gives up the connection, which a panic may have left in any state. The next call opens another.
    fn disconnect(&mut self);

    /// The last call.
    fn close(&mut self);
}

pub(crate) struct Committed {
    /// `None` if no row was new.
    pub(crate) commit: Option<CommitId>,
    /// Indexes in the group of rows that the database refused.
    pub(crate) refused: Vec<usize>,
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct CommitError(pub(crate) String);

pub(crate) struct Writer {
    health: Arc<Health>,
    counters: Arc<LedgerCounters>,
    clock: Arc<StoreClock>,
    backend: Box<dyn LedgerBackend>,
    /// The rows in hand.
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

    /// Waits for something to do, and does it.
    fn run_once(&mut self, commands: &Receiver<WriterCommand>) {
        // Before the first row, which says nothing about the time that has passed since the last.
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

    /// After a panic nobody knows whether the rows in hand were committed, or what the connection is good for. The
    /// ledger is unhealthy until a test write succeeds on another one.
    fn recover(&mut self, panic: &(dyn Any + Send)) {
        self.health.commit_finished(false);
        self.counters.panicked();
        if self.health.set_failing() {
            let (cause, rows) = (panic_message(panic), self.group.len());
            tracing::error!(cause, rows, "the ledger's writer panicked: completions are refused until it writes again");
        }
        self.fold.postpone();
        self.fail_group();
        self.backend.disconnect();
    }

    /// Tells everyone in the group that their row may not be there.
    fn fail_group(&mut self) {
        if !self.group.is_empty() {
            self.counters.commit_failed(self.group.len());
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

    /// Commits a group and replies to everyone in it.
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
        self.counters.rows_lost(committed.refused.len());
        self.fold.rows_committed(self.group.len() - committed.refused.len());
        let persisted_at_micros = self.clock.now_micros();
        let mut replies = Replies::default();
        for (at, row) in self.group.drain(..).enumerate() {
            let is_refused = committed.refused.contains(&at);
            // Before the reply: the next request of the same caller finds its place free.
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

    /// Adds rows to the sums.
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
                self.counters.set_fold_lag(self.fold.lag());
                let is_first = self.fold.postpone();
                if !can_write {
                    self.mark_failing(failure);
                } else if is_first {
                    tracing::warn!(cause = %failure, "rows could not be added to the sums; it is tried every second");
                }
            }
        }
    }

    /// Deletes a batch of old rows, also while new rows keep coming.
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
            // Rows can be recorded all the same.
            Err(failure) if can_write => {
                tracing::warn!(cause = %failure, "old rows could not be deleted; it is tried again in a minute");
                self.pruner.postpone();
            }
            Err(failure) => self.mark_failing(failure),
        }
    }

    fn mark_failing(&self, failure: CommitError) {
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
