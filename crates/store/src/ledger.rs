//! The ledger's writer: one thread that commits rows in groups.
//!
//! It blocks for the first row, takes whatever else waits, commits once, then answers everyone; it never sleeps to
//! collect more. A `Receipt` exists only for a row that is durable. When a commit fails, everyone in it is told, the
//! ledger counts as failing, and a probe that writes in earnest finds out when it works again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use chat::RequestId;
use tokio::sync::oneshot;

use crate::rollup::{Entry, Rollups};
use crate::work::{LedgerFigures, Work};
use crate::{StoreError, now_millis};

/// Rows that may wait for the writer; more are refused.
const QUEUE_ROWS: usize = 16_384;
/// Rows in one transaction at the most, so that the first in it does not wait too long.
const GROUP_ROWS: usize = 1_024;
/// How long a request waits for its row to become durable.
const PATIENCE: Duration = Duration::from_secs(10);
/// A commit that takes longer than this means that the disk hangs: new requests are refused before they start.
const STALL: Duration = Duration::from_secs(3);
/// How often a failing ledger is probed.
const PROBE_EVERY: Duration = Duration::from_millis(250);
/// How long after the last commit its own duration is written down, if no other commit has done so.
const TRAIL_AFTER: Duration = Duration::from_millis(100);
/// How often old rows are looked for, and how soon again when there were more than one piece's worth.
const PRUNE_EVERY: Duration = Duration::from_secs(60);
const PRUNE_AGAIN: Duration = Duration::from_millis(50);

/// Proof that a request's row is durable. Only the ledger makes one.
#[derive(Debug)]
pub struct Receipt {
    request_id: RequestId,
}

impl Receipt {
    /// The request that was recorded.
    pub fn request_id(&self) -> RequestId {
        self.request_id
    }
}

/// Why a row is not known to be durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotRecorded {
    /// Too many rows wait already.
    #[error("too many rows wait for the ledger")]
    QueueFull,
    /// The transaction failed.
    #[error("the ledger could not commit")]
    CommitFailed,
    /// The database refused this one row.
    #[error("the ledger refused the row")]
    RowRefused,
    /// The disk did not answer in time.
    #[error("the ledger did not commit in time")]
    TimedOut,
    /// The writer has ended.
    #[error("the ledger has stopped")]
    Stopped,
}

/// A handle for handing rows to the writer.
#[derive(Clone)]
pub struct Ledger {
    orders: SyncSender<Order>,
    health: Arc<Health>,
    work: Arc<Work>,
}

impl Ledger {
    /// What the writer has done and has before it.
    pub fn figures(&self) -> LedgerFigures {
        self.work.read()
    }

    /// Whether the last thing that the writer tried has worked, and in time.
    pub fn is_healthy(&self) -> bool {
        self.health.is_good()
    }

    /// Records a row and waits until it is durable.
    pub async fn record(&self, entry: Entry) -> Result<Receipt, NotRecorded> {
        let request_id = entry.request_id;
        let (answer, answered) = oneshot::channel();
        self.hand_over(entry, Some(answer))?;
        match tokio::time::timeout(PATIENCE, answered).await {
            Ok(Ok(Ok(()))) => Ok(Receipt { request_id }),
            Ok(Ok(Err(reason))) => Err(reason),
            Ok(Err(_gone)) => Err(NotRecorded::Stopped),
            Err(_elapsed) => Err(NotRecorded::TimedOut),
        }
    }

    /// Records a row that nobody waits for.
    pub fn note(&self, entry: Entry) -> Result<(), NotRecorded> {
        self.hand_over(entry, None)
    }

    fn hand_over(&self, entry: Entry, answer: Option<Answer>) -> Result<(), NotRecorded> {
        let pending = Pending { entry, handed_over: Instant::now(), answer };
        // Before it is there, so that the writer, who may be quicker, never counts below nothing.
        self.work.comes();
        self.orders.try_send(Order::Record(pending)).map_err(|refused| {
            self.work.leaves(1);
            self.work.not_recorded(1);
            match refused {
                TrySendError::Full(_) => NotRecorded::QueueFull,
                TrySendError::Disconnected(_) => NotRecorded::Stopped,
            }
        })
    }
}

/// The running writer, to be stopped when everyone is done.
pub struct LedgerWriter {
    orders: SyncSender<Order>,
    thread: JoinHandle<()>,
}

