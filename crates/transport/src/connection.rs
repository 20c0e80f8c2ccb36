//! One connection: HTTP/1.1, or HTTP/2 if the client begins with its preface or ALPN has chosen it.
//!
//! A connection has one timer. It reads the `Activity`, which the socket and the requests update, and closes the
//! connection when a head takes too long to arrive or the connection was idle for too long.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, Either};
use http::{HeaderMap, HeaderValue, Request, Version, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::io::{InspectReader, InspectWriter};

use crate::activity::Activity;
use crate::connections::{ConnectionSlot, RequestSlot};
use crate::listener::DrainStage;
use crate::parse_errors::ParseErrors;
use crate::response_body::Response;
use crate::site::Rejection;

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Limits of a request's head. The number of headers is hyper's own limit for HTTP/1.1.
pub const MAX_HEAD_BYTES: usize = 32 << 10;
pub const MAX_HEADERS: usize = 100;
/// The read buffer of HTTP/1.1: the most unread bytes that a connection holds.
pub(crate) const BUFFER_BYTES: usize = 64 << 10;
/// Concurrent requests on one connection.
const HTTP2_STREAMS: u32 = 128;
/// Heads up to this size reach the site, which can explain the error; h2 responds to larger ones itself.
const HTTP2_HEADER_LIST_BYTES: u32 = 2 * MAX_HEAD_BYTES as u32;
/// Streams that were reset before we accepted them. A client may cancel all of its streams together; one that keeps
/// opening and resetting streams to cause load (rapid reset) is disconnected.
const HTTP2_PENDING_RESETS: usize = HTTP2_STREAMS as usize;
/// Streams that we may reset because of a client's protocol errors, over a connection's whole life.
const HTTP2_ERROR_RESETS: usize = 1024;
/// Bytes that a stream and a connection may send ahead of our reading; no budget of bodies counts this memory. Bodies are
/// read as they arrive, so a larger window would only save distant callers a few round trips.
const HTTP2_STREAM_WINDOW: u32 = BUFFER_BYTES as u32;
const HTTP2_CONNECTION_WINDOW: u32 = 4 * HTTP2_STREAM_WINDOW;
/// A client that vanished is detected by an unanswered ping; otherwise its requests would continue.
const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(20);

/// How long an evicted connection may take to send its pending bytes.
const EVICTION_TIMEOUT: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// For the head of a request, from its first byte on (or from the connection's start).
    pub head: Duration,
    /// Between two requests.
    pub idle: Duration,
}

/// Handles the requests of one connection. A trait object, so that hyper is compiled once instead of once for each site.
pub(crate) trait Handler: Send + Sync + 'static {
    fn handle(self: Arc<Self>, activity: &Arc<Activity>, request: Request<Incoming>) -> BoxFuture<'static, Response>;

    fn reject(&self, why: Rejection) -> Response;
}

/// A TCP socket, or TLS over one.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Socket for S {}

/// Serves a plaintext connection until it ends, times out or is evicted, or the server stops.
pub(crate) async fn serve(
    socket: TcpStream,
    slot: ConnectionSlot,
    timeouts: Timeouts,
    stage: watch::Receiver<DrainStage>,
    handler: Arc<dyn Handler>,
) {
    let begun = tokio::select! {
        begun = tokio::time::timeout(timeouts.head, begins_with_http2(&socket)) => begun,
        () = slot.activity.evicted() => return,
    };
    let Ok(Ok(is_http2)) = begun else { return };
    serve_stream(Box::new(socket), is_http2, slot, timeouts, stage, handler).await;
}

