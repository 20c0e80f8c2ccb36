//! Runs of a database: each opens it, checks it, and uses it until the disk is cut off.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use faulty_disk::{Cut, Disk, Faults, Operation};
use parking_lot::Mutex;
use store::{Database, Store, StoreError};
use tokio::runtime::Runtime;

use crate::checker::Expected;
use crate::load::Load;

const RETENTION: Duration = Duration::from_secs(90 * 86_400);
/// Small, so that the first start is also cut often, and checks stay fast.
const MAX_LIVES: u32 = 24;

pub(crate) struct Machine {
    rng: fastrand::Rng,
    sync_forgets: bool,
    runtime: Runtime,
    summary: Summary,
}

#[derive(Debug, Default)]
pub(crate) struct Summary {
    pub(crate) power_cuts: u64,
    pub(crate) kills: u64,
    pub(crate) databases: u64,
    pub(crate) checks: u64,
    /// Promised rows, keys and backups.
    pub(crate) rows: u64,
    pub(crate) keys: u64,
    pub(crate) backups: u64,
    pub(crate) calls: HashMap<Operation, (u64, u64)>,
    pub(crate) took: Duration,
}

impl Machine {
    pub(crate) fn new(rng: fastrand::Rng) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
        Self { rng, sync_forgets: false, runtime, summary: Summary::default() }
    }

    /// Uses a disk on which pages of a failed sync are lost for good.
    pub(crate) fn with_forgetful_syncs(self) -> Self {
        Self { sync_forgets: true, ..self }
    }

    /// Runs for at least `duration`, then until `is_enough` or until ten times `duration` has passed. Fails only if a store
    /// on a disk without faults cannot be opened.
    pub(crate) fn run(
        mut self,
        duration: Duration,
        is_enough: impl Fn(&Summary) -> bool,
    ) -> Result<Summary, StoreError> {
        let began = Instant::now();
        while began.elapsed() < duration || (!is_enough(&self.summary) && began.elapsed() < 10 * duration) {
            self.run_database()?;
        }
        self.summary.took = began.elapsed();
        Ok(self.summary)
    }

    /// All runs of one database, from its first start on.
    fn run_database(&mut self) -> Result<(), StoreError> {
        println!("a new database");
        let folder = tempfile::tempdir().unwrap();
        let disk = Arc::new(Disk::new(folder.path(), self.rng.u64(..)).unwrap());
        let mut database =
            DatabaseUnderTest { file: disk.folder().join("test.db"), disk, expected: Arc::default(), backups: 0 };
        for _ in 0..self.rng.u32(1..=MAX_LIVES) {
            self.run_life(&mut database)?;
        }
        self.check(&mut database)?;
        let expected = database.expected.lock();
        self.summary.databases += 1;
        self.summary.rows += expected.promised_rows().len() as u64;
        self.summary.keys += expected.keys.len() as u64;
        self.summary.backups += database.backups;
        for (operation, (all, failed)) in database.disk.counts() {
            let sums = self.summary.calls.entry(operation).or_default();
            *sums = (sums.0 + all, sums.1 + failed);
        }
        Ok(())
    }

    fn run_life(&mut self, database: &mut DatabaseUnderTest) -> Result<(), StoreError> {
        let rng = &mut self.rng;
        let faults = Faults {
            one_in: *rng.choice(&[0, 0, 10, 40, 150, 600]).unwrap(),
            full_for: *rng.choice(&[0, 3, 40]).unwrap(),
            sync_forgets: self.sync_forgets,
        };
        // At any call up to after the last one; small and large numbers are equally likely.
        let cut_after = rng.bool().then(|| 1 << rng.u32(..10)).map(|limit| rng.u64(1..=limit));
        let (opens_well, recovers, is_closed) = (rng.u8(..4) > 0, rng.u8(..8) == 0, rng.u8(..8) == 0);
        let cut = if rng.u8(..4) > 0 { Cut::Power } else { Cut::Kill };

        // Shown if the test fails.
        println!("{faults:?}, cut after {cut_after:?} calls, opened well: {opens_well}, closed: {is_closed}, {cut:?}");

        let disk = database.disk.clone();
        let make_faulty = || {
            disk.set_faults(faults);
            cut_after.into_iter().for_each(|calls| disk.cut_after(calls, cut));
        };
        if !opens_well {
            make_faulty();
        }
        let opened = self.runtime.block_on(Store::open(&Database::Sqlite(database.file.clone())));
        let opened = opened.and_then(|store| {
            let (ledger, writer) = store.start_ledger(RETENTION)?;
            Ok((Arc::new(store), ledger, writer))
        });
        match opened {
            Err(refusal) if opens_well => return Err(refusal),
            Err(_) => disk.cut_now(cut),
            Ok((store, ledger, writer)) => {
                if opens_well {
                    self.runtime.block_on(database.check(&store));
                    self.summary.checks += 1;
                    make_faulty();
                }
                let expected = database.expected.clone();
                let load = Load { disk: disk.clone(), file: database.file.clone(), store, ledger, expected };
                self.runtime.block_on(load.run(&mut self.rng));
                if recovers && !disk.is_cut() && cut_after.is_none() {
                    disk.set_faults(Faults::default());
                    self.runtime.block_on(load.wait_for_recovery(&mut self.rng));
                }
                if !is_closed {
                    disk.cut_now(cut);
                }
                writer.stop();
                drop(load);
                disk.cut_now(cut);
            }
        }
        disk.restart().unwrap();
        match cut {
            Cut::Power => self.summary.power_cuts += 1,
            Cut::Kill => self.summary.kills += 1,
        }
        Ok(())
    }

    fn check(&mut self, database: &mut DatabaseUnderTest) -> Result<(), StoreError> {
        self.runtime.block_on(async {
            let store = Store::open(&Database::Sqlite(database.file.clone())).await?;
            database.check(&store).await;
            Ok(())
        })
    }
}

struct DatabaseUnderTest {
    disk: Arc<Disk>,
    file: PathBuf,
    expected: Arc<Mutex<Expected>>,
    /// Finished backups that were found.
    backups: u64,
}

impl DatabaseUnderTest {
    #[expect(clippy::await_holding_lock, reason = "no other task runs while the database is checked")]
    async fn check(&mut self, store: &Store) {
        let mut expected = self.expected.lock();
        expected.check(store, &self.file).await;
        self.backups += expected.backups.len() as u64;
        expected.check_backups(self.disk.folder());
    }
}

impl Summary {
    pub(crate) fn came(&self, operation: Operation) -> u64 {
        self.calls.get(&operation).map_or(0, |(all, _)| *all)
    }

    pub(crate) fn failed(&self, operation: Operation) -> u64 {
        self.calls.get(&operation).map_or(0, |(_, failed)| *failed)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { power_cuts, kills, databases, checks, rows, keys, backups, calls, took } = self;
        let (all, failed) = calls.values().fold((0, 0), |(all, failed), call| (all + call.0, failed + call.1));
        write!(
            f,
            "{power_cuts} power cuts and {kills} kills of {databases} databases in {took:.1?}, {checks} checks; {rows} \
             rows, {keys} keys and {backups} backups promised; {failed} of {all} calls failed: {calls:?}"
        )
    }
}
