//! The usage ledger: sends rows to its writer, and waits until they are durable. A `Receipt` exists only for a durable
//! row.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use chat::RequestId;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::StoreError;
use crate::database::clock::StoreClock;
use crate::ledger::counters::{LedgerCounters, LedgerStats};
use crate::ledger::health::Health;
use crate::ledger::postgres_fold::FoldThread;
use crate::ledger::replies::{ReplyAddress, ReplyPort};
use crate::ledger::writer::{LedgerBackend, Writer};
use crate::limits::permit::Permit;
use crate::usage::query::persist_us;
use crate::usage::rollup::Entry;

/// Further rows are refused.
const MAX_QUEUED_ROWS: usize = 16_384;
/// How long a request waits for its row to become durable.
const RECORD_TIMEOUT: Duration = Duration::from_secs(10);

/// Proof that a request's row is durable. Only the ledger makes one.
#[derive(Debug)]
pub struct Receipt {
    request_id: RequestId,
    total: Duration,
    persisted_at_micros: u64,
}

impl Receipt {
    pub fn request_id(&self) -> RequestId {
        self.request_id
    }

    /// The time that making the row durable took; all reports show the same value.
    pub fn persist(&self) -> Duration {
        let total_us = self.total.as_micros() as u64;
        Duration::from_micros(persist_us(self.request_id, total_us, self.persisted_at_micros).unwrap_or(0))
    }
}

/// Why a row is not known to be durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("too many rows are queued for the ledger")]
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

/// Sends rows to the writer.
#[derive(Clone)]
pub struct Ledger {
    commands: SyncSender<WriterCommand>,
    replies: Option<ReplyPort>,
    health: Arc<Health>,
    counters: Arc<LedgerCounters>,
    clock: Arc<StoreClock>,
}

impl Ledger {
    /// The same ledger for requests on this thread: after a commit the writer wakes the thread once instead of once per
    /// row. Without a runtime it changes nothing.
    pub fn for_this_thread(&self) -> Self {
        let replies = Handle::try_current().ok().map(|runtime| ReplyPort::open(&runtime));
        Self { replies, ..self.clone() }
    }

    pub fn stats(&self) -> LedgerStats {
        LedgerStats { machine_clock_ahead_seconds: self.clock.machine_ahead_seconds(), ..self.counters.snapshot() }
    }

    /// The clock by which rows are recorded, in microseconds since 1970.
    pub fn now_micros(&self) -> u64 {
        self.clock.now_micros()
    }

    /// Whether the last write succeeded, and no commit hangs.
    pub fn is_healthy(&self) -> bool {
        self.health.is_healthy()
    }

    /// Records a row and waits until it is durable. This also ends the request's reservation.
    pub async fn record(&self, entry: Entry, permit: Option<Permit>) -> Result<Receipt, RecordError> {
        let (request_id, total) = (entry.request_id, entry.timings.total);
        let (sender, replied) = oneshot::channel();
        self.send(entry, permit, Some(ReplyAddress { sender, port: self.replies.clone() }))?;
        match tokio::time::timeout(RECORD_TIMEOUT, replied).await {
            Ok(Ok(Ok(persisted_at_micros))) => Ok(Receipt { request_id, total, persisted_at_micros }),
            Ok(Ok(Err(reason))) => Err(reason),
            Ok(Err(_gone)) => Err(RecordError::Stopped),
            Err(_elapsed) => Err(RecordError::TimedOut),
        }
    }

    /// Queues a row without waiting for its commit.
    pub fn enqueue(&self, entry: Entry, permit: Option<Permit>) -> Result<(), RecordError> {
        self.send(entry, permit, None)
    }

