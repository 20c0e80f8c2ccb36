//! The API and the console behind one address: the host that a request names decides.

use std::net::IpAddr;
use std::sync::Arc;

use console::Console;
use http::Request;
use hyper::body::Incoming;
use server::{Answer, Api, Site, Unserved};

pub(crate) struct BothHosts {
    pub(crate) api: Arc<Api>,
    pub(crate) console: Arc<Console>,
}

/// One thread's place at both.
pub(crate) struct BothDesks {
    console: Arc<Console>,
    at_the_api: <Api as Site>::Desk,
    at_the_console: <Console as Site>::Desk,
}

impl Site for BothHosts {
    type Desk = BothDesks;

    const NAME: &str = "site";

    fn desk(self: &Arc<Self>) -> BothDesks {
        BothDesks { console: self.console.clone(), at_the_api: self.api.desk(), at_the_console: self.console.desk() }
    }

    async fn answer(desk: &BothDesks, visitor: IpAddr, request: Request<Incoming>) -> Answer {
        let (head, body) = request.into_parts();
        let for_the_console = desk.console.host().is_named_by(&head);
        let request = Request::from_parts(head, body);
        match for_the_console {
            true => Console::answer(&desk.at_the_console, visitor, request).await,
            // Whatever is for neither gets the API's answer to that.
            false => Api::answer(&desk.at_the_api, visitor, request).await,
        }
    }

    fn refuse(desk: &BothDesks, why: Unserved) -> Answer {
        Api::refuse(&desk.at_the_api, why)
    }

    fn cut_off(&self) {
        self.api.cut_off();
    }
}
