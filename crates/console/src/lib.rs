//! The developer console: pages rendered here, whole, with a little script for what needs it.
//!
//! `routes` is the whole site on one page. A handler that takes a `Room` is for people who are signed in, one that takes
//! a `Form` gets only what was posted from our own pages; neither can be had in another way. Everything that is read or
//! changed goes to the store with the viewer, who never gets beyond their own.

mod account;
mod assets;
mod audit;
mod chart;
mod entry;
mod export;
mod fleet;
mod form;
mod keys;
mod overview;
mod page;
mod password;
mod playground;
mod range;
mod reply;
mod requests;
mod room;
mod routes;
mod show;
mod team;
mod throttle;
mod usage;
mod visit;

use std::net::IpAddr;
use std::sync::Arc;

use api::Api;
use http::Request;
use hyper::body::Incoming;
use store::Store;
use transport::{HostName, Rejection, Response, Site};

use crate::password::Passwords;
use crate::reply::Reply;
use crate::throttle::SignIns;

/// What one may set about the console.
#[derive(Debug, Clone)]
pub struct ConsoleSettings {
    /// The host that it is reached by.
    pub host: HostName,
    /// Its origin as browsers write it, such as `https://console.example.com`.
    pub origin: String,
    /// Where callers reach the API.
    pub api_base_url: String,
    /// The API described for machines, as JSON.
    pub api_description: String,
}

/// The console: shared by every thread that serves it.
pub struct Console {
    settings: ConsoleSettings,
    store: Arc<Store>,
    api: Arc<Api>,
    passwords: Passwords,
    sign_ins: SignIns,
}

/// One thread's place at the console.
pub struct Desk {
    console: Arc<Console>,
    api: api::Worker,
}

impl Console {
    /// Puts the console together, beside the API whose walk its playground takes.
    pub fn new(settings: ConsoleSettings, store: Arc<Store>, api: Arc<Api>) -> Arc<Self> {
        Arc::new(Self { settings, store, api, passwords: Passwords::default(), sign_ins: SignIns::default() })
    }

    /// The host that it is reached by.
    pub fn host(&self) -> &HostName {
        &self.settings.host
    }

    /// Whether it is reached over TLS, here or in front of us.
    fn is_secure(&self) -> bool {
        self.settings.origin.starts_with("https://")
    }
}

impl Site for Console {
    type Worker = Desk;

    const NAME: &str = "console";

    const MAX_BODY_BYTES: usize = wire::MAX_BODY_BYTES;

    fn worker(self: &Arc<Self>) -> Desk {
        Desk { console: self.clone(), api: api::Worker::new(self.api.clone()) }
    }

    async fn handle(desk: &Desk, client: IpAddr, request: Request<Incoming>) -> Response {
        if desk.api.api().covers(request.uri().path()) {
            return Reply::from_api(api::reject_foreign_host(&desk.api, request)).into_answer();
        }
        routes::answer(desk, client, request).await
    }

    fn reject(desk: &Desk, why: Rejection) -> Response {
        api::reject(&desk.api, why)
    }
}
