//! What a listener serves: the API, the console, or both behind one address.

use std::net::IpAddr;
use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;

use crate::answer::Answer;
use crate::api::{Api, Desk};
use crate::walk::{refuse, walk};

/// Something that answers requests, on several threads.
pub trait Site: Send + Sync + 'static {
    /// One thread's place at it.
    type Desk: Send + Sync + 'static;

    /// What a thread is called that serves it.
    const NAME: &str;

    /// A place for one more thread.
    fn desk(self: &Arc<Self>) -> Self::Desk;

    /// The answer to a request, whatever it is. The visitor is who sent it, be it through a proxy that is trusted.
    fn answer(desk: &Self::Desk, visitor: IpAddr, request: Request<Incoming>) -> impl Future<Output = Answer> + Send;

    /// The answer to what never becomes a request. The connection is closed after it.
    fn refuse(desk: &Self::Desk, why: Unserved) -> Answer;

    /// The time for finishing requests is over: those under way are to be answered now, whatever they have come to.
    fn cut_off(&self) {}
}

/// Why something that arrived at a listener never becomes a request for its site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unserved {
    /// The request line, a header or the declared length cannot be read.
    BrokenHead,
    /// The head has too many bytes or headers.
    HeadTooLarge,
    /// HTTP in the clear where TLS is spoken.
    InTheClear,
    /// There are too many connections.
    TooManyConnections,
}

impl Site for Api {
    type Desk = Desk;

    const NAME: &str = "api";

    fn desk(self: &Arc<Self>) -> Desk {
        Desk::new(self.clone())
    }

    async fn answer(desk: &Desk, _visitor: IpAddr, request: Request<Incoming>) -> Answer {
        walk(desk, request).await
    }

    fn refuse(desk: &Desk, why: Unserved) -> Answer {
        refuse(desk, why)
    }

    fn cut_off(&self) {
        self.mark_cut_off();
    }
}
