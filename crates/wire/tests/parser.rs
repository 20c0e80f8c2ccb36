//! Property tests of the request parser: random bytes, valid requests in any form that JSON allows, and valid requests with
//! one error. A second, slower parser based on `serde_json::Value` checks what the parser accepts.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use chat::{ChatRequest, MaxTokens, Temperature};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};
use wire::parse_request;

const ROLES: [&str; 3] = ["system", "user", "assistant"];

/// The content of a valid request.
#[derive(Debug, Clone, PartialEq)]
struct Meant {
    messages: Vec<(String, String)>,
    temperature: Option<f64>,
    max_tokens: Option<u16>,
}

impl Meant {
    fn to_value(&self) -> Value {
        let messages = self.messages.iter().map(|(role, content)| json!({ "role": role, "content": content }));
        let mut body = json!({ "model": "adriaticum", "messages": messages.collect::<Vec<_>>() });
        self.temperature.iter().for_each(|number| body["temperature"] = json!(number));
        self.max_tokens.iter().for_each(|number| body["max_tokens"] = json!(number));
        body
    }

    fn is_what_was_read(&self, read: &ChatRequest) -> bool {
        let messages = read.messages().iter();
        messages
            .map(|message| (message.role().as_str(), message.content()))
            .eq(self.messages.iter().map(|(role, content)| (role.as_str(), content.as_str())))
            && read.temperature().get() == self.temperature.unwrap_or(Temperature::default().get())
            && read.max_tokens().get() == self.max_tokens.unwrap_or(MaxTokens::default().get())
    }
}

fn role() -> impl Strategy<Value = String> {
    prop::sample::select(&ROLES[..]).prop_map(str::to_owned)
}

/// Text of any characters, mostly short; 20 of the longest texts are within the total limit.
fn content() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => vec(any::<char>(), 0..40).prop_map(String::from_iter),
        4 => "[ -~]{0,60}",
        1 => ("\\PC", 1_000..1_600usize).prop_map(|(character, count)| character.repeat(count)),
    ]
}

fn meant() -> impl Strategy<Value = Meant> {
    // Six decimals are more than clients send; beyond fifteen, a parser may be off by one in the last place.
    let temperature = prop_oneof![Just(0.0), Just(2.0), (0..=2_000_000u32).prop_map(|number| f64::from(number) / 1e6)];
    (vec((role(), content()), 1..=20), prop::option::of(temperature), prop::option::of(1..=512u16))
        .prop_map(|(messages, temperature, max_tokens)| Meant { messages, temperature, max_tokens })
}

/// Writes JSON in a random form: the dice determine spaces, order and escapes.
struct Writer<'a> {
    dice: std::iter::Cycle<std::slice::Iter<'a, u8>>,
    text: String,
}

impl<'a> Writer<'a> {
    fn write(value: &Value, dice: &'a [u8]) -> String {
        let mut writer = Self { dice: dice.iter().cycle(), text: String::new() };
        writer.value(value);
        writer.space();
        writer.text
    }

    fn roll(&mut self) -> u8 {
        self.dice.next().copied().unwrap_or(0)
    }

    fn space(&mut self) {
        for _ in 0..self.roll() % 3 {
            let space = [' ', '\t', '\n', '\r'][usize::from(self.roll() % 4)];
            self.text.push(space);
        }
    }

    fn value(&mut self, value: &Value) {
        self.space();
        match value {
            Value::String(text) => self.string(text),
            Value::Array(elements) => {
                self.list('[', elements.iter(), Self::value);
                self.text.push(']');
            }
            Value::Object(members) => {
                let mut members: Vec<_> = members.iter().collect();
                let turn = usize::from(self.roll()) % members.len().max(1);
                members.rotate_left(turn);
                self.list('{', members.into_iter(), |writer, (name, value)| {
                    writer.space();
                    writer.string(name);
                    writer.space();
                    writer.text.push(':');
                    writer.value(value);
                });
                self.text.push('}');
            }
            other => self.text.push_str(&other.to_string()),
        }
        self.space();
    }

    fn list<T>(&mut self, open: char, elements: impl Iterator<Item = T>, write: impl Fn(&mut Self, T)) {
        self.text.push(open);
        for (at, element) in elements.enumerate() {
            if at > 0 {
                self.text.push(',');
            }
            write(self, element);
        }
    }