    fn send(&self, entry: Entry, permit: Option<Permit>, reply: Option<ReplyAddress>) -> Result<(), RecordError> {
        let row = QueuedRow { entry, permit: permit.map(Box::new), reply };
        // Counted before it is sent: the writer may take it immediately, and the counter must not fall below zero.
        self.counters.row_queued();
        self.commands.try_send(WriterCommand::Record(row)).map_err(|refused| {
            self.counters.rows_dequeued(1);
            self.counters.stats.lock().not_recorded += 1;
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
    fold_thread: Option<FoldThread>,
}

impl LedgerWriter {
    /// Writes the rows that were queued before this call, and ends the writer.
    pub fn stop(self) {
        // If this cannot be sent, the writer has already ended.
        let _ = self.commands.send(WriterCommand::Stop);
        if self.thread.join().is_err() {
            tracing::error!("the ledger's writer panicked");
        }
        drop(self.fold_thread); // after the writer, so that it may fold the last rows
    }
}

pub(crate) fn start(
    backend: Box<dyn LedgerBackend>,
    fold_thread: Option<FoldThread>,
    clock: Arc<StoreClock>,
    counters: Arc<LedgerCounters>,
    retention: Duration,
) -> Result<(Ledger, LedgerWriter), StoreError> {
    let (commands, received) = sync_channel(MAX_QUEUED_ROWS);
    let health = Arc::new(Health::default());
    let writer = Writer::new(backend, health.clone(), counters.clone(), clock.clone(), retention);
    let thread = std::thread::Builder::new().name("ledger".into()).spawn(move || writer.run(&received));
    let thread = thread.map_err(StoreError::Thread)?;
    Ok((
        Ledger { commands: commands.clone(), replies: None, health, counters, clock },
        LedgerWriter { commands, thread, fold_thread },
    ))
}

#[allow(clippy::large_enum_variant, reason = "all commands but the last are rows")]
pub(crate) enum WriterCommand {
    Record(QueuedRow),
    Stop,
}

pub(crate) struct QueuedRow {
    pub(crate) entry: Entry,
    /// The request's reservation. Boxed, because few requests have one.
    pub(crate) permit: Option<Box<Permit>>,
    /// `None` if no request waits.
    pub(crate) reply: Option<ReplyAddress>,
}

impl QueuedRow {
    /// A row that no request waits for.
    #[cfg(test)]
    pub(crate) fn new(entry: Entry) -> Self {
        Self { entry, permit: None, reply: None }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    use chat::Timestamp;

    use super::*;
    use crate::ledger::fold::{Backlog, CommitTime};
    use crate::ledger::postgres::PostgresLedger;
    use crate::ledger::pruning::{ClockReading, Deleted, Due};
    use crate::ledger::sqlite::SqliteLedger;
    use crate::ledger::writer::Committed;
    use crate::usage::rollup::{Outcome, Timings};
    use crate::values::Viewer;
    use crate::{Backend, Database, PostgresSettings, RequestQuery, Store};

    const RETENTION: Duration = Duration::from_secs(86_400);

    /// A real backend that panics in its operations while `broken` is set.
    struct Flawed {
        backend: Box<dyn LedgerBackend>,
        broken: Arc<AtomicBool>,
    }

    impl Flawed {
        fn on(store: &Store) -> (Box<Self>, Arc<AtomicBool>) {
            let backend: Box<dyn LedgerBackend> = match &store.base.backend {
                Backend::Sqlite(file) => Box::new(SqliteLedger::new(file.pool().clone(), store.base.clock.clone())),
                Backend::Postgres(server) => {
                    Box::new(PostgresLedger::new(server.server().clone(), store.base.clock.clone()))
                }
            };
            let broken = Arc::new(AtomicBool::new(false));
            (Box::new(Self { backend, broken: broken.clone() }), broken)
        }

        fn panic_if_broken(&self) {
            assert!(!self.broken.load(Ordering::SeqCst), "a panic for the test");
        }
    }

    impl LedgerBackend for Flawed {
        fn commit(&mut self, group: &[QueuedRow]) -> Result<Committed, StoreError> {
            self.panic_if_broken();
            self.backend.commit(group)
        }

        fn fold(&mut self, times: &[CommitTime]) -> Result<Option<Backlog>, StoreError> {
            self.backend.fold(times)
        }

        fn probe(&mut self) -> Result<(), StoreError> {
            self.panic_if_broken();
            self.backend.probe()
        }

        fn read_clock(&mut self) -> Result<ClockReading, StoreError> {
            self.backend.read_clock()
        }

        fn store_time(&mut self, before: Option<Timestamp>, time: Timestamp) -> Result<(), StoreError> {
            self.backend.store_time(before, time)
        }

        fn delete_ended(&mut self, due: Due) -> Result<(), StoreError> {
            self.backend.delete_ended(due)
        }

        fn prune(&mut self, due: Due) -> Result<Deleted, StoreError> {
            self.backend.prune(due)
        }

        fn disconnect(&mut self) {
            self.backend.disconnect();
        }

        fn close(&mut self) {
            self.backend.close();
        }
    }

    fn entry() -> Entry {
        Entry {
            request_id: RequestId::now(),
            key: "000000000001".parse().unwrap(),
            owner: None,
            project: None,
            outcome: Outcome { status: 200, code: None },
            usage: Default::default(),
            timings: Timings::default(),
            grounding: None,
            inference: Default::default(),
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
    async fn a_panic_fails_the_current_rows_and_the_writer_continues() {
        let folder = tempfile::tempdir().unwrap();
        let url = testbed::Cluster::shared().create_database().parse().unwrap();
        let server = PostgresSettings { url, connections: 1, timeout: Duration::from_secs(5) };
        for database in [Database::Sqlite(folder.path().join("test.db")), Database::Postgres(server)] {
            let store = Store::open(&database).await.unwrap();
            let (backend, broken) = Flawed::on(&store);
            let (ledger, writer) = start(backend, None, store.base.clock.clone(), Arc::default(), RETENTION).unwrap();
            let first = ledger.record(entry(), None).await.unwrap();

            broken.store(true, Ordering::SeqCst);
            let together =
                tokio::join!(ledger.record(entry(), None), ledger.record(entry(), None), ledger.record(entry(), None));
            for refused in <[_; 3]>::from(together) {
                assert_eq!(refused.unwrap_err(), RecordError::CommitFailed, "{database}");
            }
            assert!(!ledger.is_healthy(), "{database}: nothing can be recorded");
            let stats = ledger.stats();
            assert!(stats.panics >= 1 && stats.failed_commits >= 1, "{database}: {stats:?}");
            assert_eq!((stats.not_recorded, stats.queued), (3, 0), "{database}");

            broken.store(false, Ordering::SeqCst);
            assert!(is_healthy_within(&ledger, Duration::from_secs(20)).await, "{database}: the writer recovers");
            let second = ledger.record(entry(), None).await.unwrap();
            writer.stop();
            let query = RequestQuery { limit: 10, ..RequestQuery::default() };
            let rows = store.usage().requests(&Viewer::operator(), &query).await.unwrap();
            let ids: Vec<_> = rows.iter().map(|row| row.request_id).collect();
            assert_eq!(ids, [second.request_id(), first.request_id()], "{database}");
        }
    }

    #[tokio::test]
    async fn the_writer_stops_despite_a_panic() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&Database::Sqlite(folder.path().join("test.db"))).await.unwrap();
        let (backend, broken) = Flawed::on(&store);
        let (ledger, writer) = start(backend, None, store.base.clock.clone(), Arc::default(), RETENTION).unwrap();
        broken.store(true, Ordering::SeqCst);
        ledger.enqueue(entry(), None).unwrap();
        writer.stop();
        assert_eq!(ledger.record(entry(), None).await.unwrap_err(), RecordError::Stopped);
    }
}
