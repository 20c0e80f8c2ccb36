//! Failures between us and any server: each is a separate kind of error, in time, and reveals no secret.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use grounding::search::{ConnectError, SearchError};
use reqwest::StatusCode;

use crate::server::{Counts, Response, Server, recording};
use crate::{LONG_DEADLINE, SHORT_DEADLINE, remote, titles};

const MIB: usize = 1 << 20;

/// Searches with a secret in URL and query, and checks that no error text contains it.
async fn failure(server: &Server, deadline: Duration) -> [SearchError; 2] {
    let mut errors = Vec::new();
    for url in [
        format!("searxng+http://u:secret@{}", server.address),
        format!("opensearch+http://u:secret@{}/i", server.address),
    ] {
        let error = remote(&url, deadline).search("secret", 5).await.expect_err(&url);
        let text = format!("{error} {error:?}");
        assert!(!text.contains("secret") && !text.contains("own words"), "{text}");
        errors.push(error);
    }
    errors.try_into().unwrap()
}

fn twice(error: SearchError) -> [SearchError; 2] {
    [error.clone(), error]
}

#[tokio::test]
async fn other_bodies_are_malformed() {
    let html = "<!DOCTYPE html><title>own words</title>";
    let truncated = recording("searxng-hits")[..1_000].to_vec();
    let bodies = [
        html.into(),
        truncated,
        Vec::new(),
        b"[]".to_vec(),
        b"{}".to_vec(),
        b"null".to_vec(),
        br#"{"results": "own words", "hits": "own words"}"#.to_vec(),
        br#"{"results": null, "hits": {"hits": null}}"#.to_vec(),
        b"\xff\xfe own words".to_vec(),
        [vec![b'['; 100_000], vec![b']'; 100_000]].concat(),
        recording("searxng-wrong-types"),
        recording("opensearch-wrong-types"),
    ];
    for body in bodies {
        let server = Server::always(Response::json(body.clone())).await;
        let beginning = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        assert_eq!(failure(&server, LONG_DEADLINE).await, twice(SearchError::Malformed), "{beginning}");
    }
}

#[tokio::test]
async fn a_large_response_is_not_read_with_or_without_a_length() {
    let announced = Server::always(Response::json(vec![b' '; 2 * MIB + 1])).await;
    assert_eq!(failure(&announced, LONG_DEADLINE).await, twice(SearchError::TooLarge));

    let ahead =
        Server::always(Response::ThenHang(b"HTTP/1.1 200 OK\r\ncontent-length: 2097153\r\n\r\n".to_vec())).await;
    assert_eq!(failure(&ahead, LONG_DEADLINE).await, twice(SearchError::TooLarge), "by its length, before it is read");

    let chunk = [b"10000\r\n".as_slice(), &[b' '; 0x10000], b"\r\n"].concat();
    let endless = [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".as_slice(), &chunk.repeat(33)].concat();
    let chunked = Server::always(Response::ThenHang(endless)).await;
    assert_eq!(failure(&chunked, LONG_DEADLINE).await, twice(SearchError::TooLarge));

    let to_the_end = [b"HTTP/1.1 200 OK\r\n\r\n".as_slice(), &vec![b' '; 3 * MIB]].concat();
    let without_end = Server::always(Response::ThenClose(to_the_end)).await;
    assert_eq!(failure(&without_end, LONG_DEADLINE).await, twice(SearchError::TooLarge));
}

#[tokio::test]
async fn a_response_at_the_size_limit_is_read() {
    let mut body = recording("searxng-older");
    body.resize(2 * MIB, b' ');
    let server = Server::always(Response::json(body)).await;
    let found = remote(&server.searxng(), LONG_DEADLINE).search("x", 5).await.unwrap();
    assert_eq!(titles(&found), ["Old"]);
}

#[tokio::test]
async fn an_incomplete_response_is_an_error() {
    let cases: [&[u8]; 5] = [
        b"",
        b"HTTP/1.1 200",
        b"own words, not HTTP\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{\"results\": []",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{\"res\r\n",
    ];
    for bytes in cases {
        let server = Server::always(Response::ThenClose(bytes.to_vec())).await;
        assert_eq!(
            failure(&server, LONG_DEADLINE).await,
            twice(SearchError::Disconnected),
            "{}",
            String::from_utf8_lossy(bytes)
        );
    }
}

#[tokio::test]
async fn one_deadline_covers_head_and_body() {
    let cases: [&[u8]; 3] =
        [b"", b"HTTP/1.1 200 OK\r\ncontent-le", b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{\"results\": []"];
    for bytes in cases {
        let server = Server::always(Response::ThenHang(bytes.to_vec())).await;
        let started = Instant::now();
        assert_eq!(failure(&server, SHORT_DEADLINE).await, twice(SearchError::TimedOut(SHORT_DEADLINE)));
        assert!(
            started.elapsed() >= SHORT_DEADLINE * 2 && started.elapsed() < LONG_DEADLINE,
            "{:?}",
            started.elapsed()
        );
        server.until(|counts| counts.cancelled == 2).await;
    }
}

#[tokio::test]
async fn a_refused_connection_is_reported() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = remote(&format!("searxng+http://{address}"), LONG_DEADLINE).search("x", 5).await.unwrap_err();
    assert_eq!(error, SearchError::Unreachable(ConnectError::Network(io::ErrorKind::ConnectionRefused)));
    assert!(error.to_string().contains("connection refused"), "{error}");
}

#[tokio::test]
async fn an_unknown_host_is_reported() {
    // A label of 64 letters is too long for a name, so no server has to be queried.
    let url = format!("searxng+http://{}.example", "a".repeat(64));
    let error = remote(&url, LONG_DEADLINE).search("x", 5).await.unwrap_err();
    assert_eq!(error, SearchError::Unreachable(ConnectError::UnknownHost));
}

#[tokio::test]
async fn tls_to_a_server_without_tls_is_reported() {
    let plain = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = plain.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = plain.accept().await {
            let _ = tokio::io::AsyncWriteExt::write_all(&mut socket, b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
            // Kept open until the client has closed it, so that the client can read the response.
            let _ = tokio::io::copy(&mut socket, &mut tokio::io::sink()).await;
        }
    });
    let error = remote(&format!("searxng+https://{address}"), LONG_DEADLINE).search("x", 5).await.unwrap_err();
    assert_eq!(error, SearchError::Unreachable(ConnectError::Tls));
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let elsewhere = Server::always(Response::recorded("searxng-hits")).await;
    let location: &'static str = format!("http://{}/search", elsewhere.address).leak();
    for (status, location) in [(302, location), (307, location), (301, "/elsewhere/search")] {
        let server = Server::always(Response::Complete(status, vec![("location", location)], vec![])).await;
        let expected = SearchError::Redirected(StatusCode::from_u16(status).unwrap());
        assert_eq!(failure(&server, LONG_DEADLINE).await, twice(expected));
        assert_eq!(server.counts().requests, 2, "1 request for each kind of server");
    }
    assert_eq!(elsewhere.counts(), Counts::default());
}

#[tokio::test]
async fn proxies_of_the_environment_do_not_see_queries() {
    // The client is built in a separate process with the variable set, which is read only once.
    if std::env::var_os("HTTP_PROXY").is_some() {
        let url = std::env::var("SEARCH_UNDER_TEST").unwrap();
        assert_eq!(remote(&url, LONG_DEADLINE).search("x", 5).await, Ok(vec![]));
        return;
    }
    let server = Server::always(Response::recorded("searxng-no-hits")).await;
    let proxy = Server::always(Response::status(502)).await;
    let mut again = tokio::process::Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "failures::proxies_of_the_environment_do_not_see_queries"]);
    again.env("SEARCH_UNDER_TEST", server.searxng());
    for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY"] {
        again.env(name, format!("http://{}", proxy.address));
    }
    again.env_remove("NO_PROXY").env_remove("no_proxy");
    assert!(again.output().await.unwrap().status.success());
    assert_eq!((server.counts().requests, proxy.counts().connections), (1, 0));
}

