//! Every report is the plain sum over the rows at any time: while rows are recorded and folded, replicas start and stop,
//! connections are closed during folding, and folded rows are pruned.
//!
//! `FOLD_SECONDS` sets the duration, `TEST_SEED` repeats the random choices.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use chat::{KeyId, RequestId, Timestamp, TokenUsage};
use store::{
    Database, Entry, GroupLabel, Grouping, Ledger, LedgerWriter, Outcome, Period, Phase, Project, RequestQuery, Step,
    Store, Timings, UsageGroup, UsageQuery, UsageReport, Viewer,
};
use testbed::Cluster;

use crate::database::{OK, TestDatabase, new_key};
use crate::on_each_backend;

on_each_backend!(every_report_is_the_sum_over_the_rows, a_commit_that_cannot_be_read_is_set_aside);

const REPLICAS: usize = 3;
const KEYS: usize = 5;
const RETENTION: Duration = Duration::from_secs(86_400);
const FAILED: Outcome = Outcome { status: 502, code: Some("inference_error") };

/// Reports omit its rows, other rows are folded, and it is counted as unreadable.
async fn a_commit_that_cannot_be_read_is_set_aside(database: TestDatabase) {
    let store = database.open().await;
    let key = new_key(&store, "k").await.id();
    match &database.database {
        Database::Sqlite(path) => {
            let lists = "INSERT INTO unfolded VALUES (1, x'00'), (2, zeroblob(16))";
            rusqlite::Connection::open(path).unwrap().execute_batch(lists).unwrap();
        }
        Database::Postgres(_) => {
            let lists = "INSERT INTO unfolded VALUES (1, '{NULL}'), (2, '{00000000-0000-0000-0000-000000000001}')";
            Cluster::shared().sql(database.url(), lists);
        }
    }
    let (ledger, writer) = store.start_ledger(RETENTION).unwrap();
    ledger.record(crate::database::entry(key), None).await.unwrap();
    let began = Instant::now();
    while ledger.stats().unreadable_commits < 2 || ledger.stats().unfolded_rows > 0 {
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", ledger.stats());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let query = UsageQuery {
        period: Period::since(Timestamp::default()),
        key: None,
        step: Step::Hour,
        person: None,
        group: Some(Grouping::Key),
    };
    let report = store.usage().report(&Viewer::operator(), &query).await.unwrap().unwrap();
    assert_eq!(report.totals.requests, 1);
    let problems = store.check_integrity().await.unwrap();
    assert!(problems.iter().any(|problem| problem.contains("cannot be read: 2")), "{problems:?}");
    writer.stop();
}

/// Plain sums: requests and successes; then for prompt, completion and total the sum of tokens and the number of measured
/// requests.
type Sums = [u64; 8];

#[derive(Debug, Default, PartialEq, Eq)]
struct Expected {
    totals: Sums,
    by_key: BTreeMap<KeyId, Sums>,
    by_hour: BTreeMap<u64, Sums>,
    by_outcome: BTreeMap<(u16, String), u64>,
    last_uses: BTreeMap<KeyId, Timestamp>,
}

impl Expected {
    fn add(&mut self, entry: &Entry) {
        let TokenUsage { prompt, completion, total } = entry.usage;
        let tokens = [prompt, completion, total].map(|count| [count.unwrap_or(0).into(), count.is_some().into()]);
        let mut sums = [0; 8];
        sums[..2].copy_from_slice(&[1, entry.outcome.code.is_none().into()]);
        sums[2..].copy_from_slice(tokens.as_flattened());
        let hour = entry.request_id.unix_seconds() / 3600;
        for place in
            [&mut self.totals, self.by_key.entry(entry.key).or_default(), self.by_hour.entry(hour).or_default()]
        {
            place.iter_mut().zip(sums).for_each(|(sum, part)| *sum += part);
        }
        let code = entry.outcome.code.unwrap_or_default().to_owned();
        *self.by_outcome.entry((entry.outcome.status, code)).or_default() += 1;
        let last_use = self.last_uses.entry(entry.key).or_default();
        *last_use = (*last_use).max(entry.request_id.timestamp());
    }

