//! The cases: one for every outcome of a request, each with a service that causes it.

use serde::Serialize;
use testbed::{Behaviour, Connection, FakeRuntime, Request, Service, ServiceBuilder, chat_body, unreachable_url};

use crate::ADRIATICUM;
use crate::relay::Relay;

/// `Retry-After` of the busy runtime; longer than the first backoff of any client.
pub(crate) const RETRY_AFTER_SECONDS: u64 = 3;

/// One request for a client to send. The message starts with the names of client and case, which identify it to the relay.
#[derive(Debug, Serialize)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) base_url: String,
    pub(crate) api_key: String,
    pub(crate) content: String,
}

/// Services that all clients share.
pub(crate) struct Services {
    echoing: RelayedService,
    weak_key: String,
    unmeasuring: RelayedService,
    failing: RelayedService,
    searching: RelayedService,
    full: RelayedService,
    unconfigured: RelayedService,
    /// Holds the only slot.
    _held: Connection,
}

/// A service, the relay in front of it, and a key.
struct RelayedService {
    service: Service,
    relay: Relay,
    key: String,
}

impl RelayedService {
    fn start(builder: ServiceBuilder) -> Self {
        let service = builder.start();
        Self { relay: Relay::in_front_of(&service), key: service.key(), service }
    }
}

impl Services {
    pub(crate) fn start() -> Self {
        let echo = FakeRuntime::start(Behaviour::Echo);
        let echoing = RelayedService::start(ADRIATICUM.service_with(&[&echo]));
        let weak_key = echoing.service.key_with("weak", &["--without-completions"]);
        let unmeasured = FakeRuntime::start(Behaviour::completion("not measured", "stop", None));
        let broken = FakeRuntime::start(Behaviour::Respond(500, "{}".into()));
        let search = format!("searxng+{}", unreachable_url());
        let slow = FakeRuntime::start(Behaviour::EchoWhenReleased);
        let full = RelayedService::start(ADRIATICUM.service_with(&[&slow]).set("api.max_requests", "1"));
        let mut held = full.service.connect();
        held.send(Request::chat(&full.key, chat_body("hello")).bytes());
        slow.wait_for_requests(1);
        Self {
            echoing,
            weak_key,
            unmeasuring: RelayedService::start(ADRIATICUM.service_with(&[&unmeasured])),
            failing: RelayedService::start(ADRIATICUM.service_with(&[&broken])),
            searching: RelayedService::start(
                ADRIATICUM.service_with(&[&echo]).set("grounding", "always").set("search.url", &search),
            ),
            full,
            unconfigured: RelayedService::start(ADRIATICUM.service()),
            _held: held,
        }
    }

    /// The requests for a client to send.
    pub(crate) fn cases(&self, client: &str) -> Vec<Case> {
        let case = |name, relayed: &RelayedService| Case {
            name,
            base_url: relayed.relay.base_url(),
            api_key: relayed.key.clone(),
            content: beginning(client, name),
        };
        let long = |case: Case, characters| Case { content: case.content + &"x".repeat(characters), ..case };
        vec![
            case("completion", &self.echoing),
            case("unmeasured", &self.unmeasuring),
            long(case("invalid", &self.echoing), 10_000),
            Case { api_key: "nonsense".into(), ..case("key", &self.echoing) },
            Case { api_key: self.weak_key.clone(), ..case("permission", &self.echoing) },
            Case { base_url: self.echoing.relay.base_url().replace("/v1", "/v2"), ..case("route", &self.echoing) },
            long(case("size", &self.echoing), 262_144),
            case("runtime", &self.failing),
            case("search", &self.searching),
            case("capacity", &self.full),
            case("unconfigured", &self.unconfigured),
        ]
    }

    /// The relay that a case's requests pass.
    pub(crate) fn relay(&self, case: &str) -> &Relay {
        let relayed = match case {
            "unmeasured" => &self.unmeasuring,
            "runtime" => &self.failing,
            "search" => &self.searching,
            "capacity" => &self.full,
            "unconfigured" => &self.unconfigured,
            _ => &self.echoing,
        };
        &relayed.relay
    }
}

/// The start of the message of a client's case.
pub(crate) fn beginning(client: &str, case: &str) -> String {
    format!("{client}, {case}: ")
}

/// A service whose runtime is saturated at first, with a `Retry-After`.
pub(crate) struct BusyService {
    runtime: FakeRuntime,
    relayed: RelayedService,
}

impl BusyService {
    pub(crate) fn start() -> Self {
        let runtime = FakeRuntime::start(Behaviour::RespondRetryAfter(429, "{}".into(), RETRY_AFTER_SECONDS));
        let relayed = RelayedService::start(ADRIATICUM.service_with(&[&runtime]));
        Self { runtime, relayed }
    }

    pub(crate) fn case(&self, client: &str) -> Case {
        let content = beginning(client, "later");
        Case { name: "later", base_url: self.relay().base_url(), api_key: self.relayed.key.clone(), content }
    }

    pub(crate) fn relay(&self) -> &Relay {
        &self.relayed.relay
    }

    /// Waits for the first request; the runtime serves all later ones.
    pub(crate) fn become_free(&self) {
        ADRIATICUM.wait_for("the first request", || self.runtime.requests().pop());
        self.runtime.set_behaviour(Behaviour::Echo);
    }
}
