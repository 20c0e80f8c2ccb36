//! The load on the store until the disk is cut off: rows, keys, reports and backups at the same time.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use chat::{KeyId, KeyName, RequestId, Timestamp, TokenUsage};
use faulty_disk::Disk;
use parking_lot::Mutex;
use store::{
    Entry, Grouping, Ledger, NewKey, Outcome, Period, Project, RequestQuery, Step, Store, Timings, UsageQuery, Viewer,
    back_up,
};
use tokio::task::JoinSet;

use crate::checker::{Expected, KnownKey, OLDEST_KEPT_SECONDS, Revocation, SentRow};

/// Before any retention.
const LONG_AGO_MICROS: u64 = 1_600_000_000_000_000;
const OUTCOMES: [Outcome; 2] =
    [Outcome { status: 200, code: None }, Outcome { status: 502, code: Some("inference_error") }];

/// The inputs of the load, and the results that it got.
#[derive(Clone)]
pub(crate) struct Load {
    pub(crate) disk: Arc<Disk>,
    pub(crate) file: PathBuf,
    pub(crate) store: Arc<Store>,
    pub(crate) ledger: Ledger,
    pub(crate) expected: Arc<Mutex<Expected>>,
}

impl Load {
    /// Runs until it is complete or the disk is cut off.
    pub(crate) async fn run(&self, rng: &mut fastrand::Rng) {
        let mut tasks = JoinSet::new();
        for _ in 0..rng.u32(1..=4) {
            let (load, rng, rows) = (self.clone(), rng.fork(), rng.u32(1..=16));
            tasks.spawn(async move { load.record(rng, rows).await });
        }
        let (load, fork, changes) = (self.clone(), rng.fork(), rng.u32(0..=4));
        tasks.spawn(async move { load.change_keys(fork, changes).await });
        if rng.bool() {
            let load = self.clone();
            tasks.spawn(async move { load.read().await });
        }
        if rng.u8(..6) == 0 {
            let (load, number) = (self.clone(), rng.u64(..));
            tasks.spawn_blocking(move || load.back_up(number));
        }
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
    }

    /// The ledger recovers without a restart once the disk works.
    pub(crate) async fn wait_for_recovery(&self, rng: &mut fastrand::Rng) {
        for _ in 0..1000 {
            if self.record_row(self.row(rng)).await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the disk works again, but the ledger does not");
    }

    async fn record(&self, mut rng: fastrand::Rng, rows: u32) {
        for _ in 0..rows {
            if self.disk.is_cut() {
                return;
            }
            let entry = self.row(&mut rng);
            if rng.u8(..8) == 0 {
                let _ = self.ledger.enqueue(entry, None);
            } else if !self.record_row(entry.clone()).await
                && entry.request_id.unix_seconds() >= OLDEST_KEPT_SECONDS
                && rng.bool()
            {
                self.record_row(entry).await; // it may already exist, unless it was pruned; then it counts once
            }
        }
    }

    async fn record_row(&self, entry: Entry) -> bool {
        match self.ledger.record(entry, None).await {
            Ok(receipt) => {
                let mut expected = self.expected.lock();
                expected.rows.get_mut(&receipt.request_id()).unwrap().promised = true;
                true
            }
            Err(_) => false,
        }
    }

    /// A new row, recorded as sent.
    fn row(&self, rng: &mut fastrand::Rng) -> Entry {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let now: Timestamp = SystemTime::now().into();
        let micros = match rng.u8(..20) {
            0 => LONG_AGO_MICROS,
            _ => (now.as_millis() - rng.u64(..86_400_000)) * 1000,
        };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let tokens = |rng: &mut fastrand::Rng| rng.bool().then(|| rng.u32(..5000));
        let mut expected = self.expected.lock();
        let known = rng.choice(expected.keys.keys().copied().collect::<Vec<KeyId>>());
        let entry = Entry {
            request_id: RequestId::at_micros(micros, number << 16),
            key: known.unwrap_or_else(|| "000000000001".parse().unwrap()),
            owner: rng.bool().then(|| "A00000000001".parse().unwrap()),
            project: rng.bool().then(|| Project::parse("search").unwrap()),
            outcome: OUTCOMES[rng.usize(..2)],
            usage: TokenUsage { prompt: tokens(rng), completion: tokens(rng), total: tokens(rng) },
            timings: Timings { total: Duration::from_micros(rng.u64(..1 << 24)), ..Timings::default() },
            grounding: None,
            inference: Default::default(),
        };
        expected.rows.insert(entry.request_id, SentRow { entry: entry.clone(), promised: false, is_there: false });
        entry
    }

    async fn change_keys(&self, mut rng: fastrand::Rng, changes: u32) {
        let operator = Viewer::operator();
        for _ in 0..changes {
            if self.disk.is_cut() {
                return;
            }
            if rng.bool() {
                let new =
                    NewKey { name: KeyName::parse("k").unwrap(), completions: true, expires_at: None, project: None };
                if let Ok(key) = self.store.keys().create(&operator, new, u64::MAX).await {
                    let known = KnownKey { key: Arc::new(key), revocation: Revocation::None };
                    self.expected.lock().keys.insert(known.key.id(), known);
                }
                continue;
            }
            let key = {
                let mut expected = self.expected.lock();
                let Some(known) = rng.choice(expected.keys.values_mut()) else { continue };
                known.revocation = known.revocation.max(Revocation::Tried);
                known.key.clone()
            };
            if let Ok(revoked) = self.store.keys().revoke(&operator, key.id()).await {
                assert!(revoked.is_some(), "the key {} was created but is gone", key.id());
                self.expected.lock().keys.get_mut(&key.id()).unwrap().revocation = Revocation::Promised;
                if let Ok(caller) = self.store.keys().authenticate(&key).await {
                    assert!(caller.is_none(), "the key {} was revoked but is accepted", key.id());
                }
            }
        }
    }

    async fn read(&self) {
        let operator = Viewer::operator();
        let query = UsageQuery {
            period: Period::since(Timestamp::default()),
            key: None,
            step: Step::Hour,
            person: None,
            group: Some(Grouping::Key),
        };
        for _ in 0..5 {
            if let Ok(report) = self.store.usage().report(&operator, &query).await {
                let report = report.unwrap();
                let by_outcome: u64 = report.by_outcome.iter().map(|outcome| outcome.figures.requests).sum();
                assert_eq!(by_outcome, report.totals.requests);
            }
            let _ =
                self.store.usage().requests(&operator, &RequestQuery { limit: 20, ..RequestQuery::default() }).await;
            let _ = self.store.keys().list(&operator).await;
            tokio::task::yield_now().await;
        }
    }

    fn back_up(&self, number: u64) {
        let promised = self.expected.lock().promised_rows();
        let name = format!("backup{number}.db");
        if let Ok(summary) = back_up(&self.file, &self.file.with_file_name(&name)) {
            assert!(summary.requests >= promised.len() as u64);
            self.expected.lock().backups.insert(name, promised);
        }
    }
}
