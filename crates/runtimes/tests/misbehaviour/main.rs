//! Runtimes that misbehave at random, and callers with a nonce each. Every caller gets its own nonce or an error, and a
//! request that the runtime answers correctly is completed, regardless of its behaviour at earlier requests.
//!
//! `SCRIPTS` sets the number of scripts, `TEST_SEED` repeats their random choices.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod runtime;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chat::{ChatRequest, MaxTokens, Message, RequestId, Role, Temperature};
use http::HeaderMap;
use runtime::{Behaviour, Ids, Runtime};
use runtimes::{Attribution, Pool, PoolClient, PoolSettings};
use tokio::task::JoinSet;

/// Scripts that run at the same time.
const CONCURRENT_SCRIPTS: usize = 256;
/// Longer than a connection without ids stays unused.
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Summary {
    scripts: usize,
    completed: usize,
    failed: usize,
    wrong: BTreeMap<String, usize>,
}

#[test]
fn every_caller_gets_its_own_answer_or_an_error() {
    let scripts = std::env::var("SCRIPTS").map_or(6_000, |count| count.parse().expect("SCRIPTS is a number"));
    let mut rng = testbed::seeded_rng();
    let mut summary = Summary::default();
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let runtimes = [Ids::None, Ids::InHead, Ids::InBody].map(Runtime::start);
        let mut running = JoinSet::new();
        for _ in 0..scripts {
            if running.len() == CONCURRENT_SCRIPTS {
                summary.add(running.join_next().await.unwrap().unwrap());
            }
            let runtime = &runtimes[rng.usize(..runtimes.len())];
            running.spawn(run_script(runtime.url(), runtime.ids(), rng.fork()));
        }
        while let Some(ended) = running.join_next().await {
            summary.add(ended.unwrap());
        }
    });
    let Summary { scripts, completed, failed, wrong } = summary;
    println!("{scripts} scripts: {completed} requests were completed, {failed} failed");
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(completed > failed && failed > scripts / 10);
}

impl Summary {
    fn add(&mut self, script: Self) {
        self.scripts += 1;
        self.completed += script.completed;
        self.failed += script.failed;
        for (what, count) in script.wrong {
            *self.wrong.entry(what).or_default() += count;
        }
    }
}

/// A few rounds of requests at the same time, through one pool.
async fn run_script(url: String, ids: Ids, mut rng: fastrand::Rng) -> Summary {
    let settings =
        PoolSettings { urls: vec![url.parse().unwrap()], key: None, timeout: Duration::from_secs(60), guard: false };
    let pool = Pool::new(settings);
    let client = Arc::new(PoolClient::new(pool.clone()));
    let mut summary = Summary::default();
    let mut before = "nothing".to_owned();
    for _ in 0..rng.usize(2..6) {
        let behaviours: Vec<_> = (0..rng.usize(1..4)).map(|_| Behaviour::random(&mut rng, ids)).collect();
        let requests: Vec<_> = behaviours.iter().map(|behaviour| ask(&client, *behaviour, rng.u64(..))).collect();
        for (behaviour, request) in behaviours.iter().zip(requests) {
            let wrong = match request.await.unwrap() {
                Outcome::Own => {
                    summary.completed += 1;
                    continue;
                }
                Outcome::Failed(error) if behaviour.is_good() => error,
                Outcome::Failed(_) => {
                    summary.failed += 1;
                    continue;
                }
                Outcome::Foreign => "another caller's answer".to_owned(),
            };
            *summary.wrong.entry(format!("{ids:?}, {behaviour:?} after {before}: {wrong}")).or_default() += 1;
        }
        before = format!("{behaviours:?}");
        pool.check().await; // as the service does periodically
        if rng.bool() {
            tokio::time::sleep(PAUSE).await;
        }
    }
    summary
}

enum Outcome {
    Own,
    Foreign,
    Failed(String),
}

fn ask(client: &Arc<PoolClient>, behaviour: Behaviour, nonce: u64) -> tokio::task::JoinHandle<Outcome> {
    let (client, text) = (client.clone(), behaviour.to_message(nonce));
    tokio::spawn(async move {
        let messages = vec![Message::new(Role::User, text.as_str().into()).unwrap()];
        let request = ChatRequest::new(messages, Temperature::default(), MaxTokens::default()).unwrap();
        let trace = HeaderMap::new();
        let attribution = Attribution { id: RequestId::now(), key: None, person: None, trace: &trace };
        match client.complete(&request, attribution, |_| {}).await {
            Ok(completion) if completion.text == text => Outcome::Own,
            Ok(_) => Outcome::Foreign,
            Err(error) => Outcome::Failed(error.to_string()),
        }
    })
}