impl LedgerWriter {
    /// Writes what was handed over before this call, and ends the writer.
    pub fn stop(self) {
        // If the order cannot be given, the writer is gone already.
        let _ = self.orders.send(Order::Stop);
        if self.thread.join().is_err() {
            tracing::error!("the ledger's writer had panicked");
        }
    }
}

/// A database's side of the ledger. Each call ends well or has changed nothing; a connection that cannot be trusted any
/// more is opened anew by the next call.
pub(crate) trait Book: Send {
    /// Commits a group of rows, their roll-ups, and what became known of the last commit. All or nothing, except that a
    /// row which the database refuses for itself does not fail its neighbours.
    fn commit(&mut self, group: &[Pending], trail: Option<Trail>) -> Result<Committed, CommitFailed>;

    /// Writes in earnest, to find out whether writing works.
    fn probe(&mut self) -> Result<(), CommitFailed>;

    /// Deletes some of the rows before that id; `true` if there may be more.
    fn prune(&mut self, before: RequestId) -> Result<bool, CommitFailed>;
}

/// A transaction that was committed.
pub(crate) struct Committed {
    /// Its number.
    pub(crate) commit: i64,
    /// The places in the group of rows that the database refused.
    pub(crate) refused: Vec<usize>,
}

/// Why nothing of a group is known to be committed, for the log.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct CommitFailed(pub(crate) String);

/// Starts the writer on a book that was opened for it.
pub(crate) fn start(book: Box<dyn Book>, retention: Duration) -> Result<(Ledger, LedgerWriter), StoreError> {
    let (orders, received) = sync_channel(QUEUE_ROWS);
    let (health, work) = (Arc::new(Health::default()), Arc::new(Work::default()));
    let next_prune = Instant::now();
    let writer = Writer { health: health.clone(), work: work.clone(), book, retention, trail: None, next_prune };
    let thread = std::thread::Builder::new().name("ledger".into()).spawn(move || writer.run(&received));
    let thread = thread.map_err(StoreError::Thread)?;
    Ok((Ledger { orders: orders.clone(), health, work }, LedgerWriter { orders, thread }))
}

type Answer = oneshot::Sender<Result<(), NotRecorded>>;

#[expect(clippy::large_enum_variant, reason = "almost every order is a record; a box would cost each an allocation")]
enum Order {
    Record(Pending),
    Stop,
}

/// A row on its way.
pub(crate) struct Pending {
    pub(crate) entry: Entry,
    handed_over: Instant,
    answer: Option<Answer>,
}

impl Pending {
    /// A row that nobody waits for.
    #[cfg(test)]
    pub(crate) fn new(entry: Entry) -> Self {
        Self { entry, handed_over: Instant::now(), answer: None }
    }

    fn answer(self, result: Result<(), NotRecorded>) {
        match (self.answer, result) {
            // A caller that hung up meanwhile does not read its answer; its row stands all the same.
            (Some(answer), result) => drop(answer.send(result)),
            (None, Ok(())) => {}
            (None, Err(reason)) => tracing::error!(request_id = %self.entry.request_id, %reason, "not recorded"),
        }
    }
}

/// What is known about the last commit only after it: it goes into the next transaction.
pub(crate) struct Trail {
    pub(crate) commit: i64,
    pub(crate) persisted_at_micros: u64,
    pub(crate) rollups: Rollups,
}

struct Writer {
    health: Arc<Health>,
    work: Arc<Work>,
    book: Box<dyn Book>,
    retention: Duration,
    trail: Option<Trail>,
    next_prune: Instant,
}

impl Writer {
    fn run(mut self, orders: &Receiver<Order>) {
        let mut group = Vec::with_capacity(GROUP_ROWS);
        loop {
            let mut stop = false;
            match orders.recv_timeout(self.until_next_chore()) {
                Ok(Order::Record(pending)) => group.push(pending),
                Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => stop = true,
                Err(RecvTimeoutError::Timeout) => {}
            }
            while group.len() < GROUP_ROWS && !stop {
                match orders.try_recv() {
                    Ok(Order::Record(pending)) => group.push(pending),
                    Ok(Order::Stop) => stop = true,
                    Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
                }
            }
            let idle = group.is_empty();
            if !idle {
                self.commit(&mut group);
            }
            if idle || stop {
                self.chores();
            }
            if stop {
                return;
            }
            self.prune_if_due();
        }
    }

