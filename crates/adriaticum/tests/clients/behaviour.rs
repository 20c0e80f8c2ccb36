//! The handling of every response by each client: the text of completions, the exception for each error, the number and
//! times of retries. Common behaviour is asserted here; differences must be described in `docs/clients.md`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use crate::ADRIATICUM;
use crate::cases::{BusyService, Case, RETRY_AFTER_SECONDS, Services, beginning};
use crate::page;
use crate::relay::Exchange;
use crate::scripts::Workshop;

/// The result of a case for a client.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct End {
    pub(crate) case: String,
    pub(crate) text: Option<String>,
    /// Prompt, completion, total.
    pub(crate) tokens: Option<[Option<u64>; 3]>,
    /// The name of the exception's type.
    pub(crate) exception: Option<String>,
    pub(crate) status: Option<u16>,
    pub(crate) code: Option<String>,
    pub(crate) request_id: Option<String>,
    /// The exception in full.
    #[allow(dead_code, reason = "shown in the message of a failed test")]
    pub(crate) said: Option<String>,
}

/// A client's name on the page, and its script with its arguments; the one in Rust has none.
const CLIENTS: [(&str, Option<&str>); 8] = [
    ("OpenAI, Python", Some("openai_python.py")),
    ("OpenAI, Node", Some("openai_node.mjs")),
    ("LangChain", Some("langchain_python.py")),
    ("LlamaIndex", Some("llama_index_python.py")),
    ("LlamaIndex without `max_retries`", Some("llama_index_python.py default")),
    ("Vercel AI SDK", Some("vercel_node.mjs")),
    ("LiteLLM", Some("litellm_python.py")),
    ("async-openai", None),
];

/// The cases that end in an error, with its status and code.
const ERRORS: [(&str, u16, &str); 9] = [
    ("invalid", 400, "invalid_request"),
    ("key", 401, "invalid_api_key"),
    ("permission", 403, "insufficient_permission"),
    ("route", 404, "not_found"),
    ("size", 413, "payload_too_large"),
    ("runtime", 502, "inference_error"),
    ("search", 503, "search_unavailable"),
    ("capacity", 503, "service_unavailable"),
    ("unconfigured", 503, "service_unavailable"),
];

#[test]
fn every_client_completes_fails_and_retries_as_documented() {
    let (stage, workshop) = (Services::start(), Workshop::open());
    let watched: Vec<_> = std::thread::scope(|scope| {
        let watch = |(client, script)| {
            let (stage, workshop) = (&stage, &workshop);
            scope.spawn(move || watch(client, script, stage, workshop))
        };
        let watching: Vec<_> = CLIENTS.map(watch).into();
        watching.into_iter().map(|client| client.join()).collect()
    });
    let rows: Vec<_> = watched.iter().flatten().collect();
    show(&rows);
    assert_eq!(rows.len(), CLIENTS.len(), "the failures of the others are above");
    let page = page::text();
    for row in rows {
        for line in [&row.exceptions, &row.requests] {
            assert!(page.contains(line.as_str()), "docs/clients.md lacks the row\n{line}");
        }
    }
}

/// Two lines of the page's tables.
#[derive(Debug)]
struct Row {
    exceptions: String,
    requests: String,
}

/// Runs a client on its cases.
fn watch(client: &str, script: Option<&str>, stage: &Services, workshop: &Workshop) -> Row {
    let later = BusyService::start();
    let mut cases = stage.cases(client);
    cases.push(later.case(client));
    let run = |cases: &[Case]| match script {
        Some(script) => workshop.run(script, cases),
        None => crate::async_openai::run(cases),
    };
    let ends = std::thread::scope(|scope| {
        scope.spawn(|| later.become_free());
        run(&cases)
    });
    let watched = Watched { client, stage, ends };
    watched.completes();
    let unmeasured = watched.unmeasured();
    watched.fails();
    let waited = watched.waits(&later.relay().exchanges(&beginning(client, "later")));
    watched.row(&unmeasured, waited)
}

/// A client that has run all cases.
struct Watched<'a> {
    client: &'a str,
    stage: &'a Services,
    ends: Vec<End>,
}

