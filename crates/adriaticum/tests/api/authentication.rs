//! Authentication, as in docs/errors.md: one header for the key, and the same error for every invalid key.

use testbed::{Behaviour, FakeRuntime, Request, Response, Service, chat_body, wait_for};

use crate::ADRIATICUM;

fn service() -> (FakeRuntime, Service) {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    (runtime, service)
}

#[test]
fn a_key_has_the_published_format() {
    let key = ADRIATICUM.install().key();
    let (id, secret) = key.strip_prefix("adria_").and_then(|rest| rest.split_once('_')).unwrap();
    assert_eq!((id.len(), secret.len()), (12, 43 + 6), "{key}");
    assert!(key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{key}");
    assert_eq!(with_checksum(&key[..key.len() - 6]), key);
}

#[test]
fn the_scheme_is_case_insensitive_and_takes_any_number_of_spaces() {
    let (_runtime, service) = service();
    let key = service.key();
    for value in
        [format!("Bearer {key}"), format!("bearer {key}"), format!("BEARER {key}"), format!("BeArEr    {key}   ")]
    {
        service.send(&Request::chat(&key, chat_body("hello")).header("Authorization", &value)).completion();
    }
    service
        .send(
            &Request::chat(&key, chat_body("hello"))
                .without("Authorization")
                .add_header("aUTHORIZATION", &format!("Bearer {key}")),
        )
        .completion();
}

#[test]
fn every_key_that_is_not_active_gets_the_same_401() {
    let (runtime, service) = service();
    let key = service.key();
    let good = Request::chat(&key, chat_body("hello"));
    let with = |value: &str| good.clone().header("Authorization", value);
    let bearer = |key: &str| with(&format!("Bearer {key}"));

    let revoked = service.key();
    service.run_ok(&["keys", "revoke", id_of(&revoked)]);
    let unknown = ADRIATICUM.install().key();
    let expired = service.key_with("short", &["--expires", "1ms"]);
    let forged = with_checksum(&format!("adria_{}_{}", id_of(&key), "0".repeat(43)));
    let other_id = with_checksum(&format!("adria_{}_{}", id_of(&unknown), &key[19..62]));

    let changed = |at: usize| {
        let other = if &key[at..=at] == "x" { "y" } else { "x" };
        format!("{}{other}{}", &key[..at], &key[at + 1..])
    };
    let cases = [
        ("missing", good.clone().without("Authorization")),
        ("empty", with("")),
        ("no key", with("Bearer")),
        ("an empty key", with("Bearer ")),
        ("the key alone", with(&key)),
        ("another scheme", with(&format!("Basic {key}"))),
        ("another scheme like it", with(&format!("Bearers {key}"))),
        ("a colon", with(&format!("Bearer: {key}"))),
        ("a tab", with(&format!("Bearer\t{key}"))),
        ("glued together", with(&format!("Bearer{key}"))),
        ("quoted", with(&format!("Bearer \"{key}\""))),
        ("two keys", with(&format!("Bearer {key} {key}"))),
        ("a list", with(&format!("Bearer {key}, Bearer {key}"))),
        ("a parameter behind it", with(&format!("Bearer {key}; a=b"))),
        ("not ASCII", with(&format!("Bearer {key}é"))),
        ("not a key at all", bearer("sk-1234567890abcdef")),
        ("very long", bearer(&"a".repeat(8_000))),
        ("cut short", bearer(&key[..key.len() - 1])),
        ("one longer", bearer(&format!("{key}0"))),
        ("another prefix", bearer(&key.replace("adria_", "Adria_"))),
        ("without prefix", bearer(&key["adria_".len()..])),
        ("lower case", bearer(&key.to_ascii_lowercase())),
        ("a changed id", bearer(&changed(8))),
        ("a changed secret", bearer(&changed(40))),
        ("a changed checksum", bearer(&changed(key.len() - 1))),
        ("two headers", good.clone().add_header("Authorization", &format!("Bearer {key}"))),
        ("two headers, one wrong", good.clone().add_header("Authorization", "Bearer x")),
        ("in the query", good.clone().without("Authorization").target(&format!("/v1/chat/completions?api_key={key}"))),
        (
            "in another header",
            good.clone().without("Authorization").add_header("X-Api-Key", &key).add_header("Api-Key", &key),
        ),
        (
            "for a proxy",
            good.clone().without("Authorization").add_header("Proxy-Authorization", &format!("Bearer {key}")),
        ),
        (
            "in a cookie",
            good.clone().without("Authorization").add_header("Cookie", &format!("Authorization=Bearer {key}")),
        ),
        ("revoked", bearer(&revoked)),
        ("unknown", bearer(&unknown)),
        ("expired", bearer(&expired)),
        ("forged for a known id", bearer(&forged)),
        ("a known secret for another id", bearer(&other_id)),
    ];
    let (mut ids, mut seen) = (Vec::new(), Vec::new());
    for (what, request) in &cases {
        let response = service.send(request);
        assert_eq!(response.outcome(), (401, Some("invalid_api_key".into())), "{what}");
        ids.push(response.error().request_id);
        seen.push((what, without_id(&response)));
    }
    seen.iter().for_each(|(what, response)| assert_eq!(*response, seen[0].1, "{what}"));
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), cases.len(), "every response has a unique id");
    assert_eq!(runtime.requests().len(), 0);
    assert_eq!(service.rows().len(), 0, "only requests with a valid key are recorded");
    service.send(&good).completion();
}