    fn from_report(report: &UsageReport) -> Self {
        let sums = |figures: &store::Figures, succeeded| {
            let [prompt, completion, total] =
                [figures.prompt, figures.completion, figures.total].map(|tokens| [tokens.sum, tokens.count]);
            let tokens = [prompt, completion, total];
            let mut sums = [0; 8];
            sums[..2].copy_from_slice(&[figures.requests, succeeded]);
            sums[2..].copy_from_slice(tokens.as_flattened());
            sums
        };
        let hour = |slice: &UsageGroup| match slice.label {
            GroupLabel::Time(start) => start.as_seconds() / 3600,
            ref other => panic!("{other:?}"),
        };
        let key = |group: &UsageGroup| match &group.label {
            GroupLabel::Key(key) => key.id,
            other => panic!("{other:?}"),
        };
        let outcome = |group: &UsageGroup| match &group.label {
            GroupLabel::Outcome(status, code) => ((*status, code.clone().unwrap_or_default()), group.figures.requests),
            other => panic!("{other:?}"),
        };
        Self {
            totals: sums(&report.totals, report.succeeded),
            by_key: report.groups.iter().map(|group| (key(group), sums(&group.figures, group.succeeded))).collect(),
            by_hour: report.by_time.iter().map(|slice| (hour(slice), sums(&slice.figures, slice.succeeded))).collect(),
            by_outcome: report.by_outcome.iter().map(outcome).collect(),
            last_uses: report.groups.iter().map(|group| (key(group), group.figures.last_at)).collect(),
        }
    }
}

struct Replica {
    store: Store,
    ledger: Ledger,
    writer: LedgerWriter,
}

impl Replica {
    async fn start(database: &TestDatabase) -> Self {
        let store = database.open().await;
        let (ledger, writer) = store.start_ledger(RETENTION).unwrap();
        Self { store, ledger, writer }
    }

    async fn report(&self) -> UsageReport {
        self.store.usage().report(&Viewer::operator(), &everything()).await.unwrap().unwrap()
    }
}

async fn every_report_is_the_sum_over_the_rows(database: TestDatabase) {
    let seconds = std::env::var("FOLD_SECONDS").map(|text| text.parse().expect("FOLD_SECONDS is a number"));
    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(4));
    let mut rng = testbed::seeded_rng();
    let mut replicas = Vec::new();
    for _ in 0..REPLICAS {
        replicas.push(Replica::start(&database).await);
    }
    let mut keys = Vec::new();
    for number in 0..KEYS {
        keys.push(new_key(&replicas[0].store, &format!("key {number}")).await.id());
    }
    let mut expected = Expected::default();
    let mut checks = 0;
    while Instant::now() < until {
        let burst: Vec<_> = (0..rng.usize(1..200)).map(|_| random_entry(&mut rng, &keys)).collect();
        let before = expected.totals[0];
        let recording = burst.iter().map(|entry| {
            let ledger = &replicas[rng.usize(..REPLICAS)].ledger;
            let entry = entry.clone();
            async move { ledger.record(entry, None).await.unwrap() }
        });
        let recording = futures_util::future::join_all(recording.collect::<Vec<_>>());
        // A report while rows are recorded: every grouping has the same sum, and no acknowledged row is missing.
        let reading = replicas[rng.usize(..REPLICAS)].report();
        if rng.bool() {
            cut_connections(&database);
        }
        let (_, report) = tokio::join!(recording, reading);
        check_groupings(&report);
        let requests = report.totals.requests;
        assert!((before..=before + burst.len() as u64).contains(&requests), "{requests} requests, {before} before");

        burst.iter().for_each(|entry| expected.add(entry));
        for replica in &replicas {
            let report = replica.report().await;
            assert_eq!(Expected::from_report(&report), expected);
            check_groupings(&report);
            check_each_key(&replica.store, &expected).await;
            checks += 1;
        }
        if rng.u8(..4) == 0 {
            // A start also prunes.
            let gone = replicas.swap_remove(rng.usize(..REPLICAS));
            tokio::task::spawn_blocking(move || gone.writer.stop()).await.unwrap();
            replicas.push(Replica::start(&database).await);
        }
    }
    // Once old rows are counted, they are deleted.
    replicas.push(Replica::start(&database).await);
    let now: Timestamp = SystemTime::now().into();
    let old = RequestQuery {
        before: Some(RequestId::first_at(now.saturating_sub(5 * RETENTION))),
        limit: 1,
        ..RequestQuery::default()
    };
    let began = Instant::now();
    while !replicas[0].store.usage().requests(&Viewer::operator(), &old).await.unwrap().is_empty() {
        assert!(began.elapsed() < Duration::from_secs(20), "rows older than the retention still exist");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for replica in replicas {
        tokio::task::spawn_blocking(move || replica.writer.stop()).await.unwrap();
    }
    let last = database.open().await;
    let report = last.usage().report(&Viewer::operator(), &everything()).await.unwrap().unwrap();
    assert_eq!(Expected::from_report(&report), expected);
    println!("{checks} checks of {} rows", expected.totals[0]);
    assert!(checks > 5, "{checks}");
}

