//! The API and the console behind one address: the host that a request names decides.

use std::net::IpAddr;
use std::sync::Arc;

use api::Api;
use console::Console;
use http::Request;
use hyper::body::Incoming;
use transport::{Rejection, Response, Site};

pub(crate) struct BothHosts {
    pub(crate) api: Arc<Api>,
    pub(crate) console: Arc<Console>,
}

/// One thread's place at both.
pub(crate) struct BothDesks {
    console: Arc<Console>,
    at_the_api: <Api as Site>::Worker,
    at_the_console: <Console as Site>::Worker,
}

impl Site for BothHosts {
    type Worker = BothDesks;

    const NAME: &str = "site";

    const MAX_BODY_BYTES: usize = Api::MAX_BODY_BYTES;

    fn worker(self: &Arc<Self>) -> BothDesks {
        BothDesks {
            console: self.console.clone(),
            at_the_api: self.api.worker(),
            at_the_console: self.console.worker(),
        }
    }

    async fn handle(desk: &BothDesks, client: IpAddr, request: Request<Incoming>) -> Response {
        let (head, body) = request.into_parts();
        let for_the_console = desk.console.host().is_named_by(&head);
        let request = Request::from_parts(head, body);
        match for_the_console {
            true => Console::handle(&desk.at_the_console, client, request).await,
            // Whatever is for neither gets the API's answer to that.
            false => Api::handle(&desk.at_the_api, client, request).await,
        }
    }

    fn reject(desk: &BothDesks, why: Rejection) -> Response {
        Api::reject(&desk.at_the_api, why)
    }

    fn abort_in_flight(&self) {
        self.api.abort_in_flight();
    }
}
