//! OpenSearch and Elasticsearch: requests and the interpretation of responses.

use std::time::{Duration, Instant};

use grounding::Passage;
use grounding::search::{RemoteSearch, SearchError};
use jiff::civil::date;
use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};

use crate::server::{Response, Server, recording};
use crate::{LONG_DEADLINE, passage, remote, titles};

#[tokio::test]
async fn hits_become_passages() {
    let server = Server::always(Response::recorded("opensearch-hits")).await;
    let found = remote(&server.opensearch(), LONG_DEADLINE).search("opening hours", 10).await.unwrap();
    let day = Some(date(2024, 5, 1));
    let expected = [
        passage("Opening hours", "https://intranet.example/hours", "The reading room opens at nine.", day),
        passage(
            "Without address",
            "opensearch:handbook-2023/k%C3%B6%201%2F2%3F",
            "First paragraph.\nSecond paragraph.",
            day,
        ),
        passage("Manual", "/srv/docs/manual.pdf", "A chunk as an importer writes it.", day),
        passage(
            "https://intranet.example/d4",
            "https://intranet.example/d4",
            "Numbers are no names.",
            Some(date(2022, 1, 31)),
        ),
        passage("One name with a dot", "file:///srv/x.doc", "Extracted.", None),
    ];
    assert_eq!(found, expected);
    let found = remote(&server.opensearch(), LONG_DEADLINE).search("opening hours", 2).await.unwrap();
    assert_eq!(found, expected[..2], "at most the requested number, even if it sends more");
}

#[tokio::test]
async fn no_hits_are_not_an_error_and_one_good_shard_is_enough() {
    for (name, expected) in
        [("opensearch-no-hits", vec![]), ("opensearch-some-shards-failed", vec!["From the shard that works"])]
    {
        let server = Server::always(Response::recorded(name)).await;
        let found = remote(&server.opensearch(), LONG_DEADLINE).search("x", 5).await.unwrap();
        assert_eq!(titles(&found), expected, "{name}");
    }
    let no_shards = r#"{"took":0,"timed_out":false,"_shards":{"total":0,"successful":0,"skipped":0,"failed":0},"hits":{"hits":[]}}"#;
    let server = Server::always(Response::json(no_shards)).await;
    assert_eq!(remote(&server.opensearch(), LONG_DEADLINE).search("x", 5).await, Ok(vec![]));
}

#[tokio::test]
async fn an_incomplete_search_is_an_error() {
    let cases = [
        ("opensearch-timed-out", SearchError::CutShort),
        ("opensearch-all-shards-failed", SearchError::ShardsFailed),
        ("opensearch-unreadable", SearchError::Unreadable),
    ];
    for (name, expected) in cases {
        let server = Server::always(Response::recorded(name)).await;
        assert_eq!(remote(&server.opensearch(), LONG_DEADLINE).search("x", 5).await, Err(expected), "{name}");
    }
}

#[tokio::test]
async fn the_error_for_a_status_has_a_remedy() {
    let cases = [
        (401, SearchError::CredentialsRefused(StatusCode::UNAUTHORIZED), "USER:PASSWORD"),
        (403, SearchError::CredentialsRefused(StatusCode::FORBIDDEN), "status 403"),
        (404, SearchError::IndexMissing, "no index of that name"),
        (429, SearchError::Busy, "load"),
        (503, SearchError::Refused(StatusCode::SERVICE_UNAVAILABLE), "status 503"),
    ];
    for (status, expected, remedy) in cases {
        let server = Server::always(Response::Complete(status, vec![], recording("opensearch-no-index"))).await;
        let error = remote(&server.opensearch(), LONG_DEADLINE).search("x", 5).await.unwrap_err();
        let message = error.to_string();
        assert_eq!(error, expected);
        assert!(message.contains(remedy) && !message.contains("index_not_found"), "{message}");
    }
}

