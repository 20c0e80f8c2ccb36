//! A server that fails again and again is left alone for a while, and asked again by one at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use grounding::Passage;
use grounding::search::{RemoteSearch, SearchError};

use crate::server::{Reply, Server, recording};
use crate::{AMPLE, remote};

/// How many failures in a row it takes.
const TOLERATED: usize = 3;

/// Fails until it is broken, and waits until the pause is over: then gives what the search that was let through gave.
async fn after_the_pause(remote: &RemoteSearch) -> Result<Vec<Passage>, SearchError> {
    loop {
        match remote.search("x", 5).await {
            Err(SearchError::CircuitOpen) => tokio::time::sleep(Duration::from_millis(10)).await,
            other => return other,
        }
    }
}

async fn break_it(remote: &RemoteSearch) {
    for _ in 0..TOLERATED {
        let error = remote.search("x", 5).await.unwrap_err();
        assert_ne!(error, SearchError::CircuitOpen);
    }
    assert_eq!(remote.search("x", 5).await, Err(SearchError::CircuitOpen));
}

#[tokio::test]
async fn failures_in_a_row_pause_it_and_a_success_ends_the_pause() {
    let is_well = Arc::new(AtomicBool::new(false));
    let health = is_well.clone();
    let server = Server::start(move |_| match health.load(Ordering::SeqCst) {
        true => Reply::recorded("searxng-no-hits"),
        false => Reply::status(500),
    })
    .await;
    let remote = remote(&server.searxng(), AMPLE);
    break_it(&remote).await;
    for _ in 0..50 {
        assert_eq!(remote.search("x", 5).await, Err(SearchError::CircuitOpen));
    }
    assert_eq!(server.counts().requests, TOLERATED, "nothing is sent during the pause");
    remote.check().await.unwrap_err();
    assert_eq!(server.counts().requests, TOLERATED + 1, "a check asks nevertheless");

    is_well.store(true, Ordering::SeqCst);
    assert_eq!(after_the_pause(&remote).await, Ok(vec![]));
    for _ in 0..5 {
        assert_eq!(remote.search("x", 5).await, Ok(vec![]), "an empty answer is a good one");
    }
    assert_eq!(server.counts().requests, TOLERATED + 7);
}

#[tokio::test]
async fn failures_that_are_not_in_a_row_do_not_pause_it() {
    let server = Server::start(|at| match at % 3 {
        2 => Reply::recorded("searxng-no-hits"),
        _ => Reply::status(500),
    })
    .await;
    let remote = remote(&server.searxng(), AMPLE);
    for _ in 0..9 {
        assert_ne!(remote.search("x", 5).await, Err(SearchError::CircuitOpen));
    }
}

#[tokio::test]
async fn a_query_that_is_too_much_for_it_says_nothing_against_it() {
    let server = Server::always(Reply::status(400)).await;
    let remote = remote(&server.opensearch(), AMPLE);
    for _ in 0..10 {
        assert_ne!(remote.search("x", 5).await, Err(SearchError::CircuitOpen));
    }
    assert_eq!(server.counts().requests, 10);
}

#[tokio::test]
async fn a_limiter_and_silent_engines_are_reasons_for_a_pause() {
    for reply in [Reply::status(429), Reply::recorded("searxng-unresponsive"), Reply::json("<html>")] {
        let server = Server::always(reply).await;
        break_it(&remote(&server.searxng(), AMPLE)).await;
        assert_eq!(server.counts().requests, TOLERATED);
    }
}

#[tokio::test]
async fn one_at_a_time_tries_and_one_that_is_given_up_leaves_room_for_the_next() {
    let server = Server::start(|at| match at {
        0..TOLERATED => Reply::status(500),
        TOLERATED => Reply::ThenSilence(vec![]),
        _ => Reply::recorded("searxng-no-hits"),
    })
    .await;
    let remote = Arc::new(remote(&server.searxng(), AMPLE));
    break_it(&remote).await;
    let trying = tokio::spawn({
        let remote = remote.clone();
        async move { after_the_pause(&remote).await }
    });
    server.until(|counts| counts.requests == TOLERATED + 1).await;
    for _ in 0..10 {
        assert_eq!(remote.search("x", 5).await, Err(SearchError::CircuitOpen), "somebody else is trying");
    }
    trying.abort();
    assert!(trying.await.unwrap_err().is_cancelled());
    server.until(|counts| counts.given_up == 1).await;
    assert_eq!(remote.search("x", 5).await, Ok(vec![]), "the pause is over and nobody tries");
}

#[tokio::test]
async fn searches_that_are_given_up_say_nothing_against_it() {
    let server = Server::always(Reply::ThenSilence(vec![])).await;
    let remote = Arc::new(remote(&server.opensearch(), AMPLE));
    for at in 1..=TOLERATED * 2 {
        let searching = tokio::spawn({
            let remote = remote.clone();
            async move { remote.search("x", 5).await }
        });
        server.until(|counts| counts.requests == at).await;
        searching.abort();
        assert!(searching.await.unwrap_err().is_cancelled());
        server.until(|counts| counts.given_up == at).await;
    }
}

#[tokio::test]
async fn many_failures_at_once_pause_it_no_longer_than_three() {
    let together = 20;
    let server = Server::start(move |at| match at {
        at if at < together => Reply::ThenEnd(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".to_vec()),
        _ => Reply::json(recording("searxng-no-hits")),
    })
    .await;
    let remote = Arc::new(remote(&server.searxng(), AMPLE));
    let mut searches = tokio::task::JoinSet::new();
    for _ in 0..together {
        let remote = remote.clone();
        searches.spawn(async move { remote.search("x", 5).await });
    }
    let ended = searches.join_all().await;
    assert!(ended.iter().all(|result| *result == Err(SearchError::Disconnected)), "{ended:?}");
    let waited = std::time::Instant::now();
    assert_eq!(after_the_pause(&remote).await, Ok(vec![]));
    assert!(waited.elapsed() < Duration::from_secs(3), "{:?}", waited.elapsed());
}
