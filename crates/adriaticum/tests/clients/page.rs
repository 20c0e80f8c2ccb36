//! `docs/clients.md`: its tables describe what the clients do, and its programs run.

use std::path::Path;

use testbed::{Behaviour, FakeRuntime};

use crate::ADRIATICUM;
use crate::cases::Case;
use crate::relay::Relay;
use crate::scripts::Workshop;

/// The head of the table of exceptions.
pub(crate) const EXCEPTIONS: &str = "| client | 400 | 401 | 403 | 404 | 413 | 502 | 503 | code of a 503 | request id |";
/// The head of the table of requests.
pub(crate) const REQUESTS: &str = "| client | 502 | 503, Search | 503, no capacity | 503, `x-should-retry: false` | waits for `Retry-After` | shows `null` tokens as |";

/// The page.
pub(crate) fn text() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/clients.md");
    std::fs::read_to_string(&page).unwrap()
}

/// The programs of the page in that language.
fn programs(language: &str) -> Vec<String> {
    let (page, fence) = (text(), format!("```{language}\n"));
    page.split(fence.as_str()).skip(1).map(|rest| rest.split_once("```").unwrap().0.to_owned()).collect()
}

#[test]
fn every_program_of_the_page_runs() {
    let workshop = Workshop::open();
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let (relay, key) = (Relay::in_front_of(&service), service.key());
    let (python, javascript) = (programs("python"), programs("js"));
    assert_eq!((python.len(), javascript.len()), (4, 2));
    let named = [("page.py", python), ("page.mjs", javascript)];
    for (script, program) in named.iter().flat_map(|(name, programs)| programs.iter().map(move |one| (name, one))) {
        let program = program.replace("http://localhost:8080/v1", &relay.base_url()).replace("adria_…", &key);
        let printed = workshop.try_out(script, &program);
        assert!(printed.contains("What is the capital of France?"), "{program}\nprinted {printed}");
    }
    let seen = relay.exchanges("What is the capital of France?");
    assert!(seen.len() == 6 && seen.iter().all(|seen| seen.request["max_tokens"] == 100), "{seen:?}");
}

#[test]
fn the_program_in_rust_is_the_one_that_is_tested() {
    let [program] = &programs("rust")[..] else { panic!("one program in Rust") };
    assert!(include_str!("async_openai.rs").contains(program.as_str()), "{program}");
}

#[test]
fn requests_that_the_page_warns_about_are_refused() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let (base_url, key) = (format!("http://{}/v1", service.address()), service.key());
    let warnings = [
        ("openai streams", 400, "invalid_request"),
        ("langchain sends stream", 400, "invalid_request"),
        ("langchain renames max_tokens", 400, "invalid_request"),
        ("llamaindex sends stream", 400, "invalid_request"),
        ("llamaindex asks elsewhere", 404, "not_found"),
    ];
    let case = |name| Case { name, base_url: base_url.clone(), api_key: key.clone(), content: "hello".into() };
    let cases = warnings.map(|(name, ..)| case(name));
    let ends = Workshop::open().run("refused_python.py", &cases);
    for ((name, status, code), end) in warnings.iter().zip(&ends) {
        assert_eq!(
            (end.case.as_str(), end.status, end.code.as_deref()),
            (*name, Some(*status), Some(*code)),
            "{end:?}"
        );
    }
    assert_eq!((ends.len(), runtime.requests().len()), (warnings.len(), 0));
}
