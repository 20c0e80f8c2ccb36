//! Measures the throughput of a PostgreSQL database: `record URL WRITERS KEYS SECONDS`.
//!
//! Each writer has its own ledger, as a replica has, and records rows as fast as possible, with a bounded number in
//! flight. With 0 writers, keys are looked up instead. Prints rows and look-ups per second as JSON.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use chat::{RequestId, TokenUsage};
use store::{Database, Entry, NewKey, Outcome, PostgresSettings, Store, Timings, Viewer};

/// Rows in flight per writer.
const IN_FLIGHT: usize = 256;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [url, writers, keys, seconds] = arguments.as_slice() else {
        eprintln!("usage: record URL WRITERS KEYS SECONDS");
        return ExitCode::from(2);
    };
    let (Ok(writers), Ok(keys), Ok(seconds)) = (writers.parse(), keys.parse(), seconds.parse()) else {
        eprintln!("record: WRITERS, KEYS and SECONDS are whole numbers");
        return ExitCode::from(2);
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let done = runtime
        .map_err(Into::into)
        .and_then(|runtime| runtime.block_on(record(url, writers, keys, Duration::from_secs(seconds))));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("record: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn record(
    url: &str,
    writers: usize,
    keys: usize,
    time: Duration,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let settings = PostgresSettings { url: url.parse()?, connections: 2, timeout: Duration::from_secs(5) };
    let database = Database::Postgres(settings);
    let (over, rows, looked_up) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)), AtomicU64::new(0));
    let store = Store::open(&database).await?;
    let mut made = Vec::new();
    for number in 0..keys.max(1) {
        let new = NewKey {
            name: chat::KeyName::parse(&format!("key {number}"))?,
            completions: true,
            expires_at: None,
            project: None,
        };
        made.push(store.keys().create(&Viewer::operator(), new, u64::MAX).await?);
    }
    let ids: Vec<_> = made.iter().map(chat::ApiKey::id).collect();
    let mut stops = Vec::new();
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..writers {
        let replica = Store::open(&database).await?;
        let (ledger, stop) = replica.start_ledger(Duration::from_secs(90 * 86_400))?;
        stops.push((replica, stop));
        for task in 0..IN_FLIGHT {
            let (ledger, ids, over, rows) = (ledger.clone(), ids.clone(), over.clone(), rows.clone());
            tasks.spawn(async move {
                let mut number = writer * IN_FLIGHT + task;
                while !over.load(Ordering::Relaxed) {
                    number += 1;
                    if ledger.record(entry(ids[number % ids.len()]), None).await.is_ok() {
                        rows.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    }
    let began = Instant::now();
    if writers == 0 {
        let lookups = (0..IN_FLIGHT).map(|task| {
            let (store, key, looked_up) = (&store, &made[task % made.len()], &looked_up);
            async move {
                while began.elapsed() < time {
                    if matches!(store.keys().authenticate(key).await, Ok(Some(_))) {
                        looked_up.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        });
        futures_util::future::join_all(lookups).await;
    } else {
        tokio::time::sleep(time).await;
    }
    over.store(true, Ordering::Relaxed);
    while tasks.join_next().await.is_some() {}
    let seconds = began.elapsed().as_secs_f64();
    let per_second = |count: &AtomicU64| (count.load(Ordering::Relaxed) as f64 / seconds).round();
    for (_, stop) in stops {
        tokio::task::spawn_blocking(|| stop.stop()).await?;
    }
    println!("{{\"rows\": {}, \"lookups\": {}}}", per_second(&rows), per_second(&looked_up));
    Ok(())
}

fn entry(key: chat::KeyId) -> Entry {
    Entry {
        request_id: RequestId::now(),
        key,
        owner: None,
        project: None,
        outcome: Outcome { status: 200, code: None },
        usage: TokenUsage { prompt: Some(41), completion: Some(14), total: Some(55) },
        timings: Timings {
            queue: Some(Duration::from_micros(90)),
            search: None,
            inference: Some(Duration::from_millis(300)),
            total: Duration::from_millis(301),
        },
        grounding: None,
        inference: Default::default(),
    }
}
