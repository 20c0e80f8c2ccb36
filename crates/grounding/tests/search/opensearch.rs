//! OpenSearch and Elasticsearch: requests and the interpretation of responses.

use std::time::Duration;

use grounding::search::SearchError;
use jiff::civil::date;
use reqwest::StatusCode;
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
