//! Callers that send requests through all failures, and record each outcome.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;

use serde_json::Value;
use testbed::{Connection, Installation, Request};

use crate::ADRIATICUM;

const CALLERS: usize = 6;

pub(crate) struct Load {
    body: String,
    key: String,
    /// The replicas to call.
    addresses: Mutex<Vec<SocketAddr>>,
    outcomes: Mutex<Vec<Outcome>>,
    /// Connections that broke before a response.
    broken: AtomicUsize,
    over: AtomicBool,
}

/// How one request ended.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    pub(crate) id: String,
    pub(crate) status: u16,
    pub(crate) code: Option<String>,
}

impl Load {
    /// Sends requests to these addresses in turn while `happens` runs.
    pub(crate) fn during(addresses: &[SocketAddr], key: &str, body: &str, happens: impl FnOnce(&Self)) -> Self {
        let load = Self {
            body: body.to_owned(),
            key: key.to_owned(),
            addresses: Mutex::new(addresses.to_owned()),
            outcomes: Mutex::default(),
            broken: AtomicUsize::new(0),
            over: AtomicBool::new(false),
        };
        thread::scope(|scope| {
            for caller in 0..CALLERS {
                let load = &load;
                scope.spawn(move || load.call(caller));
            }
            // Also on a panic, because a scope waits for its threads.
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| happens(&load)));
            load.over.store(true, Ordering::Relaxed);
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
        load
    }

    /// Changes the addresses to call.
    pub(crate) fn call_at(&self, addresses: &[SocketAddr]) {
        *self.addresses.lock().unwrap() = addresses.to_owned();
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.lock().unwrap().clone()
    }

    /// Waits for `count` more outcomes that satisfy a condition.
    pub(crate) fn wait_for_outcomes(&self, count: usize, wanted: impl Fn(&Outcome) -> bool) {
        let before = self.outcomes().len();
        ADRIATICUM.wait_for("answers", || {
            (self.outcomes()[before..].iter().filter(|outcome| wanted(outcome)).count() >= count).then_some(())
        });
    }

    pub(crate) fn wait_for_completions(&self, count: usize) {
        self.wait_for_outcomes(count, |outcome| outcome.status == 200);
    }

    pub(crate) fn outcomes(&self) -> MutexGuard<'_, Vec<Outcome>> {
        self.outcomes.lock().unwrap()
    }

    pub(crate) fn broken(&self) -> usize {
        self.broken.load(Ordering::Relaxed)
    }

    /// The number of requests for each outcome.
    pub(crate) fn kinds(&self) -> HashMap<(u16, Option<String>), usize> {
        let mut kinds = HashMap::new();
        self.outcomes()
            .iter()
            .for_each(|outcome| *kinds.entry((outcome.status, outcome.code.clone())).or_default() += 1);
        kinds
    }

    /// Every acknowledged completion is in the ledger once, and the totals match the rows. There may be rows of
    /// requests that were not acknowledged.
    pub(crate) fn assert_nothing_lost_or_doubled(&self, installation: &Installation) {
        let rows = installation.rows();
        self.assert_acknowledged_once(&rows);
        let sums = installation.usage();
        assert_eq!(sums["requests"], rows.len(), "the sums count the same rows");
        let tokens: u64 = rows.iter().filter_map(|row| row["total_tokens"].as_u64()).sum();
        assert_eq!(sums["total_tokens"].as_u64().unwrap_or(0), tokens);
    }

    /// Every acknowledged completion is among these rows, once.
    pub(crate) fn assert_acknowledged_once(&self, rows: &[Value]) {
        let by_id: HashMap<&str, &Value> = rows.iter().map(|row| (row["request_id"].as_str().unwrap(), row)).collect();
        assert_eq!(by_id.len(), rows.len(), "no row is there twice");
        let outcomes = self.outcomes();
        let acknowledged = outcomes.iter().filter(|outcome| outcome.status == 200);
        let lost: Vec<_> = acknowledged.clone().filter(|outcome| !by_id.contains_key(outcome.id.as_str())).collect();
        let (count, all) = (lost.len(), acknowledged.clone().count());
        assert!(lost.is_empty(), "{count} of {all} were acknowledged and lost, among them {:?}", lost[0]);
        for outcome in acknowledged {
            assert_eq!(by_id[outcome.id.as_str()]["status"], 200, "{outcome:?}");
        }
    }

    fn call(&self, caller: usize) {
        let request = Request::chat(&self.key, self.body.clone()).bytes();
        let mut turn = caller;
        while !self.over.load(Ordering::Relaxed) {
            let addresses = self.addresses.lock().unwrap().clone();
            turn += 1;
            let Some(connection) = Connection::try_connect(addresses[turn % addresses.len()]) else {
                thread::yield_now();
                continue;
            };
            let mut connection = connection.with_timeout(ADRIATICUM.timeout());
            // A few requests on each connection.
            for _ in 0..8 {
                let response = connection.send_while_open(&request).then(|| connection.try_response()).flatten();
                let Some(response) = response else {
                    self.broken.fetch_add(1, Ordering::Relaxed);
                    break;
                };
                let closing = response.header("connection") == Some("close");
                let (status, code) = response.outcome();
                let id = response.header("x-request-id").unwrap().to_owned();
                self.outcomes().push(Outcome { id, status, code });
                if closing || self.over.load(Ordering::Relaxed) {
                    break;
                }
            }
        }
    }
}