#[tokio::test]
async fn only_the_query_is_sent() {
    let server = Server::always(Response::recorded("opensearch-no-hits")).await;
    let url = format!("elasticsearch+http://admin:s%23cret@{}/es/docs-*,more", server.address);
    let remote = remote(&url, Duration::from_secs(10));
    remote.search("ä & + # 日本 \"quoted\" }", 7).await.unwrap();
    remote.search("x", usize::MAX).await.unwrap();

    let seen = server.received();
    assert_eq!(seen[0].line, "POST /es/docs-*,more/_search HTTP/1.1");
    let names: Vec<_> = {
        let mut names: Vec<_> = seen[0].headers.iter().map(|(name, _)| name.as_str()).collect();
        names.sort();
        names
    };
    assert_eq!(names, ["accept", "authorization", "content-length", "content-type", "host", "user-agent"]);
    assert_eq!(seen[0].header("authorization"), Some("Basic YWRtaW46cyNjcmV0"));
    assert_eq!(seen[0].header("content-type"), Some("application/json"));

    let body: Value = serde_json::from_str(&seen[0].body).unwrap();
    assert_eq!(body["size"], json!(7));
    assert_eq!(body["timeout"], json!("9000ms"), "its timeout is before our deadline");
    let words = &body["query"]["multi_match"];
    assert_eq!(words["query"], json!("ä & + # 日本 \"quoted\" }"));
    assert_eq!(words["lenient"], json!(true));
    let (fields, read) = (words["fields"].as_array().unwrap(), body["_source"].as_array().unwrap());
    for name in ["title^2", "name^2", "headline^2", "text", "content", "body", "passage"] {
        assert!(fields.contains(&json!(name)), "{name}");
        assert!(read.contains(&json!(name.trim_end_matches("^2"))), "{name}");
    }
    for name in ["url", "link", "uri", "date", "published", "timestamp"] {
        assert!(read.contains(&json!(name)) && !fields.contains(&json!(name)), "{name}");
    }
    let body: Value = serde_json::from_str(&seen[1].body).unwrap();
    assert_eq!(body["size"], json!(100), "the requested number is limited");
}

#[tokio::test]
async fn check_reports_successes_and_failures() {
    let server = Server::always(Response::recorded("opensearch-hits")).await;
    let url = format!("opensearch+http://admin:secret@{}/handbook", server.address);
    let report = remote(&url, LONG_DEADLINE).check().await.unwrap();
    let beginning = format!("OpenSearch at http://{} responds in ", server.address);
    assert!(report.starts_with(&beginning) && report.ends_with("the documents of the index can be read"), "{report}");
    let body: Value = serde_json::from_str(&server.received()[0].body).unwrap();
    assert!(body["query"]["bool"]["must"]["match_all"].is_object(), "any document is accepted");
    assert!(body["query"]["bool"]["should"][0]["multi_match"].is_object(), "the usual query is also tried");

    let server = Server::always(Response::recorded("opensearch-no-hits")).await;
    let report = remote(&server.opensearch(), LONG_DEADLINE).check().await.unwrap();
    assert!(report.ends_with("the index is empty"), "{report}");

    let server = Server::always(Response::recorded("opensearch-unreadable")).await;
    let error = remote(&server.opensearch(), LONG_DEADLINE).check().await.unwrap_err();
    assert_eq!(error, SearchError::Unreadable);
    assert!(error.to_string().contains("title, name"), "{error}");
}

/// An index with these fields, which finds one document.
async fn index_with(fields: Value) -> Server {
    let mapping = json!({ "handbook-2": { "mappings": { "properties": fields } } }).to_string();
    Server::start(move |at| match at {
        0 => Response::json(mapping.clone()),
        _ => Response::recorded("opensearch-hits"),
    })
    .await
}

async fn search_with(remote: &RemoteSearch, vector: &[f32]) -> Result<Vec<Passage>, SearchError> {
    let vector = std::future::ready(Some(vector.to_owned()));
    remote.search_traced(&HeaderMap::new(), "opening hours", Some(vector), 7).await
}

fn body(server: &Server, at: usize) -> Value {
    serde_json::from_str(&server.received()[at].body).unwrap()
}

#[tokio::test]
async fn words_and_vectors_are_searched_in_one_query() {
    let server = index_with(json!({
        "title": { "type": "text" },
        "short": { "type": "knn_vector", "dimension": 2 },
        "meta": { "properties": { "vector": { "type": "knn_vector", "dimension": 3 } } },
    }))
    .await;
    let remote = remote(&server.opensearch(), LONG_DEADLINE);
    for _ in 0..2 {
        assert_eq!(search_with(&remote, &[0.5, 0.0, -1.0]).await.unwrap().len(), 5);
    }
    assert_eq!(server.received()[0].line, "GET /handbook/_mapping HTTP/1.1");
    assert_eq!(server.counts().requests, 3, "the mapping is read once");
    let both = &body(&server, 1)["query"]["bool"]["should"];
    assert_eq!(both[0]["multi_match"]["query"], "opening hours");
    assert_eq!(both[1]["knn"]["meta.vector"]["vector"], json!([0.5, 0.0, -1.0]));
    assert_eq!(both[1]["knn"]["meta.vector"]["k"], 7);
}

#[tokio::test]
async fn elasticsearch_compares_vectors_beside_the_query() {
    let server = index_with(json!({
        "kept": { "type": "dense_vector", "dims": 2, "index": false },
        "embedding": { "type": "dense_vector", "dims": 2 },
    }))
    .await;
    search_with(&remote(&server.opensearch(), LONG_DEADLINE), &[0.5, 1.0]).await.unwrap();
    let body = body(&server, 1);
    assert_eq!(body["query"]["multi_match"]["query"], "opening hours");
    assert_eq!((&body["knn"]["field"], &body["knn"]["query_vector"]), (&json!("embedding"), &json!([0.5, 1.0])));
    assert!(body["knn"]["num_candidates"].as_u64() >= body["knn"]["k"].as_u64());
}

