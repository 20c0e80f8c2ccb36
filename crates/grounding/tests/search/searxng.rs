//! SearXNG: requests and the interpretation of responses.

use grounding::search::SearchError;
use jiff::civil::date;
use reqwest::StatusCode;

use crate::server::{Response, Server};
use crate::{LONG_DEADLINE, passage, remote, titles};

#[tokio::test]
async fn results_become_passages() {
    let server = Server::always(Response::recorded("searxng-hits")).await;
    let found = remote(&server.searxng(), LONG_DEADLINE).search("lighthouse of Vrana height", 10).await.unwrap();
    let expected = [
        passage("https://answers.example/vrana", "https://answers.example/vrana", "48 metres", None),
        passage(
            "Lighthouse of Vrana",
            "https://encyclopedia.example/wiki/Vrana_lighthouse",
            "A lighthouse on an island, built in 1881.",
            None,
        ),
        passage(
            "Restoring the tower & its <em>lamp</em>",
            "https://news.example/2024/tower?id=7&x=ä",
            "The tower is 48 m tall.\nIt was lit again on Friday.",
            Some(date(2024, 5, 3)),
        ),
        passage("Only a title", "https://videos.example/v/1", "", None),
        passage(
            "https://untitled.example/",
            "https://untitled.example/",
            "A text without a title.",
            Some(date(2023, 12, 31)),
        ),
    ];
    assert_eq!(found, expected);
}

#[tokio::test]
async fn at_most_the_requested_number_is_returned() {
    let server = Server::always(Response::recorded("searxng-hits")).await;
    let remote = remote(&server.searxng(), LONG_DEADLINE);
    assert_eq!(remote.search("x", 3).await.unwrap().len(), 3);
    assert_eq!(remote.search("x", 0).await.unwrap(), []);
    assert_eq!(remote.search(" \n", 3).await.unwrap(), []);
    assert_eq!(remote.search(" !! ", 3).await.unwrap(), []);
    assert_eq!(server.counts().requests, 1, "no request is sent for an empty query");
}

#[tokio::test]
async fn other_versions_and_odd_results_are_understood() {
    let cases = [("searxng-older", vec!["Old"]), ("searxng-odd-result", vec!["listed"]), ("searxng-no-hits", vec![])];
    for (name, expected) in cases {
        let server = Server::always(Response::recorded(name)).await;
        let found = remote(&server.searxng(), LONG_DEADLINE).search("x", 5).await.unwrap();
        assert_eq!(titles(&found), expected, "{name}");
    }
}

#[tokio::test]
async fn unresponsive_engines_without_results_are_an_error() {
    let server = Server::always(Response::recorded("searxng-unresponsive")).await;
    let error = remote(&server.searxng(), LONG_DEADLINE).search("x", 5).await.unwrap_err();
    let names = "brave, duckduckgo, gooscriptgle, a name that is far too long to be that o, qwant, 2 more";
    assert_eq!(error, SearchError::SourcesUnresponsive(names.into()));
}

#[tokio::test]
async fn the_error_for_a_status_has_a_remedy() {
    let cases = [
        (401, SearchError::CredentialsRefused(StatusCode::UNAUTHORIZED), "USER:PASSWORD"),
        (403, SearchError::JsonNotEnabled, "add `json` to `search.formats` in SearXNG's settings.yml"),
        (404, SearchError::Refused(StatusCode::NOT_FOUND), "status 404"),
        (429, SearchError::RateLimited, "`pass_ip` in SearXNG's limiter.toml"),
        (500, SearchError::Refused(StatusCode::INTERNAL_SERVER_ERROR), "status 500"),
        (204, SearchError::Refused(StatusCode::NO_CONTENT), "status 204"),
    ];
    for (status, expected, remedy) in cases {
        let server = Server::always(Response::status(status)).await;
        let error = remote(&server.searxng(), LONG_DEADLINE).search("x", 5).await.unwrap_err();
        let message = error.to_string();
        assert_eq!(error, expected);
        assert!(message.contains(remedy) && !message.contains("text of the server"), "{message}");
    }
}

#[tokio::test]
async fn only_the_query_is_sent() {
    let cookie = vec![("set-cookie", "spy=1; Path=/"), ("content-type", "application/json")];
    let body = crate::server::recording("searxng-no-hits");
    let server = Server::always(Response::Complete(200, cookie, body)).await;
    let plain = remote(&server.searxng(), LONG_DEADLINE);
    plain.search("ä & + # 日本", 5).await.unwrap();
    plain.search("!!g a=b", 5).await.unwrap();
    let below = format!("searxng+http://us%C3%A9r:p%40ss@{}/find/it/", server.address);
    remote(&below, LONG_DEADLINE).search("x", 5).await.unwrap();

    let seen = server.received();
    let lines: Vec<_> = seen.iter().map(|request| request.line.as_str()).collect();
    assert_eq!(
        lines,
        [
            "GET /search?q=%C3%A4+%26+%2B+%23+%E6%97%A5%E6%9C%AC&format=json HTTP/1.1",
            "GET /search?q=g+a%3Db&format=json HTTP/1.1",
            "GET /find/it/search?q=x&format=json HTTP/1.1",
        ]
    );
    let agent = format!("adriaticum/{}", env!("CARGO_PKG_VERSION"));
    let mut expected =
        vec![("accept", "application/json"), ("host", server.address.as_str()), ("user-agent", agent.as_str())];
    for request in &seen[..2] {
        let mut headers: Vec<_> = request.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        headers.sort();
        assert_eq!(headers, expected, "no cookie, no referrer, no other header");
        assert_eq!(request.body, "");
    }
    expected.insert(1, ("authorization", "Basic dXPDqXI6cEBzcw=="));
    let mut headers: Vec<_> = seen[2].headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    headers.sort();
    assert_eq!(headers, expected);
}

#[tokio::test]
async fn long_results_are_cut_between_characters() {
    let long = |sign: &str, length: usize| sign.repeat(length);
    let body = format!(
        r#"{{"results": [{{"title": "{}", "url": "https://{}", "content": "{}"}}]}}"#,
        long("é", 301),
        long("u", 2_000),
        long("日", 20_001)
    );
    let server = Server::always(Response::json(body)).await;
    let found = remote(&server.searxng(), LONG_DEADLINE).search("x", 5).await.unwrap();
    let url = format!("https://{}", long("u", 1_992));
    assert_eq!(found, [passage(&long("é", 300), &url, &long("日", 20_000), None)]);
}

#[tokio::test]
async fn check_reports_successes_and_failures() {
    let server = Server::always(Response::recorded("searxng-hits")).await;
    let report = remote(&server.searxng(), LONG_DEADLINE).check().await.unwrap();
    let beginning = format!("SearXNG at http://{} responds in ", server.address);
    assert!(report.starts_with(&beginning) && report.ends_with(" ms; its JSON format is enabled"), "{report}");

    let server = Server::always(Response::recorded("searxng-no-hits")).await;
    let report = remote(&server.searxng(), LONG_DEADLINE).check().await.unwrap();
    assert!(report.contains("found nothing"), "{report}");

    let server = Server::always(Response::status(403)).await;
    assert_eq!(remote(&server.searxng(), LONG_DEADLINE).check().await, Err(SearchError::JsonNotEnabled));
}