#[tokio::test]
async fn connections_are_reused() {
    let server = Server::always(Response::recorded("searxng-hits")).await;
    let remote = remote(&server.searxng(), LONG_DEADLINE);
    for _ in 0..5 {
        remote.search("x", 5).await.unwrap();
    }
    let counts = server.counts();
    assert_eq!((counts.connections, counts.requests), (1, 5));
}

#[tokio::test]
async fn a_kept_connection_that_the_server_closed_is_replaced() {
    let whole = |body: Vec<u8>| {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        [head.into_bytes(), body].concat()
    };
    let server = Server::always(Response::ThenClose(whole(recording("searxng-hits")))).await;
    let remote = remote(&server.searxng(), LONG_DEADLINE);
    for _ in 0..3 {
        assert_eq!(remote.search("x", 5).await.unwrap().len(), 5);
        // The end of the connection is a separate event, which must arrive first.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(server.counts().connections, 3);
}

#[test]
fn tokio_runtimes_do_not_share_connections() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let state = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = state.block_on(Server::always(Response::recorded("searxng-hits")));
    let remote = remote(&server.searxng(), LONG_DEADLINE);
    let (first, second) = (runtime(), runtime());
    // A runtime that is not being driven makes no progress on connections, and must not be needed.
    for turn in [&first, &second, &first, &second] {
        assert_eq!(turn.block_on(remote.search("x", 5)).unwrap().len(), 5);
    }
    assert_eq!(server.counts().connections, 2);
    drop(first);
    assert_eq!(second.block_on(remote.search("x", 5)).unwrap().len(), 5);
    assert_eq!(runtime().block_on(remote.search("x", 5)).unwrap().len(), 5);
    assert_eq!(server.counts().connections, 3);
}

#[tokio::test]
async fn many_concurrent_searches_all_succeed() {
    let server = Server::always(Response::recorded("searxng-hits")).await;
    let remote = Arc::new(remote(&server.searxng(), LONG_DEADLINE));
    let mut searches = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let remote = remote.clone();
        searches.spawn(async move { remote.search("x", 5).await.map(|found| found.len()) });
    }
    assert_eq!(searches.join_all().await, vec![Ok(5); 100]);
}