    fn until_next_chore(&self) -> Duration {
        if !self.health.is_good() {
            PROBE_EVERY
        } else if self.trail.is_some() {
            TRAIL_AFTER
        } else {
            self.next_prune.saturating_duration_since(Instant::now())
        }
    }

    /// Commits a group and answers everyone in it.
    fn commit(&mut self, group: &mut Vec<Pending>) {
        self.health.commit_begins();
        self.work.leaves(group.len());
        let trail = self.trail.take();
        let began = Instant::now();
        let result = self.book.commit(group, trail);
        self.health.commit_ends(result.is_ok());
        let committed = match result {
            Ok(committed) => committed,
            Err(failure) => {
                self.give_up(failure);
                self.work.failed(group.len());
                return group.drain(..).for_each(|pending| pending.answer(Err(NotRecorded::CommitFailed)));
            }
        };
        let mut rollups = Rollups::default();
        let now = Instant::now();
        self.work.committed(group.len(), now - began);
        self.work.not_recorded(committed.refused.len());
        for (at, pending) in group.drain(..).enumerate() {
            if committed.refused.contains(&at) {
                pending.answer(Err(NotRecorded::RowRefused));
                continue;
            }
            rollups.add_persist(&pending.entry, now - pending.handed_over);
            pending.answer(Ok(()));
        }
        self.trail = Some(Trail { commit: committed.commit, persisted_at_micros: now_micros(), rollups });
    }

    /// What there is to do when no row waits.
    fn chores(&mut self) {
        if !self.health.is_good() {
            self.try_again();
        } else if let Some(trail) = self.trail.take()
            && let Err(failure) = self.book.commit(&[], Some(trail))
        {
            self.give_up(failure);
        }
    }

    /// Deletes a piece of what is too old, also while rows keep coming.
    fn prune_if_due(&mut self) {
        if !self.health.is_good() || self.next_prune > Instant::now() {
            return;
        }
        let oldest = now_millis().saturating_sub(self.retention.as_millis() as u64);
        self.health.commit_begins(); // what hangs here holds up rows, too
        let pruned = self.book.prune(RequestId::first_of_millis(oldest));
        self.health.commit_ends(pruned.is_ok());
        match pruned {
            Ok(more) => self.next_prune = Instant::now() + if more { PRUNE_AGAIN } else { PRUNE_EVERY },
            Err(failure) => self.give_up(failure),
        }
    }

    fn give_up(&self, failure: CommitFailed) {
        if self.health.now_failing() {
            tracing::error!(cause = %failure, "the ledger cannot write: completions are refused until it can");
        }
    }

    /// Finds out whether the ledger can write again, by writing.
    fn try_again(&mut self) {
        match self.book.probe() {
            Ok(()) => self.health.commit_ends(true),
            Err(failure) => tracing::debug!(cause = %failure, "the ledger still cannot write"),
        }
    }
}

fn now_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}

/// Shared between the writer and everyone who asks whether it is worth starting a request.
struct Health {
    failing: AtomicBool,
    epoch: Instant,
    /// Milliseconds from `epoch` to the start of the commit under way, plus one; 0 when none is.
    commit_began: AtomicU64,
}

impl Default for Health {
    fn default() -> Self {
        Self { failing: AtomicBool::new(false), epoch: Instant::now(), commit_began: AtomicU64::new(0) }
    }
}

impl Health {
    fn is_good(&self) -> bool {
        if self.failing.load(Ordering::Relaxed) {
            return false;
        }
        match self.commit_began.load(Ordering::Relaxed) {
            0 => true,
            began => self.epoch.elapsed() < Duration::from_millis(began - 1) + STALL,
        }
    }

    fn commit_begins(&self) {
        self.commit_began.store(self.epoch.elapsed().as_millis() as u64 + 1, Ordering::Relaxed);
    }

    fn commit_ends(&self, well: bool) {
        self.commit_began.store(0, Ordering::Relaxed);
        if well && self.failing.swap(false, Ordering::Relaxed) {
            tracing::info!("the ledger writes again");
        }
    }

    /// Marks the ledger as failing; `true` if it was not before.
    fn now_failing(&self) -> bool {
        !self.failing.swap(true, Ordering::Relaxed)
    }
}