/// As `serve`, for a known HTTP version.
pub(crate) async fn serve_stream(
    socket: Box<dyn Socket>,
    is_http2: bool,
    slot: ConnectionSlot,
    timeouts: Timeouts,
    stage: watch::Receiver<DrainStage>,
    handler: Arc<dyn Handler>,
) {
    let activity = slot.activity.clone();
    activity.serving_begins();
    let service = service_fn({
        let (slot, stage, handler) = (Arc::new(slot), stage.clone(), handler.clone());
        move |request: Request<Incoming>| {
            let (stage, version) = (stage.clone(), request.version());
            let is_last = is_last_of_connection(request.headers());
            let (open, response) = match OpenRequest::begin(&slot, version) {
                Some(open) if version == Version::HTTP_2 && exceeds_head_limits(&request) => {
                    (Some(open), Either::Right(std::future::ready(handler.reject(Rejection::HeadTooLarge))))
                }
                Some(open) => (Some(open), Either::Left(handler.clone().handle(&slot.activity, request))),
                None => (None, Either::Right(std::future::ready(handler.reject(Rejection::TooManyConnections)))),
            };
            async move {
                let (request, in_flight) = open.unzip();
                let mut response = response.await;
                // HTTP/2 has GOAWAY for this, which is sent at the end of draining.
                if version <= Version::HTTP_11 && (is_last || *stage.borrow() >= DrainStage::Draining) {
                    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                }
                drop(in_flight);
                // The request is open until its response's body is dropped.
                Ok::<_, Infallible>(response.map(|body| {
                    body.map_err(move |error| {
                        let _held = &request;
                        error
                    })
                }))
            }
        }
    });
    if is_http2 {
        let timeouts = Timeouts { head: timeouts.idle, ..timeouts }; // a frame is not a request's head
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(HTTP2_STREAMS)
            .max_header_list_size(HTTP2_HEADER_LIST_BYTES)
            .max_pending_accept_reset_streams(HTTP2_PENDING_RESETS)
            .max_local_error_reset_streams(HTTP2_ERROR_RESETS)
            .initial_stream_window_size(HTTP2_STREAM_WINDOW)
            .initial_connection_window_size(HTTP2_CONNECTION_WINDOW)
            .keep_alive_interval(timeouts.idle)
            .keep_alive_timeout(HTTP2_PING_TIMEOUT)
            .serve_connection(monitor(socket, &activity), service);
        run(pin!(connection), http2::Connection::graceful_shutdown, &activity, timeouts, stage).await;
    } else {
        let socket = ParseErrors::new(socket, move |why| handler.reject(why));
        let connection = http1::Builder::new()
            .max_header_size(MAX_HEAD_BYTES)
            .max_buf_size(BUFFER_BYTES)
            .serve_connection(monitor(socket, &activity), service);
        run(pin!(connection), http1::Connection::graceful_shutdown, &activity, timeouts, stage).await;
    }
}

/// A chunked request may also have had a `Content-Length`, which a proxy could have used: the bytes that follow must not
/// be read as a request. And a client that still waits for `100 Continue` may or may not send its body.
fn is_last_of_connection(headers: &HeaderMap) -> bool {
    headers.contains_key(header::TRANSFER_ENCODING) || headers.contains_key(header::EXPECT)
}

/// Whether an HTTP/2 head exceeds the limits of HTTP/1.1, measured as HTTP/1.1 would write it.
fn exceeds_head_limits(request: &Request<Incoming>) -> bool {
    let headers: usize = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    request.headers().len() > MAX_HEADERS || headers + target > MAX_HEAD_BYTES
}

/// Drives a connection; shuts it down when the server stops or it is evicted, and drops it on a timeout.
async fn run<C: Future<Output = hyper::Result<()>>>(
    mut connection: Pin<&mut C>,
    stop: impl Fn(Pin<&mut C>),
    activity: &Activity,
    timeouts: Timeouts,
    mut stage: watch::Receiver<DrainStage>,
) {
    // Activity moves the deadline, so the timer checks at least this often.
    let tick = timeouts.head.min(timeouts.idle);
    let mut timer = pin!(sleep_until(Instant::now() + tick));
    let mut stopping = false;
    let mut eviction_deadline = None;
    loop {
        tokio::select! {
            biased;
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended early");
                }
                return;
            }
            () = timer.as_mut() => {
                let (now, mut deadline) = (Instant::now(), activity.deadline(timeouts));
                if !activity.is_working() {
                    deadline = deadline.min(eviction_deadline.unwrap_or(deadline));
                }
                if deadline <= now {
                    return;
                }
                timer.as_mut().reset(deadline.min(now + tick));
            }
            _ = stage.wait_for(|stage| *stage >= DrainStage::Finishing), if !stopping => {
                stopping = true;
                stop(connection.as_mut());
            }
            () = activity.evicted(), if eviction_deadline.is_none() => {
                if activity.is_busy() && !activity.is_working() {
                    return; // a request of an unknown sender: no response is pending
                }
                let deadline = Instant::now() + EVICTION_TIMEOUT;
                eviction_deadline = Some(deadline);
                timer.as_mut().reset(deadline);
                stop(connection.as_mut());
            }
        }
    }
}

