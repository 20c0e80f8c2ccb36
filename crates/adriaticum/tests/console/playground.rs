//! Conversations in the playground: running, editing, stopping, errors, sources.

use rustix::process::Signal;
use serde_json::{Value, json};
use testbed::{Behaviour, FakeRuntime};

use crate::ADRIATICUM;
use crate::browser::Page;
use crate::people::Console;

const LAST_FIELD: &str = ".turn:last-child textarea";

/// A console in front of a runtime, with its playground open.
struct Playground {
    runtime: FakeRuntime,
    console: Console,
    page: Page,
}

impl Playground {
    fn open(behaviour: Behaviour, settings: &[(&str, &str)]) -> Self {
        let runtime = FakeRuntime::start(behaviour);
        let service = settings
            .iter()
            .fold(ADRIATICUM.service_with(&[&runtime]), |service, (name, value)| service.set(name, value));
        let console = Console::with_service(service.start());
        let mut page = console.person("Ada", "developer");
        page.go("/playground");
        Self { runtime, console, page }
    }

    /// Types the last message and runs the conversation.
    fn run(&mut self, text: &str) {
        self.page.fill(LAST_FIELD, text);
        self.page.press("#run");
    }

    /// Runs the conversation, waits for the answer and returns its text.
    fn ask(&mut self, text: &str) -> String {
        let answers = "document.querySelectorAll('[data-part=answer]:not([hidden])').length";
        let before = self.page.eval(answers);
        self.run(text);
        self.page.wait_until(&format!("{answers} > {before}"));
        self.page
            .eval("[...document.querySelectorAll('.turn .text')].filter(text => text.textContent).at(-1).textContent")
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// The messages of the last request to the runtime, as pairs of role and content.
    fn sent(&self) -> Value {
        let request = self.runtime.requests().pop().unwrap();
        let messages = request["messages"].as_array().unwrap().iter();
        messages.map(|message| json!([message["role"], message["content"]])).collect()
    }

    fn problem(&mut self) -> String {
        let shown =
            "[...document.querySelectorAll('.problem:not([hidden])')].map(shown => shown.textContent).join('|')";
        self.page.eval(shown).as_str().unwrap().to_owned()
    }
}

#[test]
fn a_conversation_goes_on_and_is_edited_inserted_and_removed() {
    let mut ada = Playground::open(Behaviour::Echo, &[]);
    ada.page.fill(".turn:nth-child(1) textarea", "Be brief.");
    assert_eq!(ada.ask("One?"), "One?");
    assert_eq!(ada.sent(), json!([["system", "Be brief."], ["user", "One?"]]));
    let request = ada.runtime.requests().pop().unwrap();
    assert_eq!((&request["temperature"], &request["max_tokens"]), (&json!(0.7), &json!(248)), "the API's defaults");
    // The next message is there, and still empty.
    for says in ["Prompt tokens: 3 · completion tokens: 4", "finish reason: stop", "3 of 20 messages"] {
        ada.page.assert_says(says);
    }
    assert_eq!(ada.page.eval("document.activeElement === document.querySelector('.turn:last-child textarea')"), true);
    assert!(ada.page.eval("document.getElementById('announcement').textContent").as_str().unwrap().contains("One?"));

    ada.page.fill(LAST_FIELD, "Two?");
    ada.page.fill("[name=max_tokens]", "7");
    ada.page.eval("document.querySelector('.turn:last-child textarea').focus()");
    ada.page.control_key("Enter");
    ada.runtime.wait_for_requests(2);
    ada.page.wait_until("document.querySelectorAll('.turn').length == 6");
    let first = json!([["system", "Be brief."], ["user", "One?"], ["assistant", "One?"], ["user", "Two?"]]);
    assert_eq!(ada.sent(), first);
    assert_eq!(ada.runtime.requests()[1]["max_tokens"], 7);

    ada.page.press(".turn:nth-child(3) [data-action=edit]");
    ada.page.fill(".turn:nth-child(3) textarea", "Edited [1].");
    ada.page.press(".turn:nth-child(3) [data-action=edit]");
    ada.page.assert_says("edited");
    ada.page.press(".turn:nth-child(2) [data-action=insert]");
    ada.page.fill(".turn:nth-child(2) textarea", "Inserted.");
    ada.page.press(".turn:nth-child(1) [data-action=remove]");
    ada.page.press("#undo");
    ada.page.press(".turn:nth-child(1) [data-action=remove]");
    ada.ask("Three?");
    let expected = json!([
        ["assistant", "Inserted."],
        ["user", "One?"],
        ["assistant", "Edited [1]."],
        ["user", "Two?"],
        ["assistant", "Two?"],
        ["user", "Three?"],
    ]);
    assert_eq!(ada.sent(), expected);

    ada.page.press("#clear");
    assert_eq!(ada.page.eval("document.querySelectorAll('.turn').length"), 2);
    assert_eq!(ada.page.eval("localStorage.length + sessionStorage.length"), 0, "nothing is stored");
    assert_eq!(ada.page.errors(), Vec::<String>::new());
}

#[test]
fn a_request_is_recorded_for_its_person_without_its_text() {
    let mut ada = Playground::open(Behaviour::completion("<img src=x>\n  two", "length", None), &[]);
    assert_eq!(ada.ask("How are you?"), "<img src=x>\n  two", "as text");
    ada.page.assert_says("Prompt tokens: not measured · completion tokens: not measured");
    ada.page.assert_says("finish reason: length (cut off");
    let id = ada.console.service.rows()[0]["request_id"].as_str().unwrap().to_owned();
    assert_eq!(ada.page.eval("document.querySelector('[data-part=figures] a').pathname"), format!("/requests/{id}"));
    ada.page.press("#clear");
    ada.page.go(&format!("/requests/{id}"));
    ada.page.assert_says("Playground");
    ada.page.go("/usage?range=1h&group=key");
    ada.page.assert_says("Playground");
    ada.page.go("/keys");
    ada.page.assert_says("No keys yet");
    let mut other = ada.console.person("Bob", "developer");
    other.go(&format!("/requests/{id}"));
    other.assert_says("Not found");
    assert_eq!(ada.page.errors(), Vec::<String>::new());
}

#[test]
fn errors_are_shown_beside_their_fields() {
    let mut ada = Playground::open(Behaviour::Echo, &[]);
    ada.page.press("#run");
    assert_eq!(ada.problem(), "Write a message first.");
    ada.page.fill(LAST_FIELD, "Kept. ");
    // Typed or pasted text that is too long is not taken; ten thousand characters of two UTF-16 units each are.
    ada.page.insert(&"x".repeat(9_995));
    assert!(
        ada.problem().starts_with("Not inserted: a message can have at most 10,000 characters"),
        "{}",
        ada.problem()
    );
    assert_eq!(ada.page.eval("document.querySelector('.turn:last-child textarea').value"), "Kept. ");
    ada.page.fill(LAST_FIELD, &"🌊".repeat(10_000));
    assert_eq!(ada.problem(), "");
    ada.page.put(LAST_FIELD, &"x".repeat(10_001));
    ada.page.press("#run");
    assert_eq!(ada.problem(), "At most 10,000 characters; this has 10,001.");
    ada.page.put(LAST_FIELD, "How are you?");
    for (name, value, says) in [
        ("temperature", "2.5", "A number from 0 to 2, or empty."),
        ("temperature", "-1", "A number from 0 to 2, or empty."),
        ("max_tokens", "513", "A whole number from 1 to 512, or empty."),
        ("max_tokens", "1.5", "A whole number from 1 to 512, or empty."),
    ] {
        ada.page.put(&format!("[name={name}]"), value);
        ada.page.press("#run");
        assert_eq!(ada.problem(), says, "{name} {value}");
        assert_eq!(ada.page.eval("document.activeElement.name"), name);
        ada.page.put(&format!("[name={name}]"), "");
    }
    assert_eq!(ada.runtime.requests().len(), 0, "no request was sent");

    // An error that only the API finds: its limit is lower than that of this page.
    ada.page.eval("document.querySelector('[name=max_tokens]').max = 1000");
    ada.page.put("[name=max_tokens]", "600");
    ada.page.press("#run");
    ada.page.wait_until("!document.querySelector('[data-for=max_tokens]').hidden");
    assert_eq!(ada.problem(), "`max_tokens` must be from 1 to 512; got 600.");
    assert_eq!(ada.page.eval("document.activeElement.name"), "max_tokens");
    ada.page.put("[name=max_tokens]", "");
    ada.page.put("[name=temperature]", "0.25");
    ada.ask("How are you?");
    let request = ada.runtime.requests().pop().unwrap();
    assert_eq!((&request["temperature"], &request["max_tokens"]), (&json!(0.25), &json!(248)));
    ada.runtime.set_behaviour(Behaviour::Respond(500, "{}".into()));
    ada.run("And now?");
    ada.page.wait_until("document.querySelector('#problem a')");
    assert_eq!(
        ada.page.eval("document.querySelector('.turn:last-child textarea').value"),
        "And now?",
        "it can be run again"
    );
    assert_eq!(ada.page.errors(), Vec::<String>::new());
}

#[test]
fn a_request_has_at_most_twenty_messages() {
    let mut ada = Playground::open(Behaviour::Echo, &[]);
    (0..17).for_each(|_| ada.page.press("#add"));
    ada.page.eval("document.querySelectorAll('.turn textarea').forEach((field, at) => field.value = `Message ${at}`)");
    ada.ask("The last question");
    ada.page.assert_says("A request can have at most 20 messages.");
    assert_eq!(ada.page.eval("document.querySelectorAll('.turn').length"), 20);
    assert_eq!(ada.page.eval("document.getElementById('add').disabled"), true);
    assert_eq!(
        ada.page.eval("[...document.querySelectorAll('[data-action=insert]')].every(button => button.disabled)"),
        true
    );
    ada.page.eval("document.querySelectorAll('.turn textarea').forEach(field => field.value = 'x'.repeat(2_000))");
    ada.page.press("#run");
    ada.page.assert_says("All messages together can have at most 32,000 characters; these have 40,000.");
    ada.page.press(".turn:nth-child(20) [data-action=remove]");
    assert_eq!(ada.page.eval("document.getElementById('add').disabled"), false);
    assert_eq!(ada.page.errors(), Vec::<String>::new());
}

#[test]
fn a_stopped_request_frees_its_slot_and_keeps_the_conversation() {
    let mut ada = Playground::open(Behaviour::Hang, &[("api.max_requests", "1")]);
    for (count, stop) in [(1, "#stop"), (2, "Escape")] {
        ada.run("How are you?");
        ada.runtime.wait_for_requests(count);
        ada.page.wait_until("/^\\d+\\.\\d s$/.test(document.getElementById('elapsed').textContent)");
        match stop {
            "Escape" => ada.page.key(stop),
            button => ada.page.press(button),
        }
        ada.page.wait_until("document.getElementById('problem').textContent.startsWith('Stopped after')");
        ada.runtime.wait_for_disconnects(count);
    }
    assert_eq!(ada.page.eval("document.querySelector('.turn:last-child textarea').value"), "How are you?");
    assert_eq!(ada.page.eval("document.activeElement.name"), "content", "the focus returns");
    ada.runtime.set_behaviour(Behaviour::Echo);
    assert_eq!(ada.ask("Again"), "Again", "the only slot is free");
    let codes: Vec<_> = ada.console.service.rows().iter().map(|row| row["code"].clone()).collect();
    assert_eq!(codes, [Value::Null, "client_closed".into(), "client_closed".into()]);
}

#[test]
fn signing_out_elsewhere_keeps_the_conversation() {
    let mut ada = Playground::open(Behaviour::Echo, &[]);
    assert_eq!(ada.ask("One?"), "One?");
    ada.page.eval(
        "fetch('/sign-out', { method: 'POST', body: new URLSearchParams({ token: playground.dataset.token }) })
            .then(answer => answer.status)",
    );
    ada.run("Two?");
    ada.page.wait_until("!document.getElementById('problem').hidden");
    ada.page.assert_says("You are signed out. Sign in in another tab");
    let sign_in = format!(
        "fetch('/sign-in').then(answer => answer.text()).then(text => {{
            const page = new DOMParser().parseFromString(text, 'text/html');
            const form = {{ token: page.querySelector('[name=token]').value, email: 'ada@example.com', password: {} }};
            return fetch('/sign-in', {{ method: 'POST', body: new URLSearchParams(form) }}).then(answer => answer.status);
        }})",
        json!(crate::people::PASSWORD)
    );
    assert_eq!(ada.page.eval(&sign_in), 200);
    assert_eq!(ada.ask("Two?"), "Two?");
    assert_eq!(ada.sent(), json!([["user", "One?"], ["assistant", "One?"], ["user", "Two?"]]));
}

