//! The ledger's writer: one thread that commits rows in groups.
//!
//! It blocks for the first row, takes all others that are queued, commits once, then replies to everyone. It never
//! sleeps to collect more rows. A `Receipt` exists only for a durable row. When a commit fails, everyone in it gets an
//! error, the ledger is unhealthy, and test writes find out when it works again. A panic is such a failure, too: it
//! costs the rows in hand, and the writer goes on with a new connection. Ending the process instead would end every
//! request in flight because of one row.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use chat::{RequestId, Timestamp};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::StoreError;
use crate::clock::StoreClock;
use crate::commit_id::CommitId;
use crate::counters::{LedgerCounters, LedgerStats};
use crate::fold::{Backlog, CommitTime};
use crate::postgres::Folder;
use crate::pruning::{ClockReading, Deleted, Due, Pruner};
use crate::replies::{Replies, ReplyAddress, ReplyPort};
use crate::rollup::Entry;

/// More are refused.
const MAX_QUEUED_ROWS: usize = 16_384;
/// Limited so that the first row of a group does not wait too long.
const MAX_GROUP_ROWS: usize = 1_024;
/// How long a request waits for its row to become durable.
const RECORD_TIMEOUT: Duration = Duration::from_secs(10);
/// A longer commit means that the disk hangs: new requests are then refused before they start.
const STALL_TIMEOUT: Duration = Duration::from_secs(3);
/// How often an unhealthy ledger tries a test write.
const PROBE_INTERVAL: Duration = Duration::from_millis(250);
/// After so many rows, or so long after the first of them, the rows are folded.
const FOLD_ROWS: usize = 1_024;
const FOLD_INTERVAL: Duration = Duration::from_secs(1);
/// Commits whose times are kept until they can be written.
const MAX_COMMIT_TIMES: usize = 16_384;

/// Proof that a request's row is durable. Only the ledger makes one.
#[derive(Debug)]
pub struct Receipt {
    request_id: RequestId,
}

impl Receipt {
    pub fn request_id(&self) -> RequestId {
        self.request_id
    }
}

/// Why a row is not known to be durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("too many rows wait for the ledger")]
    QueueFull,
    #[error("the ledger could not commit")]
    CommitFailed,
    /// The database refused this row alone.
    #[error("the ledger refused the row")]
    RowRefused,
    #[error("the ledger did not commit in time")]
    TimedOut,
    #[error("the ledger has stopped")]
    Stopped,
}

/// Hands rows to the writer.
#[derive(Clone)]
pub struct Ledger {
    commands: SyncSender<WriterCommand>,
    replies: Option<ReplyPort>,
    health: Arc<Health>,
    counters: Arc<LedgerCounters>,
    clock: Arc<StoreClock>,
}

impl Ledger {
    /// The same ledger for those who wait on this thread: after a commit the writer wakes the thread once, and not once
    /// for each row. Without a runtime it changes nothing.
    pub fn for_this_thread(&self) -> Self {
        let replies = Handle::try_current().ok().map(|runtime| ReplyPort::open(&runtime));
        Self { replies, ..self.clone() }
    }

    pub fn stats(&self) -> LedgerStats {
        LedgerStats { machine_clock_ahead_seconds: self.clock.machine_ahead_seconds(), ..self.counters.snapshot() }
    }

    /// The time that rows are recorded by, in microseconds since 1970.
    pub fn now_micros(&self) -> u64 {
        self.clock.now_micros()
    }

    /// Whether the last write succeeded, and no commit hangs.
    pub fn is_healthy(&self) -> bool {
        self.health.is_healthy()
    }

    /// Records a row and waits until it is durable.
    pub async fn record(&self, entry: Entry) -> Result<Receipt, RecordError> {
        let request_id = entry.request_id;
        let (sender, replied) = oneshot::channel();
        self.send(entry, Some(ReplyAddress { sender, port: self.replies.clone() }))?;
        match tokio::time::timeout(RECORD_TIMEOUT, replied).await {
            Ok(Ok(Ok(()))) => Ok(Receipt { request_id }),
            Ok(Ok(Err(reason))) => Err(reason),
            Ok(Err(_gone)) => Err(RecordError::Stopped),
            Err(_elapsed) => Err(RecordError::TimedOut),
        }
    }

    /// Queues a row that nobody waits for.
    pub fn enqueue(&self, entry: Entry) -> Result<(), RecordError> {
        self.send(entry, None)
    }

