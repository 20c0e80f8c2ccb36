//! A caller may disconnect at any time during its request. Afterwards no request counts as in flight, no breaker waits for
//! a dropped probe, and the next request is served.
//!
//! Every request is polled to its n-th pending and dropped there, for every n, at members that complete, fail, hang,
//! drip, close or refuse. Without moves, `a_caller_may_leave_while_its_request_is_moved` fails: callers that stay then wait
//! for the whole timeout.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use chat::{ChatRequest, MaxTokens, Message, RequestId, Role, Temperature};
use http::HeaderMap;
use runtimes::{Attribution, InferenceError, Pool, PoolClient, PoolSettings};
use testbed::{Behaviour, FakeRuntime, unreachable_url};
use tokio::task::JoinSet;

const TIMEOUT: Duration = Duration::from_secs(60);
/// More than the number of times that any request is pending.
const MAX_PENDING: usize = 40;

fn request(number: usize) -> ChatRequest {
    let message = Message::new(Role::User, format!("question {number}")).unwrap();
    ChatRequest::new(vec![message], Temperature::default(), MaxTokens::new(1).unwrap()).unwrap()
}

fn pool(urls: &[String]) -> Arc<Pool> {
    let urls = urls.iter().map(|url| url.parse().unwrap()).collect();
    Pool::new(PoolSettings { urls, key: None, timeout: TIMEOUT, guard: true })
}

async fn complete(client: &PoolClient, number: usize) -> Result<String, InferenceError> {
    let trace = HeaderMap::new();
    let attribution = Attribution { id: RequestId::now(), key: None, person: None, trace: &trace };
    client.complete(&request(number), attribution, |_| {}).await.map(|completion| completion.text)
}

/// Polls a request until it was pending `pending` times, or for at most `timeout`, and drops it. Returns whether it
/// ended before.
async fn leave_after(client: &PoolClient, number: usize, pending: usize, timeout: Duration) -> bool {
    let mut request = pin!(complete(client, number));
    let mut seen = 0;
    let until = poll_fn(|context| match request.as_mut().poll(context) {
        Poll::Ready(_) => Poll::Ready(true),
        Poll::Pending if seen == pending => Poll::Ready(false),
        Poll::Pending => {
            seen += 1;
            Poll::Pending
        }
    });
    tokio::time::timeout(timeout, until).await.unwrap_or(false)
}

fn assert_nothing_in_flight(pool: &Pool, what: &str) {
    for member in pool.status() {
        assert_eq!(member.in_flight, 0, "{what}: {}", member.url);
    }
}

#[tokio::test]
async fn a_caller_may_leave_at_every_await() {
    let behaviours = [
        Behaviour::Echo,
        Behaviour::EchoAfter(Duration::from_millis(5)),
        Behaviour::EchoThenClose,
        Behaviour::Respond(500, "{}".into()),
        Behaviour::RespondRetryAfter(429, "{}".into(), 1),
        Behaviour::Close,
        Behaviour::CloseInHead,
        Behaviour::CloseInBody,
        Behaviour::Drip,
        Behaviour::Hang,
    ];
    let mut left = 0;
    for (at, behaviour) in behaviours.iter().enumerate() {
        let (odd, good) = (FakeRuntime::start(behaviour.clone()), FakeRuntime::start(Behaviour::Echo));
        let pool = pool(&[odd.url(), good.url(), unreachable_url()]);
        for pending in 0..MAX_PENDING {
            // A new client has no idle connections.
            let client = PoolClient::new(pool.clone());
            let mut ended = true;
            for number in 0..4 {
                let number = at * 1_000 + pending * 10 + number;
                ended &= leave_after(&client, number, pending, Duration::from_millis(20)).await;
                left += 1;
                assert_nothing_in_flight(&pool, &format!("{behaviour:?} after {pending}"));
            }
            if ended {
                break;
            }
        }
        // Requests are served in any state of the breakers.
        let client = PoolClient::new(pool.clone());
        odd.set_behaviour(Behaviour::Echo);
        for number in 0..20 {
            let result = complete(&client, number).await;
            assert!(result.is_ok(), "{behaviour:?}: {result:?}");
        }
        assert_nothing_in_flight(&pool, &format!("{behaviour:?} at the end"));
    }
    println!("{left} requests were dropped");
}

/// The breaker allows the next probe.
#[tokio::test]
async fn a_dropped_probe_does_not_exclude_its_member() {
    let runtime = FakeRuntime::start(Behaviour::Respond(500, "{}".into()));
    let pool = pool(&[runtime.url()]);
    let client = PoolClient::new(pool.clone());
    for number in 0..3 {
        assert!(complete(&client, number).await.is_err());
    }
    runtime.set_behaviour(Behaviour::Hang);
    for pending in 0..10 {
        leave_after(&client, pending, pending, Duration::from_millis(50)).await;
        assert_nothing_in_flight(&pool, "a probe");
    }
    runtime.set_behaviour(Behaviour::Echo);
    assert!(complete(&client, 1).await.is_ok());
}

/// A request that hangs is moved once other requests show that it should have been completed. Its caller may disconnect
/// before, during and after the move.
#[tokio::test]
async fn a_caller_may_leave_while_its_request_is_moved() {
    let runtimes = [0, 1, 2].map(|_| FakeRuntime::start(Behaviour::Echo));
    let pool = pool(&runtimes.each_ref().map(FakeRuntime::url));
    let client = Arc::new(PoolClient::new(pool.clone()));
    for number in 0..60 {
        complete(&client, number).await.unwrap();
    }
    runtimes[0].set_behaviour(Behaviour::Hang);
    let mut callers = JoinSet::new();
    for number in 0..120 {
        let client = client.clone();
        // Every check of a waiting request is one more pending, so later callers disconnect after the move.
        callers.spawn(async move { leave_after(&client, number, number % 8, TIMEOUT / 2).await });
    }
    let ended = callers.join_all().await.into_iter().filter(|ended| *ended).count();
    assert_nothing_in_flight(&pool, "all callers are done");
    let moved: u64 = pool.status().iter().map(|member| member.moved).sum();
    assert!(moved > 0 && ended > 60, "{moved} were moved, {ended} of 120 ended");
    assert_eq!(pool.status()[1].moved + pool.status()[2].moved, 0, "no request is moved away from the other members");
}
