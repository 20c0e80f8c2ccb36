//! What a listener serves: the API, the console, or both behind one address.

use std::net::IpAddr;
use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;

use crate::answer::Answer;
use crate::api::{Api, Desk};
use crate::walk::walk;

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

    /// From now on, a request that ends without an answer was cut off by us, not by its caller.
    fn cut_off(&self) {}
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

    fn cut_off(&self) {
        self.mark_cut_off();
    }
}