    fn send(&self, entry: Entry, reply: Option<ReplyAddress>) -> Result<(), RecordError> {
        let row = QueuedRow { entry, reply };
        // Counted before it is sent, because the writer may take it at once and must not count below zero.
        self.counters.row_queued();
        self.commands.try_send(WriterCommand::Record(row)).map_err(|refused| {
            self.counters.rows_dequeued(1);
            self.counters.rows_lost(1);
            match refused {
                TrySendError::Full(_) => RecordError::QueueFull,
                TrySendError::Disconnected(_) => RecordError::Stopped,
            }
        })
    }
}

pub struct LedgerWriter {
    commands: SyncSender<WriterCommand>,
    thread: JoinHandle<()>,
    folder: Option<Folder>,
}

impl LedgerWriter {
    /// Writes what was queued before this call, and ends the writer.
    pub fn stop(self) {
        // If this cannot be sent, the writer has ended already.
        let _ = self.commands.send(WriterCommand::Stop);
        if self.thread.join().is_err() {
            tracing::error!("the ledger's writer panicked");
        }
        drop(self.folder); // which may fold what was just written
    }
}

/// A database's side of the ledger. After a call that failed, the next one reconnects if the connection is no longer
/// usable.
pub(crate) trait LedgerBackend: Send {
    /// Commits a group of rows and nothing else. All or nothing, except that a row that the database refuses does not
    /// fail the others.
    fn commit(&mut self, group: &[QueuedRow], now_micros: u64) -> Result<Committed, CommitError>;

    /// Stores when commits became durable, and adds rows to the sums; `None` if another thread does that.
    fn fold(&mut self, times: &[CommitTime], now_micros: u64) -> Result<Option<Backlog>, CommitError>;

    /// Writes something as large as a group, to find out whether writing works.
    fn probe(&mut self) -> Result<(), CommitError>;

    fn read_clock(&mut self) -> Result<ClockReading, CommitError>;

    /// Stores the ledger's own time, unless another process has changed it from what it was.
    fn store_time(&mut self, before: Option<Timestamp>, time: Timestamp) -> Result<(), CommitError>;

    /// Deletes the sessions and links that have ended. Nothing shows them any more.
    fn delete_ended(&mut self, due: Due) -> Result<(), CommitError>;

    /// Deletes a batch of the rows that are due.
    fn prune(&mut self, due: Due) -> Result<Deleted, CommitError>;

    /// Gives up the connection, which a panic may have left in any state. The next call opens another.
    fn disconnect(&mut self);

    /// The last call.
    fn close(&mut self);
}

pub(crate) struct Committed {
    pub(crate) commit: CommitId,
    /// Indexes in the group of rows that the database refused.
    pub(crate) refused: Vec<usize>,
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct CommitError(pub(crate) String);

pub(crate) fn start(
    backend: Box<dyn LedgerBackend>,
    folder: Option<Folder>,
    clock: Arc<StoreClock>,
    counters: Arc<LedgerCounters>,
    retention: Duration,
) -> Result<(Ledger, LedgerWriter), StoreError> {
    let (commands, received) = sync_channel(MAX_QUEUED_ROWS);
    let health = Arc::new(Health::default());
    let writer = Writer {
        health: health.clone(),
        counters: counters.clone(),
        clock: clock.clone(),
        backend,
        group: Vec::with_capacity(MAX_GROUP_ROWS),
        fold: FoldSchedule::new(),
        pruner: Pruner::new(retention),
        stopping: false,
    };
    let thread = std::thread::Builder::new().name("ledger".into()).spawn(move || writer.run(&received));
    let thread = thread.map_err(StoreError::Thread)?;
    Ok((
        Ledger { commands: commands.clone(), replies: None, health, counters, clock },
        LedgerWriter { commands, thread, folder },
    ))
}

enum WriterCommand {
    Record(QueuedRow),
    Stop,
}

pub(crate) struct QueuedRow {
    pub(crate) entry: Entry,
    /// `None` if nobody waits.
    reply: Option<ReplyAddress>,
}

impl QueuedRow {
    /// A row that nobody waits for.
    #[cfg(test)]
    pub(crate) fn new(entry: Entry) -> Self {
        Self { entry, reply: None }
    }
}

struct Writer {
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
    fn run(mut self, commands: &Receiver<WriterCommand>) {
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
        let result = self.backend.commit(&self.group, self.clock.now_micros());
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
        let mut replies = Replies::default();
        for (at, row) in self.group.drain(..).enumerate() {
            let is_refused = committed.refused.contains(&at);
            let result = if is_refused { Err(RecordError::RowRefused) } else { Ok(()) };
            replies.add(row.entry.request_id, row.reply, result);
        }
        replies.send();
        self.fold.add_time(CommitTime { commit: committed.commit, persisted_at_micros: self.clock.now_micros() });
    }

