//! A fake search server, whose responses a test sets, in the format of SearXNG or any other.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::{Behaviour, FakeRuntime};

pub struct FakeSearch(FakeRuntime);

impl FakeSearch {
    pub fn start(behaviour: Behaviour) -> Self {
        let server = FakeRuntime::start(Behaviour::Close);
        server.set_health_behaviour(behaviour);
        Self(server)
    }

    /// Finds these results in SearXNG's format: objects with title, URL and content.
    pub fn finding(results: &[Value]) -> Self {
        let search = Self::start(Behaviour::Hang);
        search.set_results(results);
        search
    }

    pub fn set_results(&self, results: &[Value]) {
        let body = json!({
            "query": "q", "number_of_results": 0, "results": results, "answers": [], "corrections": [], "infoboxes": [],
            "suggestions": [], "unresponsive_engines": [],
        });
        self.set_behaviour(Behaviour::Respond(200, body.to_string()));
    }

    pub fn set_behaviour(&self, behaviour: Behaviour) {
        self.0.set_health_behaviour(behaviour);
    }

    /// Its URL as a SearXNG server.
    pub fn url(&self) -> String {
        format!("searxng+http://{}", self.address())
    }

    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// The request line and headers of every search.
    pub fn heads(&self) -> Vec<String> {
        self.0.heads()
    }

    /// Waits until clients have closed that many connections instead of waiting for a response.
    pub fn wait_for_disconnects(&self, count: usize) {
        self.0.wait_for_disconnects(count);
    }
}
