//! API and console on one listener: the request's host decides which of them handles it.

use std::net::IpAddr;
use std::sync::Arc;

use api::Api;
use console::Console;
use http::Request;
use hyper::body::Incoming;
use transport::{Rejection, Response, Site};

pub(crate) struct HostRouter {
    pub(crate) api: Arc<Api>,
    pub(crate) console: Arc<Console>,
}

pub(crate) struct HostRouterWorker {
    site: Arc<HostRouter>,
    api: <Api as Site>::Worker,
    console: <Console as Site>::Worker,
}

impl Site for HostRouter {
    type Worker = HostRouterWorker;

    const NAME: &str = "site";

    fn worker(self: &Arc<Self>) -> HostRouterWorker {
        HostRouterWorker { site: self.clone(), api: self.api.worker(), console: self.console.worker() }
    }

    async fn handle(worker: &HostRouterWorker, client: IpAddr, request: Request<Incoming>) -> Response {
        let (head, body) = request.into_parts();
        let is_console = worker.site.console.host().is_named_by(&head);
        let request = Request::from_parts(head, body);
        match is_console {
            true => Console::handle(&worker.console, client, request).await,
            // The API answers 404 to a host that is neither.
            false => Api::handle(&worker.api, client, request).await,
        }
    }

    fn reject(worker: &HostRouterWorker, why: Rejection) -> Response {
        Api::reject(&worker.api, why)
    }

    fn abort_in_flight(&self) {
        self.api.abort_in_flight();
    }
}