    fn string(&mut self, text: &str) {
        self.text.push('"');
        for character in text.chars() {
            match (character, self.roll() % 4) {
                ('"' | '\\' | '/', 0..2) => self.text.extend(['\\', character]),
                ('\n', 0..2) => self.text.push_str("\\n"),
                ('\u{8}', 0..2) => self.text.push_str("\\b"),
                ('"' | '\\' | '\0'..='\x1f', _) | (_, 0) => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        let digits = if self.roll() < 128 { format!("{unit:04x}") } else { format!("{unit:04X}") };
                        self.text.push_str(&format!("\\u{digits}"));
                    }
                }
                _ => self.text.push(character),
            }
        }
        self.text.push('"');
    }
}

/// A second implementation of the rules over a parsed document: the content of a body, if it is a valid request.
fn second_reader(body: &[u8]) -> Option<Meant> {
    let Value::Object(members) = serde_json::from_slice(body).ok()? else { return None };
    let known = ["model", "messages", "temperature", "max_tokens"];
    if members.keys().any(|name| !known.contains(&name.as_str())) || members.get("model")? != "adriaticum" {
        return None;
    }
    let messages = members.get("messages")?.as_array()?.iter().map(|message| {
        let message = message.as_object().filter(|message| message.len() == 2)?;
        let (role, content) = (message.get("role")?.as_str()?, message.get("content")?.as_str()?);
        let valid = ROLES.contains(&role) && content.chars().count() <= 10_000;
        valid.then(|| (role.to_owned(), content.to_owned()))
    });
    let messages = messages.collect::<Option<Vec<_>>>()?;
    let total: usize = messages.iter().map(|(_, content)| content.chars().count()).sum();
    let temperature = match members.get("temperature") {
        Some(number) => Some(number.as_f64().filter(|number| (0.0..=2.0).contains(number))?),
        None => None,
    };
    let max_tokens = match members.get("max_tokens") {
        Some(number) => Some(number.as_u64().filter(|number| (1..=512).contains(number))? as u16),
        None => None,
    };
    let valid = (1..=20).contains(&messages.len()) && total <= 32_000;
    valid.then_some(Meant { messages, temperature, max_tokens })
}

/// For any bytes: no panic, the second parser reads every accepted request in the same way, and a refusal is one short
/// sentence.
fn assert_sound(body: &[u8]) -> Result<(), TestCaseError> {
    match parse_request(body) {
        Ok(read) => {
            let meant = second_reader(body);
            prop_assert!(meant.is_some_and(|meant| meant.is_what_was_read(&read)), "accepted: {read:?}");
        }
        Err(refusal) => {
            let sentence = refusal.to_string();
            prop_assert!(sentence.ends_with('.') && !sentence.contains('\n'), "{sentence}");
            prop_assert!(sentence.chars().count() < 1_000, "{sentence}");
        }
    }
    Ok(())
}

