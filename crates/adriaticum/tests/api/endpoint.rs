//! The one endpoint, as in docs/openapi.json: its parameters, their defaults, and strict parsing of bodies. A refused
//! request never reaches a runtime, and its error names the fault.

use serde_json::{Value, json};
use testbed::{Behaviour, FakeRuntime, Request, Service, chat_body};

use crate::ADRIATICUM;

/// A body with one valid message and these members.
fn with(members: &str) -> String {
    format!(r#"{{"model":"adriaticum","messages":[{{"role":"user","content":"hi"}}]{members}}}"#)
}

/// A body with this list of messages.
fn messages(list: &str) -> String {
    format!(r#"{{"model":"adriaticum","messages":{list}}}"#)
}

#[test]
fn omitted_parameters_have_defaults() {
    accepted(&[
        (with(""), json!({ "temperature": 0.7, "max_tokens": 248 })),
        (with(r#","temperature":0"#), json!({ "temperature": 0.0, "max_tokens": 248 })),
        (with(r#","temperature":0.0"#), json!({ "temperature": 0.0 })),
        (with(r#","temperature":-0.0"#), json!({ "temperature": 0.0 })),
        (with(r#","temperature":2"#), json!({ "temperature": 2.0 })),
        (with(r#","temperature":2.0"#), json!({ "temperature": 2.0 })),
        (with(r#","temperature":1.25"#), json!({ "temperature": 1.25 })),
        (with(r#","temperature":12.5e-1"#), json!({ "temperature": 1.25 })),
        (with(r#","temperature":0.1"#), json!({ "temperature": 0.1 })),
        (with(r#","max_tokens":1"#), json!({ "temperature": 0.7, "max_tokens": 1 })),
        (with(r#","max_tokens":512"#), json!({ "max_tokens": 512 })),
        (with(r#","max_tokens":7,"temperature":1.5"#), json!({ "temperature": 1.5, "max_tokens": 7 })),
    ]);
}

#[test]
fn the_same_request_may_be_written_in_any_valid_json() {
    let hi = json!({ "messages": [{ "role": "user", "content": "hi" }] });
    accepted(&[
        (with("").replace(',', " ,\n\t").replace(':', "\r\n: "), hi.clone()),
        (format!(" \n\t\r{} \n\t\r", with("")), hi.clone()),
        (with("").replace("model", "\\u006dodel").replace("hi", "\\u0068\\u0069"), hi.clone()),
        (with("").replace("adriaticum", "adria\\u0074icum").replace("user", "\\u0075ser"), hi.clone()),
        (r#"{"max_tokens":3,"messages":[{"content":"hi","role":"user"}],"model":"adriaticum"}"#.into(), hi),
    ]);
}

/// A body, and what its error message must contain: the member, the limit and what was sent.
type Invalid<'a> = (String, &'a [&'a str]);

#[test]
fn bodies_that_are_not_json_are_refused() {
    let good = with("");
    let long = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    refused(&[
        (String::new(), &["JSON"]),
        (" \r\n".into(), &["JSON"]),
        ("hello".into(), &["JSON"]),
        (good[..good.len() - 1].into(), &["JSON"]),
        (format!("{good}x"), &["JSON"]),
        (format!("{good}{good}"), &["JSON"]),
        (format!("{good},"), &["JSON"]),
        (format!("{good}\0"), &["JSON"]),
        (format!("\u{feff}{good}"), &["JSON"]),
        (good.replace('"', "'"), &["JSON"]),
        (good.replace("}]", "},]"), &["JSON"]),
        (with(",").to_string(), &["JSON"]),
        (format!("/* hi */{good}"), &["JSON"]),
        (good.replace("hi", "h\ni"), &["JSON"]),
        (good.replace("hi", "h\u{0}i"), &["JSON"]),
        (good.replace("hi", "\\x41"), &["JSON"]),
        (good.replace("hi", "\\ud800"), &["JSON"]),
        (good.replace("hi", "\\ud800x"), &["JSON"]),
        (good.replace("hi", "\\udc00"), &["JSON"]),
        (good.replace("hi", "\\ud800\\ud800"), &["JSON"]),
        (with(r#","temperature":NaN"#), &["JSON"]),
        (with(r#","temperature":Infinity"#), &["JSON"]),
        (with(r#","temperature":1e999"#), &["JSON"]),
        (with(r#","temperature":01"#), &["JSON"]),
        (with(r#","temperature":+1"#), &["JSON"]),
        (with(r#","temperature":.5"#), &["JSON"]),
        (with(r#","temperature":1."#), &["JSON"]),
        (with(r#","temperature":0x1"#), &["JSON"]),
        (with(r#","max_tokens":1e999"#), &["JSON"]),
        (long, &["JSON"]),
    ]);
}

#[test]
fn bodies_that_are_not_utf_8_are_refused() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let key = service.key();
    // A lone byte, an overlong slash, a surrogate, a value above the last; UTF-16 of a valid body.
    for bytes in [&b"\xff"[..], b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"] {
        let mut body = br#"{"model":"adriaticum","messages":[{"role":"user","content":""#.to_vec();
        body.extend_from_slice(bytes);
        body.extend_from_slice(br#""}]}"#);
        service.send(&Request::chat(&key, body)).expect_error("invalid_request");
    }
    let utf_16: Vec<u8> = with("").encode_utf16().flat_map(u16::to_le_bytes).collect();
    service.send(&Request::chat(&key, utf_16)).expect_error("invalid_request");
    assert_eq!(runtime.requests().len(), 0);
}

#[test]
fn members_that_are_not_accepted_are_named() {
    let accepted: &[&str] = &["`model`", "`messages`", "`temperature`", "`max_tokens`"];
    let mut cases: Vec<(String, Vec<&str>)> = Vec::new();
    for name in ["stream", "n", "top_p", "stop", "tools", "user", "Model", "max_completion_tokens", "", " model"] {
        let member = with(&format!(r#","{name}":null"#));
        cases.push((member, accepted.to_vec()));
    }
    cases.push((with(r#","stream":false"#), vec!["`stream` is not accepted"]));
    cases.push((
        messages(r#"[{"role":"user","content":"a","name":"b"}]"#),
        vec!["`messages[0].name`", "`role`", "`content`"],
    ));
    cases.push((
        messages(r#"[{"role":"user","content":"a"},{"role":"user","content":"a","tool_calls":[]}]"#),
        vec!["`messages[1].tool_calls`"],
    ));
    cases.push((messages(r#"[{"Role":"user","content":"a"}]"#), vec!["`messages[0].Role`"]));
    let cases: Vec<Invalid> = cases.iter().map(|(body, says)| (body.clone(), says.as_slice())).collect();
    refused(&cases);
}

#[test]
fn parameters_of_openai_clients_get_a_specific_hint() {
    let with_role = |role: &str| messages(&format!(r#"[{{"role":"{role}","content":"a"}}]"#));
    refused(&[
        (with(r#","stream":true"#), &["`stream`", "answers come whole"]),
        (with(r#","stream":false"#), &["`stream`", "answers come whole"]),
        (with(r#","stream_options":{}"#), &["answers come whole"]),
        (with(r#","max_completion_tokens":9"#), &["use `max_tokens`"]),
        (with(r#","tools":[]"#), &["tools are not supported"]),
        (with(r#","tool_choice":"none""#), &["tools are not supported"]),
        (with(r#","n":1"#), &["there is one choice"]),
        (with(r#","response_format":{"type":"json_object"}"#), &["plain text"]),
        (with(r#","top_p":1"#), &["only sampling parameter"]),
        (with(r#","seed":1"#), &["only sampling parameter"]),
        (with(r#","stop":[]"#), &["ends when the model ends it"]),
        (with(r#","logprobs":false"#), &["probabilities"]),
        (with(r#","user":"x""#), &["no metadata is stored"]),
        (messages(r#"[{"role":"user","content":[{"type":"text","text":"a"}]}]"#), &["got an array", "one string"]),
        (messages(r#"[{"role":"user","content":"a","name":"b"}]"#), &["`messages[0].name`", "`role`"]),
        (messages(r#"[{"role":"assistant","content":"a","refusal":null}]"#), &["`messages[0].refusal`", "`content`"]),
        (with_role("developer"), &["use `system`"]),
        (with_role("tool"), &["tools are not supported"]),
    ]);
}

#[test]
fn repeated_members_are_refused() {
    refused(&[
        (with(r#","model":"adriaticum""#), &["`model`", "more than once"]),
        (with(r#","\u006dodel":"adriaticum""#), &["`model`", "more than once"]),
        (with(r#","messages":[{"role":"user","content":"a"}]"#), &["`messages`", "more than once"]),
        (with(r#","temperature":1,"temperature":1"#), &["`temperature`", "more than once"]),
        (with(r#","max_tokens":1,"max_tokens":2"#), &["`max_tokens`", "more than once"]),
        (messages(r#"[{"role":"user","role":"user","content":"a"}]"#), &["`messages[0].role`", "more than once"]),
        (messages(r#"[{"role":"user","content":"a","content":"a"}]"#), &["`messages[0].content`", "more than once"]),
    ]);
}

#[test]
fn missing_members_are_named() {
    refused(&[
        ("{}".into(), &["`model`", "required"]),
        (r#"{"messages":[{"role":"user","content":"a"}]}"#.into(), &["`model`", "required"]),
        (r#"{"model":"adriaticum"}"#.into(), &["`messages`", "required"]),
        (messages(r#"[{"content":"a"}]"#), &["`messages[0].role`", "required"]),
        (messages(r#"[{"role":"user","content":"a"},{"role":"user"}]"#), &["`messages[1].content`", "required"]),
        (messages("[{}]"), &["`messages[0].", "required"]),
    ]);
}

#[test]
fn values_of_the_wrong_type_are_refused_with_what_was_sent() {
    let kinds = [
        ("null", "null"),
        ("true", "a boolean"),
        ("\"1\"", "a string"),
        ("1", "an integer"),
        ("1.5", "a number"),
        ("[]", "an array"),
        ("{}", "an object"),
    ];
    let one = |member: &str, value: &str| match member {
        "" => value.to_owned(),
        "`model`" => format!(r#"{{"model":{value},"messages":[]}}"#),
        "`messages`" => messages(value),
        "`messages[0]`" => messages(&format!("[{value}]")),
        "`messages[0].role`" => messages(&format!(r#"[{{"role":{value},"content":"a"}}]"#)),
        "`messages[0].content`" => messages(&format!(r#"[{{"role":"user","content":{value}}}]"#)),
        "`temperature`" => with(&format!(r#","temperature":{value}"#)),
        _ => with(&format!(r#","max_tokens":{value}"#)),
    };
    let members: &[(&str, &str, &[&str])] = &[
        ("", "object", &["an object"]),
        ("`model`", "string", &["a string"]),
        ("`messages`", "array", &["an array"]),
        ("`messages[0]`", "object", &["an object"]),
        ("`messages[0].role`", "string", &["a string"]),
        ("`messages[0].content`", "string", &["a string"]),
        ("`temperature`", "number", &["a number", "an integer"]),
        ("`max_tokens`", "integer", &["an integer"]),
    ];
    let mut cases: Vec<(String, [&str; 3])> = Vec::new();
    for (member, expected, good) in members {
        for (value, kind) in kinds.iter().filter(|(_, kind)| !good.contains(kind)) {
            // A number that is not an integer is shown as sent.
            let sent = if (*member, *kind) == ("`max_tokens`", "a number") { "1.5" } else { kind };
            cases.push((one(member, value), [member, expected, sent]));
        }
    }
    let cases: Vec<Invalid> = cases.iter().map(|(body, says)| (body.clone(), says.as_slice())).collect();
    refused(&cases);
}

#[test]
fn values_out_of_bounds_are_refused_with_the_bound_and_what_was_sent() {
    let twenty_one = vec![r#"{"role":"user","content":"a"}"#; 21].join(",");
    let long_name = "x".repeat(5_000);
    refused(&[
        (with("").replace("adriaticum", "gpt-4"), &["`model`", "`adriaticum`", "`gpt-4`"]),
        (with("").replace("adriaticum", "Adriaticum"), &["`model`", "`adriaticum`", "`Adriaticum`"]),
        (with("").replace("adriaticum", "adriaticum "), &["`model`", "`adriaticum`"]),
        (with("").replace("adriaticum", ""), &["`model`", "`adriaticum`"]),
        (with("").replace("adriaticum", &long_name), &["`model`", "`adriaticum`", "`xxxx"]),
        (messages("[]"), &["`messages`", "1 to 20", "0"]),
        (messages(&format!("[{twenty_one}]")), &["`messages`", "1 to 20", "21"]),
        (
            messages(r#"[{"role":"tool","content":"a"}]"#),
            &["`messages[0].role`", "`system`", "`user`", "`assistant`", "`tool`"],
        ),
        (messages(r#"[{"role":"User","content":"a"}]"#), &["`messages[0].role`", "`User`"]),
        (messages(r#"[{"role":"","content":"a"}]"#), &["`messages[0].role`"]),
        (with(r#","temperature":-0.1"#), &["`temperature`", "0.0", "2.0", "-0.1"]),
        (with(r#","temperature":2.0000001"#), &["`temperature`", "0.0", "2.0", "2.0000001"]),
        (with(r#","temperature":-1"#), &["`temperature`", "-1"]),
        (with(r#","temperature":3"#), &["`temperature`", "3"]),
        (with(r#","temperature":1e30"#), &["`temperature`", "0.0", "2.0"]),
        (with(r#","max_tokens":0"#), &["`max_tokens`", "1", "512", "got 0"]),
        (with(r#","max_tokens":513"#), &["`max_tokens`", "1", "512", "513"]),
        (with(r#","max_tokens":-1"#), &["`max_tokens`", "1", "512", "-1"]),
        (with(r#","max_tokens":4294967297"#), &["`max_tokens`", "512", "4294967297"]),
        (with(r#","max_tokens":18446744073709551615"#), &["`max_tokens`", "512", "18446744073709551615"]),
        (with(r#","max_tokens":-9223372036854775808"#), &["`max_tokens`", "512", "-9223372036854775808"]),
        (with(r#","max_tokens":1.0"#), &["`max_tokens`", "integer", "1.0"]),
        (with(r#","max_tokens":1e2"#), &["`max_tokens`", "integer"]),
    ]);
}

#[test]
fn numbers_far_out_of_bounds_are_shown_as_they_were_sent() {
    refused(&[
        (with(r#","temperature":1e308"#), &["`temperature`", "0.0", "2.0", "1e308"]),
        (with(r#","temperature":-1e300"#), &["`temperature`", "-1e300"]),
        (with(r#","max_tokens":18446744073709551617"#), &["`max_tokens`", "1 to 512"]),
    ]);
}

#[test]
fn only_uncompressed_json_is_accepted() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let request = Request::chat(&service.key(), chat_body("hi"));
    for good in [
        request.clone().header("Content-Type", "application/json; charset=utf-8"),
        request.clone().header("Content-Type", "Application/JSON"),
        request.clone().header("Content-Type", "application/json;profile=x"),
        request.clone().header("Content-Type", "application/json ; a=b"),
        request.clone().header("Content-Encoding", "identity"),
        request.clone().header("Accept", "text/html"),
        request.clone().header("X-Anything", "at all"),
    ] {
        service.send(&good).completion();
    }
    let asked = runtime.requests().len();
    for (bad, says) in [
        (request.clone().without("Content-Type"), "`Content-Type"),
        (request.clone().header("Content-Type", ""), "`Content-Type`"),
        (request.clone().header("Content-Type", "text/plain"), "`Content-Type`"),
        (request.clone().header("Content-Type", "application/json-seq"), "`Content-Type`"),
        (request.clone().header("Content-Type", "application/x-www-form-urlencoded"), "`Content-Type`"),
        (request.clone().header("Content-Type", "application/json, text/plain"), "`Content-Type`"),
        (request.clone().add_header("Content-Type", "application/json"), "`Content-Type`"),
        (request.clone().header("Content-Encoding", "gzip"), "`Content-Encoding`"),
        (request.clone().header("Content-Encoding", "identity, gzip"), "`Content-Encoding`"),
        (
            request.clone().header("Content-Encoding", "identity").add_header("Content-Encoding", "br"),
            "`Content-Encoding`",
        ),
    ] {
        let message = service.send(&bad).expect_error("invalid_request");
        assert!(message.contains(says), "{message}");
    }
    assert_eq!(runtime.requests().len(), asked);
}

/// Each body is completed, and the runtime's request contains the members beside it.
fn accepted(cases: &[(String, Value)]) {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let key = service.key();
    for (body, expected) in cases {
        service.send(&Request::chat(&key, body.as_str())).completion();
        let asked = runtime.requests().pop().unwrap();
        let members: Vec<_> = asked.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(members, ["model", "messages", "temperature", "max_tokens", "stream"], "{asked}");
        // The runtime's name for its model.
        assert_eq!((&asked["model"], &asked["stream"]), (&json!("scripted"), &json!(false)));
        for (name, value) in expected.as_object().unwrap() {
            assert_eq!(asked[name], *value, "{body}");
        }
    }
}

/// Each body is a 400 whose message contains all words beside it and is not too long; the runtime gets no request.
fn refused(cases: &[Invalid]) {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service: Service = ADRIATICUM.service_with(&[&runtime]).start();
    let key = service.key();
    for (body, says) in cases {
        let shown = &body[..body.floor_char_boundary(200)];
        let message = service.send(&Request::chat(&key, body.as_str())).expect_error("invalid_request");
        for part in *says {
            assert!(message.contains(part), "{shown}\nis refused without {part}: {message}");
        }
        assert!(message.len() < 300, "{message}");
    }
    assert_eq!(runtime.requests().len(), 0);
}
