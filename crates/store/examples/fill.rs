//! Fills a database for the benchmarks: `fill DATABASE KEYS REQUESTS [BUSY]`.
//!
//! Requests go through the ledger, spread over the last 30 days and the first 1,000 (or BUSY) keys, so that rows and
//! roll-ups are the same as in production. Keys are inserted in bulk, and their secrets are discarded.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chat::{ApiKey, KeyId, RequestId, TokenUsage};
use store::{Database, Entry, Outcome, RecordError, Store, Timings};

const DAYS: u64 = 30;
const BUSY_KEYS: usize = 1_000;
/// Consecutive requests with the same key, as in usual traffic.
const RUN: u64 = 8;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let (database, keys, requests, busy) = match arguments.as_slice() {
        [database, keys, requests] => (database, keys, requests, Ok(BUSY_KEYS)),
        [database, keys, requests, busy] => (database, keys, requests, busy.parse()),
        _ => {
            eprintln!("usage: fill DATABASE KEYS REQUESTS [BUSY]");
            return ExitCode::from(2);
        }
    };
    match (keys.parse(), requests.parse(), busy) {
        (Ok(keys), Ok(requests), Ok(busy)) => match fill(database, keys, requests, busy) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("fill: {error}");
                ExitCode::FAILURE
            }
        },
        _ => {
            eprintln!("fill: KEYS, REQUESTS and BUSY are whole numbers");
            ExitCode::from(2)
        }
    }
}

fn fill(database: &str, keys: usize, requests: u64, busy: usize) -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let store = runtime.block_on(Store::open(&Database::Sqlite(database.into())))?;
    let keys = insert_keys(database, keys)?;
    let busy = &keys[..keys.len().min(busy)];
    let (ledger, writer) = store.start_ledger(Duration::from_secs(90 * 86_400))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros() as u64;
    let start = now - DAYS * 86_400_000_000;
    let step = DAYS * 86_400_000_000 / requests.max(1);
    for number in 0..requests {
        let row = entry(start + number * step, number, busy);
        while let Err(RecordError::QueueFull) = ledger.enqueue(row.clone(), None) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    writer.stop();
    Ok(())
}

fn insert_keys(database: &str, count: usize) -> Result<Vec<KeyId>, Box<dyn std::error::Error>> {
    let mut connection = rusqlite::Connection::open(database)?;
    let transaction = connection.transaction()?;
    let mut ids = Vec::with_capacity(count);
    {
        let mut insert = transaction
            .prepare("INSERT INTO keys (id, digest, name, completions, created_at) VALUES (?1, ?2, ?3, 1, 1)")?;
        for number in 0..count {
            let key = ApiKey::generate()?;
            insert.execute((key.id().as_str(), key.digest().as_bytes(), format!("key {number}")))?;
            ids.push(key.id());
        }
    }
    transaction.commit()?;
    Ok(ids)
}

/// A plausible request: 1 in 50 fails, and latencies are between 5 milliseconds and 2 seconds.
fn entry(micros: u64, number: u64, keys: &[KeyId]) -> Entry {
    let scattered = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let failed = number.is_multiple_of(50);
    let tokens = (!failed).then_some((scattered >> 56) as u32);
    let inference = Duration::from_micros(5_000 + (scattered >> 40) % 2_000_000);
    Entry {
        request_id: RequestId::at_micros(micros, scattered),
        key: keys[(number / RUN).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_shr(20) as usize % keys.len()],
        owner: None,
        project: None,
        outcome: if failed {
            Outcome { status: 502, code: Some("inference_error") }
        } else {
            Outcome { status: 200, code: None }
        },
        usage: TokenUsage { prompt: tokens, completion: tokens, total: tokens.map(|tokens| 2 * tokens) },
        timings: Timings {
            queue: Some(Duration::from_micros(50 + (scattered >> 50) % 500)),
            search: None,
            inference: Some(inference),
            total: inference + Duration::from_micros(400),
        },
        grounding: None,
        inference: Default::default(),
    }
}