/// A valid request's document with one error.
fn spoiled(meant: &Meant, kind: usize, at: usize) -> Value {
    let mut body = meant.to_value();
    let at = at % meant.messages.len();
    let message = |body: &mut Value, name: &str, value: Value| body["messages"][at][name] = value;
    let remove = |object: &mut Value, name: &str| drop(object.as_object_mut().unwrap().remove(name));
    let wrong_kinds = [json!(null), json!(true), json!([]), json!({}), json!([{}])];
    match kind {
        0 => remove(&mut body, "model"),
        1 => remove(&mut body, "messages"),
        2 => remove(&mut body["messages"][at], "role"),
        3 => remove(&mut body["messages"][at], "content"),
        4 => body["stream"] = json!(false),
        5 => body["Temperature"] = json!(1.0),
        6 => message(&mut body, "name", json!("x")),
        7 => body["model"] = json!("Adriaticum"),
        8 => message(&mut body, "role", json!("tool")),
        9 => message(&mut body, "content", json!("x".repeat(10_001))),
        10 => body["messages"] = json!([]),
        11 => body["messages"] = json!(vec![json!({ "role": "user", "content": "" }); 21]),
        12 => body["messages"] = json!(vec![json!({ "role": "user", "content": "é".repeat(8_001) }); 4]),
        13 => body["temperature"] = json!(-f64::MIN_POSITIVE),
        14 => body["temperature"] = json!(2.0f64.next_up()),
        15 => body["temperature"] = json!("1"),
        16 => body["max_tokens"] = json!(0),
        17 => body["max_tokens"] = json!(513),
        18 => body["max_tokens"] = json!(-1),
        19 => body["max_tokens"] = json!(12.0),
        20 => body["max_tokens"] = json!("12"),
        21 => body["max_tokens"] = json!(u64::MAX),
        22 => message(&mut body, "role", json!(1)),
        23 => message(&mut body, "content", json!(1)),
        24..29 => body["model"] = wrong_kinds[kind - 24].clone(),
        29..33 => body["temperature"] = wrong_kinds[kind - 29].clone(),
        33..37 => body["max_tokens"] = wrong_kinds[kind - 33].clone(),
        37..41 => message(&mut body, "content", wrong_kinds[kind - 37].clone()),
        41..45 => message(&mut body, "role", wrong_kinds[kind - 41].clone()),
        45 => body["messages"][at] = json!("x"),
        46 => body["messages"] = json!("x"),
        47 => body = json!([body]),
        _ => body = json!(body.to_string()),
    }
    body
}
const SPOILED_KINDS: usize = 49;

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..300)) {
        assert_sound(&bytes)?;
    }

    #[test]
    fn random_json_tokens_never_panic(tokens in vec(prop::sample::select(&[
        "{", "}", "[", "]", ":", ",", " ", "\"", "\\", "\\u", "d800", "null", "true", "0", "-", "1e", "9", ".", "\u{0}", "é",
        "\"model\"", "\"adriaticum\"", "\"messages\"", "\"role\"", "\"user\"", "\"content\"", "\"temperature\"", "\"max_tokens\"",
    ][..]), 0..40)) {
        assert_sound(tokens.concat().as_bytes())?;
    }

    #[test]
    fn a_valid_request_is_parsed_correctly(meant in meant(), dice in vec(any::<u8>(), 1..200)) {
        let text = Writer::write(&meant.to_value(), &dice);
        let read = parse_request(text.as_bytes()).map_err(|refusal| TestCaseError::fail(format!("{refusal} {text}")))?;
        prop_assert!(meant.is_what_was_read(&read), "{text}\n{read:?}");
    }

    #[test]
    fn one_error_is_refused(meant in meant(), kind in 0..SPOILED_KINDS, at: usize, dice in vec(any::<u8>(), 1..50)) {
        let text = Writer::write(&spoiled(&meant, kind, at), &dice);
        prop_assert!(parse_request(text.as_bytes()).is_err(), "{kind}: {text}");
        assert_sound(text.as_bytes())?;
    }

    #[test]
    fn a_duplicate_member_is_refused(meant in meant(), member in 0..4usize, at: usize) {
        let text = meant.to_value().to_string();
        // The same member with the same value, repeated at the front.
        let again = [r#"{"model":"adriaticum","#, r#"{"messages":[{"role":"user","content":""}],"#, r#"{"role":"user","#, r#"{"content":"","#][member];
        let opens: Vec<_> = text.match_indices(if member < 2 { "{\"m" } else { "{\"role\"" }).map(|(at, _)| at).collect();
        let at = opens[at % opens.len()];
        let twice = format!("{}{again}{}", &text[..at], &text[at + 1..]);
        prop_assert!(serde_json::from_str::<Value>(&twice).is_ok(), "{twice}");
        prop_assert!(parse_request(twice.as_bytes()).is_err(), "{twice}");
    }

    #[test]
    fn a_truncated_request_or_one_with_extra_text_is_refused(meant in meant(), cut: prop::sample::Index, more in "[^ \t\r\n]") {
        let text = meant.to_value().to_string();
        let short = &text[..text.floor_char_boundary(cut.index(text.len()))];
        for broken in [short.to_owned(), format!("{text}{more}"), format!("{more}{text}")] {
            prop_assert!(parse_request(broken.as_bytes()).is_err(), "{broken}");
        }
    }

    #[test]
    fn both_parsers_agree_after_a_changed_byte(meant in meant(), at: prop::sample::Index, to: u8, insert: bool) {
        let mut bytes = meant.to_value().to_string().into_bytes();
        let at = at.index(bytes.len());
        if insert {
            bytes.insert(at, to);
        } else {
            bytes[at] = to;
        }
        assert_sound(&bytes)?;
    }

    #[test]
    fn invalid_json_is_never_accepted(text in "[ \\t\\[\\]{}:,\"0-9eE+.a-z\\\\-]{0,60}") {
        if serde_json::from_str::<Value>(&text).is_err() {
            prop_assert!(parse_request(text.as_bytes()).is_err());
        }
    }
}

#[test]
fn deep_nesting_is_refused() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        for depth in [100, 128, 1_000, 100_000] {
            let deep = format!("{}1{}", open.repeat(depth), close.repeat(depth));
            assert!(parse_request(deep.as_bytes()).is_err());
            let inside = format!(r#"{{"model":"adriaticum","messages":{deep}}}"#);
            assert!(parse_request(inside.as_bytes()).is_err());
        }
    }
}
