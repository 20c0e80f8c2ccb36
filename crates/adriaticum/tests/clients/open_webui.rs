//! The function of `deploy/open-webui` against the service. What Open WebUI does with its answers and events is Open
//! WebUI's part.

use std::time::Duration;

use serde_json::{Value, json};
use testbed::{Behaviour, FakeRuntime, FakeSearch};

use crate::ADRIATICUM;
use crate::cases::{BusyService, RETRY_AFTER_SECONDS};
use crate::relay::Relay;
use crate::scripts::Workshop;

const FACTUAL: &str = "How many inhabitants does the city of Split in Croatia have?";

/// What Open WebUI passes to the function: more than the API knows.
fn case(base_url: &str, key: &str, messages: &Value) -> Value {
    json!({ "base_url": base_url, "api_key": key, "arguments": {}, "body": {
        "model": "adriaticum", "stream": true, "stream_options": { "include_usage": true }, "messages": messages,
        "temperature": 0.2, "max_tokens": 100, "top_p": 0.9, "seed": 1, "stop": ["END"], "tools": [], "files": [],
    }})
}

fn one(content: &str) -> Value {
    json!([{ "role": "user", "content": content }])
}

fn run(cases: &[Value]) -> Vec<Value> {
    let printed = Workshop::open().output("open_webui.py", &serde_json::to_vec(cases).unwrap());
    let ends: Vec<_> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(ends.len(), cases.len(), "{printed}");
    ends
}

/// What events of one kind say.
fn events<'a>(end: &'a Value, kind: &str) -> Vec<&'a Value> {
    let events = end["events"].as_array().unwrap().iter().filter(|event| event["type"] == kind);
    events.map(|event| &event["data"]).collect()
}

#[test]
fn it_sends_what_the_api_takes_and_explains_failures() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let (relay, key) = (Relay::in_front_of(&service), service.key());
    let url = relay.base_url();
    let image = json!([{ "type": "image_url", "image_url": { "url": "data:image/png;base64,AA==" } }]);
    let mut long = vec![json!({ "role": "system", "content": "Be brief." })];
    for n in 0..15 {
        long.push(json!({ "role": "user", "content": format!("question {n}") }));
        long.push(json!({ "role": "assistant", "content": format!("answer {n}") }));
    }
    long.push(json!({ "role": "user", "content": [{ "type": "text", "text": "the last" }] }));
    let mut title = case(&url, &key, &one("Write a title for this chat."));
    title["arguments"] = json!({ "__task__": "title_generation", "__task_body__": { "messages": one("a question") } });
    let mut summary = case(&url, &key, &one("Summarize."));
    summary["arguments"] = json!({ "__task__": "context_compaction" });
    summary["body"]["max_completion_tokens"] = json!(1000);
    summary["body"].as_object_mut().unwrap().remove("max_tokens");
    let ends = run(&[
        case(&url, &key, &json!(long)),
        case(&url, "nonsense", &one("wrong key")),
        case(&url, &key, &json!([{ "role": "user", "content": image }])),
        title,
        summary,
        case(&url.replace("/v1", "/v2"), &key, &one("wrong route")),
    ]);

    assert_eq!(ends[0]["answer"], "the last", "{ends:?}");
    let [sent] = &relay.exchanges("the last")[..] else { panic!("{ends:?}") };
    let mut members: Vec<_> = sent.request.as_object().unwrap().keys().map(String::as_str).collect();
    members.sort_unstable();
    assert_eq!(members, ["max_tokens", "messages", "model", "temperature"]);
    let messages = sent.request["messages"].as_array().unwrap();
    assert_eq!((messages.len(), &messages[0], &messages[1]["content"]), (20, &long[0], &json!("question 6")));
    assert!(events(&ends[0], "status")[0]["description"].as_str().unwrap().contains("12 oldest"), "{}", ends[0]);

    for (end, message, code) in [(1, "wrong key", "invalid_api_key"), (5, "wrong route", "not_found")] {
        let id = relay.exchanges(message)[0].response.header("x-request-id").unwrap().to_owned();
        let said = ends[end]["error"].as_str().unwrap();
        assert!(said.contains(code) && said.contains(&id), "{said}");
    }
    assert!(ends[2]["error"].as_str().unwrap().contains("image"), "{}", ends[2]);
    assert!(ends[3]["answer"].as_str().unwrap().contains(r#""title": "a question""#), "{}", ends[3]);
    assert_eq!(ends[4]["answer"], "Summarize.", "{}", ends[4]);
    assert_eq!(relay.exchanges("Summarize.")[0].request["max_tokens"], 512);
    assert_eq!(runtime.requests().len(), 2, "only the chat and the summary reach the model");
}

#[test]
fn it_shows_sources() {
    let results = [("Split – city", "https://a.example/split"), ("Dalmatia; a, b", "https://b.example/dalmatia")];
    let texts = ["The city has 160,577 inhabitants.", "A region with a long coast and many islands."];
    let result = |((title, url), text)| json!({ "title": title, "url": url, "content": text });
    let found: Vec<_> = results.into_iter().zip(texts).map(result).collect();
    let (runtime, search) = (FakeRuntime::start(Behaviour::Echo), FakeSearch::finding(&found));
    let service = ADRIATICUM.service_with(&[&runtime]).set("search.url", &search.url()).start();
    let url = format!("http://{}/v1", service.address());
    let in_a_chat = case(&url, &service.key(), &one(FACTUAL));
    let mut for_a_program = in_a_chat.clone();
    for_a_program["arguments"]["__message_id__"] = Value::Null;
    let ends = run(&[in_a_chat, for_a_program]);

    let shown: Vec<_> = events(&ends[0], "source").iter().map(|data| data["source"].clone()).collect();
    assert_eq!(shown, results.map(|(name, url)| json!({ "name": name, "url": url })), "{}", ends[0]);
    assert_eq!(ends[0]["answer"], FACTUAL);
    let answer = ends[1]["answer"].as_str().unwrap();
    let list = "[1] Split – city <https://a.example/split>  \n[2] Dalmatia; a, b <https://b.example/dalmatia>";
    assert_eq!((answer, &ends[1]["events"]), (format!("{FACTUAL}\n\n{list}").as_str(), &json!([])));
}

#[test]
fn it_waits_once_while_the_service_is_full() {
    let busy = BusyService::start();
    let later = busy.case("Open WebUI");
    let cases = [case(&later.base_url, &later.api_key, &one(&later.content))];
    let ends = std::thread::scope(|scope| {
        scope.spawn(|| busy.become_free());
        run(&cases)
    });
    let seen = busy.relay().exchanges(&later.content);
    let [first, second] = &seen[..] else { panic!("{ends:?} {seen:?}") };
    assert!(second.at - first.at >= Duration::from_secs(RETRY_AFTER_SECONDS), "{seen:?}");
    assert_eq!(ends[0]["answer"].as_str().unwrap().trim_end(), later.content.trim_end());
    assert_eq!(events(&ends[0], "status").len(), 1, "{}", ends[0]);
}