#[test]
fn a_key_revoked_by_another_process_is_refused_by_the_next_request() {
    let (runtime, service) = service();
    let replica = ADRIATICUM.service_with(&[&runtime]).replica_of(&service).start();
    let (key, other) = (service.key(), service.key());
    let request = Request::chat(&key, chat_body("hello")).bytes();
    let (mut here, mut there) = (service.connect(), replica.connect());
    here.send(&request).response().completion();
    there.send(&request).response().completion();

    service.run_ok(&["keys", "rename", id_of(&key), "still good"]);
    here.send(&request).response().completion();

    service.run_ok(&["keys", "revoke", id_of(&key)]);
    here.send(&request).response().expect_error("invalid_api_key");
    there.send(&request).response().expect_error("invalid_api_key");
    service.chat(&other, "hello").completion();
    assert_eq!(runtime.requests().len(), 4);
}

#[test]
fn a_key_created_by_another_process_is_accepted_by_the_next_request() {
    let (_runtime, service) = service();
    for _ in 0..3 {
        let key = service.key();
        service.chat(&key, "hello").completion();
    }
}

#[test]
fn a_key_expires_without_a_command() {
    let (_runtime, service) = service();
    let (brief, long) =
        (service.key_with("brief", &["--expires", "1s"]), service.key_with("long", &["--expires", "30d"]));
    wait_for("the key's expiry", || match service.chat(&brief, "hello").outcome() {
        (200, None) => None,
        (401, Some(code)) if code == "invalid_api_key" => Some(()),
        other => panic!("{other:?}"),
    });
    service.chat(&brief, "hello").expect_error("invalid_api_key");
    service.chat(&long, "hello").completion();
}

#[test]
fn a_key_without_permission_gets_403() {
    let (runtime, service) = service();
    let key = service.key_with("reader", &["--without-completions"]);
    service.chat(&key, "hello").expect_error("insufficient_permission");
    assert_eq!(runtime.requests().len(), 0);
    let rows = service.rows();
    assert_eq!(rows.len(), 1);
    assert_eq!((&rows[0]["status"], &rows[0]["code"]), (&403.into(), &"insufficient_permission".into()));

    service.run_ok(&["keys", "revoke", id_of(&key)]);
    service.chat(&key, "hello").expect_error("invalid_api_key");
}

fn id_of(key: &str) -> &str {
    &key["adria_".len()..][..12]
}

/// A response without its request id.
fn without_id(response: &Response) -> (u16, Vec<(String, String)>, String) {
    let id = response.error().request_id;
    let headers = response.headers.iter().filter(|(name, _)| !["x-request-id", "date"].contains(&name.as_str()));
    (response.status, headers.cloned().collect(), String::from_utf8_lossy(&response.body).replace(&id, ""))
}

/// Appends the checksum: CRC-32 in six digits of base62.
fn with_checksum(covered: &str) -> String {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut crc = u32::MAX;
    for byte in covered.bytes() {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    let mut rest = !crc as usize;
    let mut digits = [0; 6];
    for digit in digits.iter_mut().rev() {
        *digit = DIGITS[rest % 62];
        rest /= 62;
    }
    format!("{covered}{}", String::from_utf8_lossy(&digits))
}
