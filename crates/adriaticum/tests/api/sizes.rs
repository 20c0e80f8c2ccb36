//! Limits of sizes, as in docs/openapi.json: each at the limit and one beyond. A character is a Unicode scalar value, a KB
//! is 1,024 bytes.

use serde_json::json;
use testbed::{Behaviour, FakeRuntime, Request, Service, chat_body};

use crate::ADRIATICUM;

const MAX_BODY_BYTES: usize = 262_144;

struct Fixture {
    runtime: FakeRuntime,
    service: Service,
    key: String,
}

impl Fixture {
    fn new() -> Self {
        let runtime = FakeRuntime::start(Behaviour::completion("x", "stop", None));
        let service = ADRIATICUM.service_with(&[&runtime]).start();
        let key = service.key();
        Self { runtime, service, key }
    }

    /// Sends messages with these contents; the runtime gets a request if and only if the response is a completion.
    fn outcome(&self, contents: &[String]) -> Result<(), String> {
        let messages: Vec<_> = contents.iter().map(|text| json!({ "role": "user", "content": text })).collect();
        let body = json!({ "model": "adriaticum", "messages": messages }).to_string();
        self.outcome_of(&Request::chat(&self.key, body))
    }

    fn outcome_of(&self, request: &Request) -> Result<(), String> {
        let before = self.runtime.requests().len();
        let response = self.service.send(request);
        let asked = self.runtime.requests().len() - before;
        if response.status == 200 {
            response.completion();
            assert_eq!(asked, 1);
            return Ok(());
        }
        assert_eq!(asked, 0);
        let refused = response.error();
        Err(format!("{} {}", refused.code, refused.message))
    }
}

/// Fails unless it is a 400 whose message contains every part of `says`.
fn assert_says(outcome: Result<(), String>, says: &[&str]) {
    let message = outcome.expect_err("beyond the bound");
    assert!(message.starts_with("invalid_request "), "{message}");
    says.iter().for_each(|part| assert!(message.contains(part), "without {part}: {message}"));
}

#[test]
fn a_body_may_have_262144_bytes_and_not_one_more() {
    let fixture = Fixture::new();
    let sized = |bytes: usize| {
        let body = chat_body("hello");
        format!("{body}{}", " ".repeat(bytes - body.len()))
    };
    let ways: [fn(Request) -> Request; 4] = [
        |request| request,
        |request| request.chunked(1_000),
        |request| request.chunked(MAX_BODY_BYTES),
        |request| request.chunked(usize::MAX),
    ];
    for way in ways {
        let request = |bytes| way(Request::chat(&fixture.key, sized(bytes)));
        assert_eq!(fixture.outcome_of(&request(MAX_BODY_BYTES - 1)), Ok(()));
        assert_eq!(fixture.outcome_of(&request(MAX_BODY_BYTES)), Ok(()));
        for bytes in [MAX_BODY_BYTES + 1, 2 * MAX_BODY_BYTES] {
            let refusal = fixture.outcome_of(&request(bytes)).unwrap_err();
            assert!(refusal.starts_with("payload_too_large ") && refusal.contains("262144"), "{refusal}");
        }
    }
}

#[test]
fn a_body_that_is_too_large_is_refused_before_it_is_sent() {
    let fixture = Fixture::new();
    // The head alone is refused.
    let head = Request::chat(&fixture.key, vec![b' '; MAX_BODY_BYTES + 1]).head();
    fixture.service.send_bytes(&head).expect_error("payload_too_large");
    let absurd = Request::chat(&fixture.key, "").bytes();
    let absurd =
        String::from_utf8(absurd).unwrap().replace("Content-Length: 0", "Content-Length: 18446744073709551000");
    let response = fixture.service.connect().send(absurd).try_response();
    assert!(response.is_none_or(|response| response.status == 413 || response.status == 400));
    assert_eq!(fixture.runtime.requests().len(), 0);
}

#[test]
fn one_to_twenty_messages() {
    let fixture = Fixture::new();
    let messages = |count| vec!["a".to_owned(); count];
    assert_says(fixture.outcome(&messages(0)), &["`messages`", "1 to 20", "got 0"]);
    assert_eq!(fixture.outcome(&messages(1)), Ok(()));
    assert_eq!(fixture.outcome(&messages(20)), Ok(()));
    assert_says(fixture.outcome(&messages(21)), &["`messages`", "1 to 20", "got 21"]);
    assert_says(fixture.outcome(&messages(5_000)), &["`messages`", "1 to 20", "got 5000"]);
}

#[test]
fn ten_thousand_characters_in_a_message_of_any_size_in_bytes() {
    let fixture = Fixture::new();
    // Characters of one to four bytes, and letters of two scalar values, which count as two.
    for character in ["a", "é", "語", "🦀", "e\u{301}"] {
        let scalars = character.chars().count();
        let text = |count: usize| character.repeat(count / scalars);
        assert_eq!(fixture.outcome(&[text(10_000)]), Ok(()), "{character}");
        let longer = format!("{}b", text(10_000));
        assert_says(fixture.outcome(&["a".into(), longer]), &["`messages[1].content`", "10000", "got 10001"]);
    }
}

#[test]
fn escapes_count_as_the_character_they_stand_for() {
    let fixture = Fixture::new();
    let body = |content: String| chat_body("@").replace('@', &content);
    for escape in ["\\n", "\\u00e9", "\\ud83e\\udd80"] {
        let good = Request::chat(&fixture.key, body(escape.repeat(10_000)));
        assert_eq!(fixture.outcome_of(&good), Ok(()), "{escape}");
        let long = Request::chat(&fixture.key, body(escape.repeat(10_001)));
        assert_says(fixture.outcome_of(&long), &["`messages[0].content`", "10000", "got 10001"]);
    }
}

#[test]
fn thirty_two_thousand_characters_in_all_messages() {
    let fixture = Fixture::new();
    for character in ["a", "🦀"] {
        let texts = |lengths: &[usize]| -> Vec<_> { lengths.iter().map(|length| character.repeat(*length)).collect() };
        assert_eq!(fixture.outcome(&texts(&[10_000, 10_000, 10_000, 2_000])), Ok(()));
        assert_eq!(fixture.outcome(&texts(&[1_600; 20])), Ok(()));
        let too_long = fixture.outcome(&texts(&[10_000, 10_000, 10_000, 2_001]));
        assert_says(too_long, &["`messages`", "32000", "got 32001"]);
        let all_longest = fixture.outcome(&texts(&[if character == "a" { 10_000 } else { 3_000 }; 20]));
        assert_says(all_longest, &["`messages`", "32000", if character == "a" { "got 200000" } else { "got 60000" }]);
    }
}