#[tokio::test]
async fn without_vectors_of_the_same_size_documents_are_found_by_words() {
    let other_sizes = json!({
        "embedding": { "type": "knn_vector", "dimension": 3 },
        "chunks": { "type": "nested", "properties": { "vector": { "type": "knn_vector", "dimension": 2 } } },
        "odd": { "type": "knn_vector", "dimension": "2" },
    });
    for fields in [json!({ "text": { "type": "text" } }), other_sizes, json!([1]), json!(null)] {
        let server = index_with(fields).await;
        search_with(&remote(&server.opensearch(), LONG_DEADLINE), &[0.5, 1.0]).await.unwrap();
        let body = body(&server, 1);
        assert!(body["query"]["multi_match"].is_object() && body.get("knn").is_none(), "{body}");
    }
    // A pattern of two indices, of which one has no vectors.
    let field = json!({ "properties": { "v": { "type": "knn_vector", "dimension": 2 } } });
    let mapping = json!({ "a": { "mappings": field }, "b": { "mappings": {} } }).to_string();
    let server = Server::always(Response::json(mapping)).await;
    assert!(remote(&server.opensearch(), LONG_DEADLINE).vector_fields().await.is_empty());
}

#[tokio::test]
async fn a_refused_vector_or_an_unreadable_mapping_leaves_the_words() {
    let mapping = r#"{"a":{"mappings":{"properties":{"v":{"type":"knn_vector","dimension":2}}}}}"#;
    let server = Server::start(move |at| match at {
        0 => Response::json(mapping),
        1 => Response::status(400),
        _ => Response::recorded("opensearch-hits"),
    })
    .await;
    let searching = remote(&server.opensearch(), LONG_DEADLINE);
    for _ in 0..2 {
        assert_eq!(search_with(&searching, &[0.5, 1.0]).await.unwrap().len(), 5);
    }
    assert_eq!(server.counts().requests, 4, "the vector is not sent again");
    assert!(body(&server, 3)["query"]["multi_match"].is_object());

    // Vectors that the cluster cannot compare in time do not open the breaker.
    for failure in
        [Response::status(503), Response::status(429), Response::json(r#"{"timed_out":true,"hits":{"hits":[]}}"#)]
    {
        let server = Server::start(move |at| match at {
            0 => Response::json(mapping),
            1 => failure.clone(),
            _ => Response::recorded("opensearch-hits"),
        })
        .await;
        let searching = remote(&server.opensearch(), LONG_DEADLINE);
        for _ in 0..4 {
            assert_eq!(search_with(&searching, &[0.5, 1.0]).await.unwrap().len(), 5);
        }
        assert_eq!(server.counts().requests, 6, "the vector is not sent again");
    }
    for mapping in [Response::status(500), Response::json("<html>"), Response::json("[]")] {
        let server = Server::start(move |at| match at {
            0 => mapping.clone(),
            _ => Response::recorded("opensearch-hits"),
        })
        .await;
        let searching = remote(&server.opensearch(), LONG_DEADLINE);
        assert_eq!(search_with(&searching, &[0.5, 1.0]).await.unwrap().len(), 5);
    }
}

#[tokio::test]
async fn a_vector_that_does_not_come_leaves_half_of_the_deadline_for_the_words() {
    let server = index_with(json!({ "v": { "type": "knn_vector", "dimension": 2 } })).await;
    let remote = remote(&server.opensearch(), Duration::from_secs(2));
    let never = std::future::pending();
    let started = Instant::now();
    assert_eq!(remote.search_traced(&HeaderMap::new(), "opening hours", Some(never), 7).await.unwrap().len(), 5);
    assert!(started.elapsed() >= Duration::from_secs(1));
    let found = remote.search_traced(&HeaderMap::new(), "opening hours", Some(unneeded()), 7).await;
    assert_eq!(found.unwrap().len(), 5, "the vector is not awaited again");
}

fn unneeded() -> impl Future<Output = Option<Vec<f32>>> {
    std::future::poll_fn(|_| panic!("no vector is needed"))
}

#[tokio::test]
async fn an_open_breaker_needs_neither_mapping_nor_vector() {
    let server = Server::always(Response::status(500)).await;
    let remote = remote(&server.opensearch(), LONG_DEADLINE);
    for _ in 0..3 {
        remote.search("opening hours", 7).await.unwrap_err();
    }
    let found = remote.search_traced(&HeaderMap::new(), "opening hours", Some(unneeded()), 7).await;
    assert_eq!(found, Err(SearchError::CircuitOpen));
    assert_eq!(server.counts().requests, 3);
}
