//! Deletes rows that are older than the retention, in batches, and logs the deletions. `RetentionClock` decides which rows
//! are old; this module feeds it the database's clock and the elapsed monotonic time.

use std::time::{Duration, Instant};

use chat::Timestamp;

use crate::StoreError;
use crate::database::clock::{StoreClock, utc};
use crate::identity::{challenges, failures, links, sessions};
use crate::ledger::counters::LedgerCounters;
use crate::ledger::retention::RetentionClock;
use crate::ledger::writer::LedgerBackend;
use crate::limits::changes;
use crate::service::notices;

/// The interval of deletions, and the pause before the next batch if rows remain.
const INTERVAL: Duration = Duration::from_secs(60);
const BATCH_INTERVAL: Duration = Duration::from_millis(50);
/// How far the ledger's time may move before it is stored again.
const STORE_INTERVAL: Duration = Duration::from_secs(900);

/// The times that the database has.
pub(crate) struct ClockReading {
    /// The database's clock.
    pub(crate) clock: Timestamp,
    /// The ledger's time, as last stored by any process.
    pub(crate) stored: Option<Timestamp>,
    /// Read only if no time is stored.
    pub(crate) newest_row: Option<Timestamp>,
}

/// The times before which rows may be deleted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Due {
    /// Rows before this.
    pub(crate) rows_before: Timestamp,
    /// Sessions and links that expired before this may be deleted.
    pub(crate) now: Timestamp,
    /// The database's clock, by which new days get their partitions.
    pub(crate) clock: Timestamp,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Deleted {
    pub(crate) rows: u64,
    /// The times of the oldest and the newest of these rows.
    pub(crate) period: Option<(Timestamp, Timestamp)>,
    /// Whether there may be more.
    pub(crate) more: bool,
}

impl Due {
    /// Statements that delete everything expired except rows, with their parameters.
    pub(crate) fn ended(self) -> [(&'static str, Vec<Timestamp>); 6] {
        let now = self.now;
        [
            (sessions::DELETE_ENDED, sessions::oldest_valid(now).to_vec()),
            (links::DELETE_ENDED, vec![now]),
            (challenges::DELETE_ENDED, vec![now]),
            (failures::DELETE_ENDED, vec![failures::oldest_remembered(now)]),
            (changes::DELETE_ENDED, vec![changes::oldest_kept(now)]),
            (notices::DELETE_ENDED, vec![notices::oldest_remembered(now)]),
        ]
    }
}

impl Deleted {
    pub(crate) fn add(&mut self, rows: u64, oldest: Timestamp, newest: Timestamp) {
        self.rows += rows;
        let (first, last) = self.period.unwrap_or((oldest, newest));
        self.period = Some((first.min(oldest), last.max(newest)));
    }
}

pub(crate) struct Pruner {
    retention: Duration,
    next: Instant,
    /// `None` until the database's clock was read.
    watch: Option<Watch>,
    /// The result and the time of the last reading of the clock, while batches remain.
    due: Option<(Due, Instant)>,
    /// Deleted since the last log line.
    deleted: Deleted,
    disputed: bool,
}

struct Watch {
    clock: RetentionClock,
    read_at: Instant,
    stored: Timestamp,
}

impl Pruner {
    pub(crate) fn new(retention: Duration) -> Self {
        let deleted = Deleted::default();
        Self { retention, next: Instant::now(), watch: None, due: None, deleted, disputed: false }
    }

    pub(crate) fn is_due(&self) -> bool {
        self.next <= Instant::now()
    }

    pub(crate) fn wait(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Retries after the interval.
    pub(crate) fn postpone(&mut self) {
        self.next = Instant::now() + INTERVAL;
        self.due = None;
    }

    /// Deletes one batch.
    pub(crate) fn run(
        &mut self,
        backend: &mut dyn LedgerBackend,
        store_clock: &StoreClock,
        counters: &LedgerCounters,
    ) -> Result<(), StoreError> {
        let (due, read_at) = match self.due {
            Some((due, read_at)) if read_at.elapsed() < INTERVAL => (due, read_at),
            _ => {
                let due = self.read_clock(backend, store_clock, counters)?;
                backend.delete_ended(due)?;
                (due, Instant::now())
            }
        };
        let batch = backend.prune(due)?;
        if let Some((oldest, newest)) = batch.period {
            self.deleted.add(batch.rows, oldest, newest);
        }
        self.due = batch.more.then_some((due, read_at));
        self.next = Instant::now() + if batch.more { BATCH_INTERVAL } else { INTERVAL };
        if !batch.more {
            self.log_deleted();
        }
        Ok(())
    }

    fn read_clock(
        &mut self,
        backend: &mut dyn LedgerBackend,
        store_clock: &StoreClock,
        counters: &LedgerCounters,
    ) -> Result<Due, StoreError> {
        let ClockReading { clock, stored, newest_row } = backend.read_clock()?;
        let now = Instant::now();
        let watch = match &mut self.watch {
            Some(watch) => {
                let moved = stored.filter(|&stored| stored != watch.stored);
                watch.clock.advance(clock, now.duration_since(watch.read_at), moved);
                watch.stored = moved.unwrap_or(watch.stored);
                watch.read_at = now;
                watch
            }
            None => {
                let clock = RetentionClock::resume(stored, newest_row, clock);
                let stored = stored.unwrap_or_default();
                self.watch.insert(Watch { clock, read_at: now, stored })
            }
        };
        let time = watch.clock.time();
        let moved = time.duration_since(watch.stored).max(watch.stored.duration_since(time));
        if stored.is_none() || moved >= STORE_INTERVAL {
            backend.store_time(stored, time)?;
            watch.stored = time;
        }
        store_clock.set_floor(watch.clock.floor());
        counters.stats.lock().clock_disagreement_seconds = watch.clock.disagreement_seconds();
        let agreed = watch.clock.agreed();
        if watch.clock.is_disputed() != self.disputed {
            self.disputed = !self.disputed;
            log_dispute(self.disputed, clock, time);
        }
        Ok(Due { rows_before: agreed.saturating_sub(self.retention), now: agreed, clock })
    }

    fn log_deleted(&mut self) {
        let Deleted { rows, period, .. } = std::mem::take(&mut self.deleted);
        if let Some((oldest, newest)) = period {
            let (from, to) = (utc(oldest), utc(newest));
            tracing::info!(rows, %from, %to, "deleted rows that are older than `ledger.retention`");
        }
    }
}

fn log_dispute(disputed: bool, clock: Timestamp, time: Timestamp) {
    let (clock, time) = (utc(clock), utc(time));
    if disputed {
        tracing::warn!(
            %clock,
            %time,
            "the database's clock and the ledger's time are more than a day apart: the clock was set, or the service \
             was stopped; rows are deleted by the earlier of the two, and the ledger's time catches up with a steady \
             clock by one day per hour"
        );
    } else {
        tracing::info!(%clock, "the database's clock and the ledger's time agree again");
    }
}