/// Peeks at a connection's first bytes.
async fn begins_with_http2(socket: &TcpStream) -> std::io::Result<bool> {
    let mut first = [0; HTTP2_PREFACE.len()];
    loop {
        let seen = socket.peek(&mut first).await?;
        // `PRI` is reserved, so three bytes decide; fewer are peeked at again.
        match &first[..seen] {
            start if seen < 3 && seen > 0 && HTTP2_PREFACE.starts_with(start) => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            start => return Ok(seen >= 3 && HTTP2_PREFACE.starts_with(&start[..3])),
        }
    }
}

/// A request from its head until its response's body is produced, with its slot if it needs one.
struct OpenRequest {
    connection: Arc<ConnectionSlot>,
    _slot: Option<RequestSlot>,
}

impl OpenRequest {
    /// `None` if there is no slot for it.
    fn begin(connection: &Arc<ConnectionSlot>, version: Version) -> Option<(Self, InFlight)> {
        let needs_slot = version == Version::HTTP_2 && connection.activity.has_requests();
        let slot = if needs_slot { Some(connection.enter_request()?) } else { None };
        connection.activity.request_begins();
        Some((Self { connection: connection.clone(), _slot: slot }, InFlight(connection.activity.clone())))
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.connection.activity.request_ends();
    }
}

/// A request between its head and its response.
struct InFlight(Arc<Activity>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.response_begins();
    }
}

/// Notes when bytes are received and sent.
fn monitor<S: Socket>(socket: S, activity: &Arc<Activity>) -> TokioIo<impl Socket> {
    let (receiving, sending) = (activity.clone(), activity.clone());
    let writer = InspectWriter::new(socket, move |_: &[u8]| sending.bytes_sent());
    TokioIo::new(InspectReader::new(writer, move |bytes: &[u8]| {
        if !bytes.is_empty() {
            receiving.bytes_received();
        }
    }))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::connections::{ConnectionSlots, Peer};
    use crate::response_body::ResponseBody;

    const IDLE: Duration = Duration::from_millis(800);
    const CHUNKS: u32 = 8;

    /// Streams its response for longer than the idle timeout.
    struct Slow;

    impl Handler for Slow {
        fn handle(
            self: Arc<Self>,
            _activity: &Arc<Activity>,
            _request: Request<Incoming>,
        ) -> BoxFuture<'static, Response> {
            let (chunks, body) = ResponseBody::stream();
            tokio::spawn(async move {
                for _ in 0..CHUNKS {
                    tokio::time::sleep(IDLE / 4).await;
                    if chunks.send(Ok(vec![b'x'; 1000].into())).await.is_err() {
                        return;
                    }
                }
            });
            Box::pin(std::future::ready(Response::new(body)))
        }

        fn reject(&self, why: Rejection) -> Response {
            Response::new(format!("{why:?}").into())
        }
    }

    #[tokio::test]
    async fn a_slow_response_is_not_idle_while_the_client_reads() {
        for reads in [true, false] {
            let (near, mut far) = tokio::io::duplex(512);
            let (_stages, stage) = watch::channel(DrainStage::Serving);
            let timeouts = Timeouts { head: IDLE, idle: IDLE };
            let Some((slot, _)) = ConnectionSlots::new(1, 1).open(&Peer::Proxied(1)) else { panic!("no slot") };
            let served = tokio::spawn(serve_stream(Box::new(near), false, slot, timeouts, stage, Arc::new(Slow)));
            far.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
            let mut received = Vec::new();
            if reads {
                far.read_to_end(&mut received).await.unwrap();
                assert!(received.ends_with(b"\r\n0\r\n\r\n"), "whole: {}", received.len());
                assert!(received.len() > 1000 * CHUNKS as usize, "{}", received.len());
            }
            // A client that does not read is disconnected.
            tokio::time::timeout(Duration::from_secs(30), served).await.expect("an end").unwrap();
        }
    }
}