#[test]
fn a_playground_request_beyond_the_stop_timeout_is_aborted_by_the_service_not_by_its_client() {
    let mut ada = Playground::open(Behaviour::Hang, &[("api.stop_timeout", "300ms")]);
    ada.run("How are you?");
    ada.runtime.wait_for_requests(1);
    ada.console.service.signal(Signal::TERM);
    assert_eq!(ada.console.service.wait_for_exit().code(), Some(0));
    let rows = ada.console.service.rows();
    let ended: Vec<_> = rows.iter().map(|row| (&row["status"], &row["code"])).collect();
    assert_eq!(ended, [(&503.into(), &"service_unavailable".into())]);
}

#[test]
fn a_grounded_answer_shows_its_sources_and_its_citations_link_to_them() {
    let said = "From 9 to 13 [1][1], not [7]. Then a[1], a[0][1], `x = [1]`, [1, 2] and [1] * 3.";
    let mut ada = Playground::open(Behaviour::completion(said, "stop", None), &[]);
    let folder = ada.console.service.folder().join("handbook");
    std::fs::create_dir(&folder).unwrap();
    let text = "# Öffnungszeiten\n\nThe library of Zadar is open on Saturday from 9 to 13.\n";
    std::fs::write(folder.join("hours.md"), text).unwrap();
    ada.page.go("/");
    ada.page.assert_says("not configured: answers are not grounded");
    ada.console.service.run_ok(&["index", "add", "handbook", "--url", "https://docs.example.org/"]);
    ada.page.go("/");
    ada.page.assert_says("healthy: answers that need facts are grounded");

    ada.page.go("/playground");
    ada.ask("When is the library of Zadar open on Saturday?");
    let source = ada.page.eval("(({ textContent, href, rel, target }) => ({ textContent, href, rel, target }))(document.querySelector('.sources a'))");
    let expected = json!({ "textContent": "Öffnungszeiten", "href": "https://docs.example.org/hours.md",
        "rel": "noopener noreferrer", "target": "_blank" });
    assert_eq!(source, expected);
    let item = ada.page.eval("document.querySelector('.sources li').textContent");
    assert_eq!(item, "Öffnungszeiten score 1.00");
    let marks = "[...document.querySelectorAll('.text a')].map(mark => [mark.textContent, !!document.querySelector(mark.hash)])";
    assert_eq!(ada.page.eval(marks), json!([["[1]", true], ["[1]", true]]), "the others are not citations");
    if let Ok(pictures) = std::env::var("CONSOLE_PICTURES") {
        ada.page.screenshot(&std::path::Path::new(&pictures).join("sources.png"));
    }
    let id = ada.console.service.rows()[0]["request_id"].as_str().unwrap().to_owned();
    ada.page.press("#clear");
    ada.ask("Write a short poem about the sea.");
    let another = ada.console.service.rows()[0]["request_id"].as_str().unwrap().to_owned();
    for (id, says) in [(id, "1 source"), (another, "not needed")] {
        ada.page.go(&format!("/requests/{id}"));
        ada.page.assert_says(says);
    }
    assert_eq!(ada.page.errors(), Vec::<String>::new());
}