impl Watched<'_> {
    fn end(&self, case: &str) -> &End {
        let end = self.ends.iter().find(|end| end.case == case);
        end.unwrap_or_else(|| panic!("{} has no result for {case}: {:?}", self.client, self.ends))
    }

    fn exchanges(&self, case: &str) -> Vec<Exchange> {
        self.stage.relay(case).exchanges(&beginning(self.client, case))
    }

    fn completes(&self) {
        let end = self.end("completion");
        let said = beginning(self.client, "completion");
        assert_eq!(end.text.as_deref().map(str::trim_end), Some(said.trim_end()), "{}: {end:?}", self.client);
        assert_eq!(end.tokens, Some([Some(3), Some(4), Some(7)]), "{}: {end:?}", self.client);
        let seen = self.exchanges("completion");
        assert_eq!(seen.len(), 1, "{}: {seen:?}", self.client);
        assert_eq!(seen[0].request["max_tokens"], 100, "{}: {seen:?}", self.client);
    }

    /// How tokens that were not measured are shown.
    fn unmeasured(&self) -> String {
        let end = self.end("unmeasured");
        match (&end.exception, end.tokens) {
            (Some(exception), _) => format!("`{exception}`"),
            (None, Some([None, None, None])) => "nothing".to_owned(),
            (None, Some([Some(0), Some(0), Some(0)])) => "0".to_owned(),
            (None, Some([Some(0), Some(0), None])) => "0, total nothing".to_owned(),
            other => panic!("{}: {other:?}", self.client),
        }
    }

    fn fails(&self) {
        for (case, status, code) in ERRORS {
            let end = self.end(case);
            assert!(end.exception.is_some(), "{}: {end:?}", self.client);
            assert_eq!(end.status, Some(status), "{}: {end:?}", self.client);
            // Some clients do not expose the code or the request id; where they do, these must be the service's.
            assert!(end.code.as_deref().is_none_or(|found| found == code), "{}: {end:?}", self.client);
            let seen = self.exchanges(case);
            let last = seen.last().unwrap_or_else(|| panic!("{}: {end:?}", self.client));
            assert_eq!(last.response.outcome(), (status, Some(code.to_owned())), "{}: {case}", self.client);
            let id = last.response.header("x-request-id");
            assert!(end.request_id.is_none() || end.request_id.as_deref() == id, "{}: {end:?}", self.client);
            assert!(status >= 500 || seen.len() == 1, "{} retries after {status}: {seen:?}", self.client);
        }
    }

    /// Whether a client waits for the `Retry-After`, retries, and is served.
    fn waits(&self, seen: &[Exchange]) -> bool {
        let end = self.end("later");
        let [first, second] = seen else { panic!("{}: {end:?} {seen:?}", self.client) };
        assert_eq!(first.response.header("retry-after"), Some(RETRY_AFTER_SECONDS.to_string().as_str()), "{seen:?}");
        assert!(end.text.is_some() && second.response.status == 200, "{}: {end:?}", self.client);
        let waited = second.at - first.at;
        assert!(waited < ADRIATICUM.timeout(), "{}: {waited:?}", self.client);
        waited >= Duration::from_secs(RETRY_AFTER_SECONDS)
    }

    fn row(&self, unmeasured: &str, waited: bool) -> Row {
        let mut exceptions = format!("| {} |", self.client);
        for (case, ..) in ERRORS.iter().filter(|(case, ..)| !matches!(*case, "search" | "unconfigured")) {
            write!(exceptions, " `{}` |", self.end(case).exception.as_deref().unwrap()).unwrap();
        }
        let end = self.end("capacity");
        for exposed in [&end.code, &end.request_id] {
            write!(exceptions, " {} |", if exposed.is_some() { "yes" } else { "no" }).unwrap();
        }
        let mut requests = format!("| {} |", self.client);
        for case in ["runtime", "search", "capacity", "unconfigured"] {
            write!(requests, " {} |", self.exchanges(case).len()).unwrap();
        }
        write!(requests, " {} | {unmeasured} |", if waited { "yes" } else { "no" }).unwrap();
        Row { exceptions, requests }
    }
}

/// Writes the tables to cargo's temporary folder for tests, and directly to standard error, which the test runner does not
/// capture.
fn show(rows: &[&Row]) {
    let mut tables = format!("{}\n{}\n", page::EXCEPTIONS, rule(page::EXCEPTIONS));
    rows.iter().for_each(|row| writeln!(tables, "{}", row.exceptions).unwrap());
    write!(tables, "\n{}\n{}\n", page::REQUESTS, rule(page::REQUESTS)).unwrap();
    rows.iter().for_each(|row| writeln!(tables, "{}", row.requests).unwrap());
    std::fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients.md"), &tables).unwrap();
    std::io::stderr().write_all(format!("\n{tables}\n").as_bytes()).unwrap();
}

fn rule(header: &str) -> String {
    "|---".repeat(header.matches('|').count() - 1) + "|"
}
