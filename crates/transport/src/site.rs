//! What a listener serves: the API, the console, the ops pages, or several of them behind one address.

use std::future::ready;
use std::net::IpAddr;
use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;

use crate::activity::Activity;
use crate::response_body::Response;
use crate::upload::Upload;

/// Handles requests on several worker threads.
pub trait Site: Send + Sync + 'static {
    /// The state of one worker thread: connections, counters.
    type Worker: Send + Sync + 'static;

    /// The name of its threads.
    const NAME: &str;

    /// State for one more worker thread.
    fn worker(self: &Arc<Self>) -> Self::Worker;

    /// The response to any request.
    fn handle(
        worker: &Self::Worker,
        connection: ClientConnection,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response> + Send;

    /// The response to a request on a connection for which there is no slot. A few such requests are read so that the
    /// site can serve senders that it knows; the connection is closed after the response.
    fn handle_beyond_limit(
        worker: &Self::Worker,
        _connection: ClientConnection,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response> + Send {
        let (head, incoming) = request.into_parts();
        drop(Upload::new(incoming, &head.headers)); // drained, so that the client sees the response
        ready(Self::reject(worker, Rejection::TooManyConnections))
    }

    /// The response to bytes that never become a request. The connection is closed after it.
    fn reject(worker: &Self::Worker, why: Rejection) -> Response;

    /// Called when the stop timeout is over: requests in flight must get their responses now.
    fn abort_in_flight(&self) {}
}

/// Where a request comes from.
#[derive(Clone)]
pub struct ClientConnection {
    /// The sender's address, also behind a trusted proxy.
    pub address: IpAddr,
    pub(crate) activity: Arc<Activity>,
}

impl ClientConnection {
    /// Of a request that no listener has accepted.
    pub fn without_listener(address: IpAddr) -> Self {
        Self { address, activity: Arc::new(Activity::new()) }
    }

    /// Marks the sender as authenticated: its connection is not evicted while this request is handled.
    pub fn identify(&self) {
        self.activity.identify();
    }
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
