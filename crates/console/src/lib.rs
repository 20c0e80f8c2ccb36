//! The developer console: server-rendered pages with a little script.
//!
//! `routes` lists the whole site. A handler that takes a `SignedIn` runs only with a valid session, and one that takes a
//! `Form` only for a form that was posted from a page of the console. Every read and change passes the viewer to the
//! store, which enforces access. Imports between folders run one way (`tests/imports.rs`).

mod credentials;
mod keys;
mod limits;
mod overview;
mod page;
mod people;
mod playground;
mod routes;
mod sign_in;
mod usage;

use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;
use transport::{ClientConnection, Rejection, Response, Site};

pub use crate::credentials::{CALLBACK_PATH, IdentityProvider, SIGN_IN_OUTCOMES, SignInCounters};
pub use crate::page::{Console, ConsoleSettings};

use crate::page::{ConsoleRequest, ConsoleResponse, SignedIn};

/// State of one worker thread.
pub struct Worker {
    console: Arc<Console>,
    /// Completes the playground's requests.
    api: api::Worker,
}

impl Site for Console {
    type Worker = Worker;

    const NAME: &str = "console";

    fn worker(self: &Arc<Self>) -> Worker {
        Worker { console: self.clone(), api: api::Worker::new(self.api.clone()) }
    }

    async fn handle(worker: &Worker, connection: ClientConnection, request: Request<Incoming>) -> Response {
        let Worker { console, api } = worker;
        if api.api().covers(request.uri().path()) {
            let response = ConsoleResponse::from_api(api::reject_foreign_host(api, request));
            return response.into_response(console.is_secure());
        }
        routes::handle(console, api, ConsoleRequest::new(connection, request)).await
    }

    /// Signed-in people are served regardless of the number of anonymous connections.
    async fn handle_beyond_limit(
        worker: &Worker,
        connection: ClientConnection,
        request: Request<Incoming>,
    ) -> Response {
        let request = ConsoleRequest::new(connection, request);
        match SignedIn::from_request(&worker.console, &request).await {
            Ok(_) => routes::handle(&worker.console, &worker.api, request).await,
            Err(_) => Self::reject(worker, Rejection::TooManyConnections),
        }
    }

    fn reject(worker: &Worker, why: Rejection) -> Response {
        api::reject(&worker.api, why)
    }

    /// The playground's requests run in the API.
    fn abort_in_flight(&self) {
        self.api.abort_in_flight();
    }
}
