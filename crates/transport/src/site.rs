//! What a listener serves: the API, the console, the ops pages, or several of them behind one address.

use std::net::IpAddr;
use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;

use crate::response_body::Response;

/// Handles requests on several worker threads.
pub trait Site: Send + Sync + 'static {
    /// What one worker thread holds for itself: connections, counters.
    type Worker: Send + Sync + 'static;

    /// The name of its threads.
    const NAME: &str;

    /// State for one more worker thread.
    fn worker(self: &Arc<Self>) -> Self::Worker;

    /// The response to a request, whatever it is. `client` is the sender's address, also behind a
    /// trusted proxy.
    fn handle(
        worker: &Self::Worker,
        client: IpAddr,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response> + Send;

    /// The response to what never becomes a request. The connection is closed after it.
    fn reject(worker: &Self::Worker, why: Rejection) -> Response;

    /// The time for finishing is over: requests in flight must be responded to now.
    fn abort_in_flight(&self) {}
}

/// Why something that arrived at a listener never becomes a request for its site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejection {
    /// The request line, a header or the declared length cannot be parsed.
    MalformedHead,
    /// The head has too many bytes or headers.
    HeadTooLarge,
    /// Plain HTTP to a TLS listener.
    PlaintextOnTls,
    /// Or too many requests at the same time on one connection.
    TooManyConnections,
}