    /// Adds rows to the sums.
    fn fold(&mut self) {
        let now_micros = self.clock.now_micros();
        self.health.commit_started(); // rows wait while this runs
        let folded = self.backend.fold(&self.fold.times, now_micros);
        let can_write = folded.is_ok() || self.backend.probe().is_ok();
        self.health.commit_finished(can_write);
        match folded {
            Ok(backlog) => {
                backlog.iter().for_each(|backlog| self.counters.set_backlog(backlog, now_micros));
                self.fold.done(&backlog.unwrap_or_default());
            }
            Err(failure) => {
                self.counters.set_fold_lag(self.fold.since.elapsed());
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

/// When to fold, and what is then written beside the sums.
struct FoldSchedule {
    times: Vec<CommitTime>,
    /// Rows that were committed since the last time, and when the first of them was.
    rows: usize,
    since: Instant,
    /// `None` if there is nothing to fold.
    due: Option<Instant>,
    failing: bool,
}

impl FoldSchedule {
    /// At the start, what an earlier process has left.
    fn new() -> Self {
        let now = Instant::now();
        Self { times: Vec::new(), rows: 0, since: now, due: Some(now), failing: false }
    }

    fn rows_committed(&mut self, rows: usize) {
        if self.rows == 0 {
            self.since = Instant::now();
        }
        self.rows += rows;
        self.due.get_or_insert_with(|| Instant::now() + FOLD_INTERVAL);
    }

    fn add_time(&mut self, time: CommitTime) {
        if self.times.len() < MAX_COMMIT_TIMES {
            self.times.push(time);
        }
    }

    fn is_due(&self) -> bool {
        self.wait().is_zero() || (self.rows >= FOLD_ROWS && !self.failing)
    }

    fn wait(&self) -> Duration {
        self.due.map_or(Duration::MAX, |due| due.saturating_duration_since(Instant::now()))
    }

    fn done(&mut self, backlog: &Backlog) {
        self.times.clear();
        self.rows = 0;
        self.failing = false;
        let wait = if backlog.is_ready { Duration::ZERO } else { FOLD_INTERVAL };
        self.due = (backlog.rows > 0).then(|| Instant::now() + wait);
    }

    /// `true` for the first failure in a row.
    fn postpone(&mut self) -> bool {
        self.due = Some(Instant::now() + FOLD_INTERVAL);
        !std::mem::replace(&mut self.failing, true)
    }
}

/// Shared between the writer and those who ask whether to start a request.
struct Health {
    failing: AtomicBool,
    epoch: Instant,
    /// Milliseconds from `epoch` to the start of the current commit, plus one; 0 when there is none.
    commit_started_at: AtomicU64,
}

impl Default for Health {
    fn default() -> Self {
        Self { failing: AtomicBool::new(false), epoch: Instant::now(), commit_started_at: AtomicU64::new(0) }
    }
}

impl Health {
    fn is_healthy(&self) -> bool {
        if self.failing.load(Ordering::Relaxed) {
            return false;
        }
        match self.commit_started_at.load(Ordering::Relaxed) {
            0 => true,
            started_at => self.epoch.elapsed() < Duration::from_millis(started_at - 1) + STALL_TIMEOUT,
        }
    }

    fn commit_started(&self) {
        self.commit_started_at.store(self.epoch.elapsed().as_millis() as u64 + 1, Ordering::Relaxed);
    }

    fn commit_finished(&self, well: bool) {
        self.commit_started_at.store(0, Ordering::Relaxed);
        if well && self.failing.swap(false, Ordering::Relaxed) {
            tracing::info!("the ledger writes again");
        }
    }

    /// Returns `true` if the ledger was healthy before.
    fn set_failing(&self) -> bool {
        !self.failing.swap(true, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollup::{Outcome, Timings};
    use crate::{Backend, Database, PostgresSettings, RequestQuery, Store, Viewer};

    const RETENTION: Duration = Duration::from_secs(86_400);

    /// A real backend that panics in the middle of its work for as long as `broken` says so.
    struct Flawed {
        backend: Box<dyn LedgerBackend>,
        broken: Arc<AtomicBool>,
    }

    impl Flawed {
        fn on(store: &Store) -> (Box<Self>, Arc<AtomicBool>) {
            let backend: Box<dyn LedgerBackend> = match &store.backend {
                Backend::Sqlite(backend) => backend.open_ledger(),
                Backend::Postgres(backend) => backend.open_ledger(store.clock.clone()),
            };
            let broken = Arc::new(AtomicBool::new(false));
            (Box::new(Self { backend, broken: broken.clone() }), broken)
        }

        fn panic_if_broken(&self) {
            assert!(!self.broken.load(Ordering::SeqCst), "a panic for the test");
        }
    }

    impl LedgerBackend for Flawed {
        fn commit(&mut self, group: &[QueuedRow], now_micros: u64) -> Result<Committed, CommitError> {
            self.panic_if_broken();
            self.backend.commit(group, now_micros)
        }

        fn fold(&mut self, times: &[CommitTime], now_micros: u64) -> Result<Option<Backlog>, CommitError> {
            self.backend.fold(times, now_micros)
        }

        fn probe(&mut self) -> Result<(), CommitError> {
            self.panic_if_broken();
            self.backend.probe()
        }

        fn read_clock(&mut self) -> Result<ClockReading, CommitError> {
            self.backend.read_clock()
        }

        fn store_time(&mut self, before: Option<Timestamp>, time: Timestamp) -> Result<(), CommitError> {
            self.backend.store_time(before, time)
        }

        fn delete_ended(&mut self, due: Due) -> Result<(), CommitError> {
            self.backend.delete_ended(due)
        }

        fn prune(&mut self, due: Due) -> Result<Deleted, CommitError> {
            self.backend.prune(due)
        }

        fn disconnect(&mut self) {
            self.backend.disconnect();
        }

        fn close(&mut self) {}
    }

    fn entry() -> Entry {
        Entry {
            request_id: RequestId::now(),
            key: "000000000001".parse().unwrap(),
            owner: None,
            outcome: Outcome { status: 200, code: None },
            usage: Default::default(),
            timings: Timings::default(),
            grounding: None,
        }
    }

    async fn is_healthy_within(ledger: &Ledger, limit: Duration) -> bool {
        let began = Instant::now();
        while !ledger.is_healthy() && began.elapsed() < limit {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        ledger.is_healthy()
    }

    #[tokio::test]
    async fn a_panic_fails_the_rows_in_hand_and_the_writer_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let url = testbed::Cluster::shared().create_database().parse().unwrap();
        let server = PostgresSettings { url, connections: 1, timeout: Duration::from_secs(5) };
        for database in [Database::Sqlite(folder.path().join("test.db")), Database::Postgres(server)] {
            let store = Store::open(&database).await.unwrap();
            let (backend, broken) = Flawed::on(&store);
            let (ledger, writer) = start(backend, None, store.clock.clone(), Arc::default(), RETENTION).unwrap();
            let first = ledger.record(entry()).await.unwrap();

            broken.store(true, Ordering::SeqCst);
            let together = tokio::join!(ledger.record(entry()), ledger.record(entry()), ledger.record(entry()));
            for refused in <[_; 3]>::from(together) {
                assert_eq!(refused.unwrap_err(), RecordError::CommitFailed, "{database}");
            }
            assert!(!ledger.is_healthy(), "{database}: nothing can be recorded");
            let stats = ledger.stats();
            assert!(stats.panics >= 1 && stats.failed_commits >= 1, "{database}: {stats:?}");
            assert_eq!((stats.not_recorded, stats.queued), (3, 0), "{database}");

            broken.store(false, Ordering::SeqCst);
            assert!(is_healthy_within(&ledger, Duration::from_secs(20)).await, "{database}: it starts again by itself");
            let second = ledger.record(entry()).await.unwrap();
            writer.stop();
            let query = RequestQuery { limit: 10, ..RequestQuery::default() };
            let rows = store.requests(&Viewer::operator(), &query).await.unwrap();
            let ids: Vec<_> = rows.iter().map(|row| row.request_id).collect();
            assert_eq!(ids, [second.request_id(), first.request_id()], "{database}");
        }
    }

    #[tokio::test]
    async fn a_panic_while_stopping_does_not_keep_the_writer_from_ending() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&Database::Sqlite(folder.path().join("test.db"))).await.unwrap();
        let (backend, broken) = Flawed::on(&store);
        let (ledger, writer) = start(backend, None, store.clock.clone(), Arc::default(), RETENTION).unwrap();
        broken.store(true, Ordering::SeqCst);
        ledger.enqueue(entry()).unwrap();
        writer.stop();
        assert_eq!(ledger.record(entry()).await.unwrap_err(), RecordError::Stopped);
    }
}
