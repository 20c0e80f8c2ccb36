//! A server that fails repeatedly gets no requests for a while. Then one search at a time tries it again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use grounding::Passage;
use grounding::search::{RemoteSearch, SearchError};

use crate::server::{Response, Server, recording};
use crate::{LONG_DEADLINE, remote};

/// Failures in a row that open the breaker.
const FAILURE_THRESHOLD: usize = 3;

/// Searches until the breaker allows a search, and returns its result.
async fn search_after_backoff(remote: &RemoteSearch) -> Result<Vec<Passage>, SearchError> {
    loop {
        match remote.search("x", 5).await {
            Err(SearchError::CircuitOpen) => tokio::time::sleep(Duration::from_millis(10)).await,
            other => return other,
        }
    }
}

async fn open_breaker(remote: &RemoteSearch) {
    for _ in 0..FAILURE_THRESHOLD {
        let error = remote.search("x", 5).await.unwrap_err();
        assert_ne!(error, SearchError::CircuitOpen);
    }
    assert_eq!(remote.search("x", 5).await, Err(SearchError::CircuitOpen));
}

#[tokio::test]
async fn failures_in_a_row_open_the_breaker_and_a_success_closes_it() {
    let is_well = Arc::new(AtomicBool::new(false));
    let health = is_well.clone();
    let server = Server::start(move |_| match health.load(Ordering::SeqCst) {
        true => Response::recorded("searxng-no-hits"),
        false => Response::status(500),
    })
    .await;
    let remote = remote(&server.searxng(), LONG_DEADLINE);
    open_breaker(&remote).await;
    for _ in 0..50 {
        assert_eq!(remote.search("x", 5).await, Err(SearchError::CircuitOpen));
    }
    assert_eq!(server.counts().requests, FAILURE_THRESHOLD, "nothing is sent while the breaker is open");
    remote.check().await.unwrap_err();
    assert_eq!(server.counts().requests, FAILURE_THRESHOLD + 1, "a check bypasses the breaker");

    is_well.store(true, Ordering::SeqCst);
    assert_eq!(search_after_backoff(&remote).await, Ok(vec![]));
    for _ in 0..5 {
        assert_eq!(remote.search("x", 5).await, Ok(vec![]), "an empty response is a success");
    }
    assert_eq!(server.counts().requests, FAILURE_THRESHOLD + 7);
}

#[tokio::test]
async fn failures_that_are_not_in_a_row_do_not_open_the_breaker() {
    let server = Server::start(|at| match at % 3 {
        2 => Response::recorded("searxng-no-hits"),
        _ => Response::status(500),
    })
    .await;
    let remote = remote(&server.searxng(), LONG_DEADLINE);
    for _ in 0..9 {
        assert_ne!(remote.search("x", 5).await, Err(SearchError::CircuitOpen));
    }
}

#[tokio::test]
async fn a_refused_query_is_not_a_failure_of_the_server() {
    let server = Server::always(Response::status(400)).await;
    let remote = remote(&server.opensearch(), LONG_DEADLINE);
    for _ in 0..10 {
        assert_ne!(remote.search("x", 5).await, Err(SearchError::CircuitOpen));
    }
    assert_eq!(server.counts().requests, 10);
}

#[tokio::test]
async fn rate_limits_and_invalid_responses_open_the_breaker() {
    for reply in [Response::status(429), Response::json("<html>")] {
        let server = Server::always(reply).await;
        open_breaker(&remote(&server.searxng(), LONG_DEADLINE)).await;
        assert_eq!(server.counts().requests, FAILURE_THRESHOLD);
    }
}

/// A caller could repeatedly send queries that no source can answer.
#[tokio::test]
async fn failures_that_depend_on_the_query_do_not_open_the_breaker() {
    let server = Server::always(Response::recorded("searxng-unresponsive")).await;
    let remote = remote(&server.searxng(), LONG_DEADLINE);
    for _ in 0..4 * FAILURE_THRESHOLD {
        assert!(matches!(remote.search("x", 5).await, Err(SearchError::SourcesUnresponsive(_))));
    }
}

#[tokio::test]
async fn one_search_at_a_time_tries_and_after_its_cancellation_the_next_one() {
    let server = Server::start(|at| match at {
        0..FAILURE_THRESHOLD => Response::status(500),
        FAILURE_THRESHOLD => Response::ThenHang(vec![]),
        _ => Response::recorded("searxng-no-hits"),
    })
    .await;
    let remote = Arc::new(remote(&server.searxng(), LONG_DEADLINE));
    open_breaker(&remote).await;
    let trying = tokio::spawn({
        let remote = remote.clone();
        async move { search_after_backoff(&remote).await }
    });
    server.until(|counts| counts.requests == FAILURE_THRESHOLD + 1).await;
    for _ in 0..10 {
        assert_eq!(remote.search("x", 5).await, Err(SearchError::CircuitOpen), "another search is trying");
    }
    trying.abort();
    assert!(trying.await.unwrap_err().is_cancelled());
    server.until(|counts| counts.cancelled == 1).await;
    assert_eq!(remote.search("x", 5).await, Ok(vec![]), "the backoff is over and no other search tries");
}

#[tokio::test]
async fn cancelled_searches_are_not_failures() {
    let server = Server::always(Response::ThenHang(vec![])).await;
    let remote = Arc::new(remote(&server.opensearch(), LONG_DEADLINE));
    for at in 1..=FAILURE_THRESHOLD * 2 {
        let searching = tokio::spawn({
            let remote = remote.clone();
            async move { remote.search("x", 5).await }
        });
        server.until(|counts| counts.requests == at).await;
        searching.abort();
        assert!(searching.await.unwrap_err().is_cancelled());
        server.until(|counts| counts.cancelled == at).await;
    }
}

#[tokio::test]
async fn many_concurrent_failures_keep_the_breaker_open_no_longer_than_three() {
    let together = 20;
    let server = Server::start(move |at| match at {
        at if at < together => Response::ThenClose(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".to_vec()),
        _ => Response::json(recording("searxng-no-hits")),
    })
    .await;
    let remote = Arc::new(remote(&server.searxng(), LONG_DEADLINE));
    let mut searches = tokio::task::JoinSet::new();
    for _ in 0..together {
        let remote = remote.clone();
        searches.spawn(async move { remote.search("x", 5).await });
    }
    let ended = searches.join_all().await;
    assert!(ended.iter().all(|result| *result == Err(SearchError::Disconnected)), "{ended:?}");
    let waited = std::time::Instant::now();
    assert_eq!(search_after_backoff(&remote).await, Ok(vec![]));
    assert!(waited.elapsed() < Duration::from_secs(3), "{:?}", waited.elapsed());
}
