//! The cases: one for every way in which a request can end, each with a service that ends it so.

use serde::Serialize;
use testbed::{Connection, Reply, Request, Runtime, Service, Setup, ask, unreachable_url};

use crate::ADRIATICUM;
use crate::relay::Relay;

/// Seconds that a runtime wants to be left alone for; longer than any client waits by itself at first.
pub(crate) const LATER: u64 = 3;

/// One request that a client is to make. The client's name and the case's begin the message, so that it is recognized.
#[derive(Debug, Serialize)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) base_url: String,
    pub(crate) api_key: String,
    pub(crate) content: String,
}

/// Services that all clients share.
pub(crate) struct Stage {
    echoing: Scene,
    weak_key: String,
    unmeasuring: Scene,
    failing: Scene,
    searching: Scene,
    full: Scene,
    unconfigured: Scene,
    /// Takes up all of the room.
    _held: Connection,
}

/// A service, the relay in front of it, and a key.
struct Scene {
    service: Service,
    relay: Relay,
    key: String,
}

impl Scene {
    fn of(setup: Setup) -> Self {
        let service = setup.start();
        Self { relay: Relay::before(&service), key: service.key(), service }
    }
}

impl Stage {
    pub(crate) fn set() -> Self {
        let echo = Runtime::that(Reply::Echoes);
        let echoing = Scene::of(ADRIATICUM.setup_with(&[&echo]));
        let weak_key = echoing.service.key_with("weak", &["--without-completions"]);
        let unmeasured = Runtime::that(Reply::completion("not measured", "stop", None));
        let broken = Runtime::that(Reply::Says(500, "{}".into()));
        let search = format!("searxng+{}", unreachable_url());
        let slow = Runtime::that(Reply::EchoesOnceReleased);
        let full = Scene::of(ADRIATICUM.setup_with(&[&slow]).set("api.max_requests", "1"));
        let mut held = full.service.connect();
        held.send(Request::chat(&full.key, ask("hello")).bytes());
        slow.wait_until_asked(1);
        Self {
            echoing,
            weak_key,
            unmeasuring: Scene::of(ADRIATICUM.setup_with(&[&unmeasured])),
            failing: Scene::of(ADRIATICUM.setup_with(&[&broken])),
            searching: Scene::of(ADRIATICUM.setup_with(&[&echo]).set("grounding", "always").set("search.url", &search)),
            full,
            unconfigured: Scene::of(ADRIATICUM.setup()),
            _held: held,
        }
    }

    /// What a client is to do here.
    pub(crate) fn cases(&self, client: &str) -> Vec<Case> {
        let case = |name, scene: &Scene| Case {
            name,
            base_url: scene.relay.base_url(),
            api_key: scene.key.clone(),
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
            case("room", &self.full),
            case("unconfigured", &self.unconfigured),
        ]
    }

    /// The relay by which a case's requests come.
    pub(crate) fn relay(&self, case: &str) -> &Relay {
        let scene = match case {
            "unmeasured" => &self.unmeasuring,
            "runtime" => &self.failing,
            "search" => &self.searching,
            "room" => &self.full,
            "unconfigured" => &self.unconfigured,
            _ => &self.echoing,
        };
        &scene.relay
    }
}

/// How the message of a client's case begins.
pub(crate) fn beginning(client: &str, case: &str) -> String {
    format!("{client}, {case}: ")
}

/// A service whose runtime is full at first, and says for how long.
pub(crate) struct Later {
    runtime: Runtime,
    scene: Scene,
}

impl Later {
    pub(crate) fn set() -> Self {
        let runtime = Runtime::that(Reply::SaysLater(429, "{}".into(), LATER));
        let scene = Scene::of(ADRIATICUM.setup_with(&[&runtime]));
        Self { runtime, scene }
    }

    pub(crate) fn case(&self, client: &str) -> Case {
        let content = beginning(client, "later");
        Case { name: "later", base_url: self.relay().base_url(), api_key: self.scene.key.clone(), content }
    }

    pub(crate) fn relay(&self) -> &Relay {
        &self.scene.relay
    }

    /// Waits for the first request, and has room for all others.
    pub(crate) fn relent(&self) {
        ADRIATICUM.eventually("the first request", || self.runtime.asked().pop());
        self.runtime.now(Reply::Echoes);
    }
}