fn everything() -> UsageQuery {
    UsageQuery {
        period: Period::since(Timestamp::default()),
        key: None,
        step: Step::Hour,
        person: None,
        group: Some(Grouping::Key),
    }
}

fn check_groupings(report: &UsageReport) {
    let Expected { totals, by_key, by_hour, by_outcome, .. } = Expected::from_report(report);
    for grouping in [by_key.into_values().collect::<Vec<_>>(), by_hour.into_values().collect()] {
        let mut sum = [0; 8];
        grouping.iter().flat_map(|part| part.iter().enumerate()).for_each(|(at, part)| sum[at] += part);
        assert_eq!(sum, totals);
    }
    assert_eq!(by_outcome.into_values().sum::<u64>(), totals[0]);
    assert_eq!(report.all_latencies().count(Phase::Total), totals[0]);
    assert!(report.all_latencies().count(Phase::Persist) <= totals[0], "a commit is timed twice");
}

/// The report of each key, and the list of keys.
async fn check_each_key(store: &Store, expected: &Expected) {
    let operator = Viewer::operator();
    for (key, sums) in &expected.by_key {
        let query = UsageQuery { key: Some(*key), ..everything() };
        let report = store.usage().report(&operator, &query).await.unwrap().unwrap();
        assert_eq!(Expected::from_report(&report).totals, *sums);
        assert_eq!(Expected::from_report(&report).by_key.get(key), Some(sums));
    }
    for key in store.keys().list(&operator).await.unwrap() {
        assert_eq!(key.last_used_at, expected.last_uses.get(&key.id).copied(), "{}", key.name);
    }
}

/// A tenth of them are so old that they are pruned once they are counted.
fn random_entry(rng: &mut fastrand::Rng, keys: &[KeyId]) -> Entry {
    let age = match rng.u8(..10) {
        0 => 10 * RETENTION,
        1 => Duration::from_secs(rng.u64(..20 * 3600)),
        _ => Duration::ZERO,
    };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let tokens = |rng: &mut fastrand::Rng| rng.bool().then(|| rng.u32(..1000));
    Entry {
        request_id: RequestId::at_micros((now - age).as_micros() as u64, rng.u64(..)),
        key: *rng.choice(keys).unwrap(),
        owner: rng.bool().then(|| "A00000000001".parse().unwrap()),
        project: rng.bool().then(|| Project::parse("search").unwrap()),
        outcome: if rng.u8(..5) == 0 { FAILED } else { OK },
        usage: TokenUsage { prompt: tokens(rng), completion: tokens(rng), total: tokens(rng) },
        timings: Timings { total: Duration::from_micros(rng.u64(..1 << 20)), ..Timings::default() },
        grounding: None,
        inference: Default::default(),
    }
}

/// Closes connections that are folding, as if the replica had died.
fn cut_connections(database: &TestDatabase) {
    let Database::Postgres(_) = &database.database else { return };
    let name = database.database.to_string();
    Cluster::shared().sql(
        "postgres",
        &format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
             WHERE datname = '{}' AND (query LIKE '%unfolded LEFT JOIN%' OR query LIKE '%AS sums%')",
            name.rsplit_once('/').unwrap().1
        ),
    );
}
