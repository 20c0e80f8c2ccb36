//! One connection: HTTP/1.1, or HTTP/2 if the client begins with its preface or TLS has agreed on it, with timeouts that
//! really fire.
//!
//! A connection has one timer. It looks at the connection's `Clock`, which the socket and the requests keep, and closes
//! the connection when a head takes too long to arrive or when nothing was asked for too long.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{BoxFuture, Either};
use http::{HeaderValue, Request, Version, header};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::answer::Answer;
use crate::listener::Stage;
use crate::parse_errors::ParseErrors;
use crate::site::Unserved;

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The largest request head, and the most headers in it; the latter is hyper's own limit for HTTP/1.1.
pub(crate) const MAX_HEAD_BYTES: usize = 32 << 10;
pub(crate) const MAX_HEADERS: usize = 100;
/// The pieces in which bodies are read.
const BUFFER_BYTES: usize = 64 << 10;
/// Requests under way on one connection.
const HTTP2_STREAMS: u32 = 128;
/// The largest head that the HTTP/2 library hands on, so that we can say what is wrong with it; it answers larger ones itself.
const HTTP2_HEADER_LIST_BYTES: u32 = 2 * MAX_HEAD_BYTES as u32;
/// Requests that were taken back before we had a look at them: a client may give up on all that it may have under way at
/// once; one that goes on opening and resetting, in order to keep us busy, is sent away.
const HTTP2_RESETS_UNSEEN: usize = HTTP2_STREAMS as usize;
/// Streams that we had to reset because of what the client did, in all of a connection's life: mistakes happen, but not
/// in this number.
const HTTP2_RESETS_BY_US: usize = 1024;
/// A stream may be sent one whole body ahead of us, a connection four: nothing else makes us hold bytes that nobody reads.
const HTTP2_STREAM_WINDOW: u32 = wire::MAX_BODY_BYTES as u32;
const HTTP2_CONNECTION_WINDOW: u32 = 4 * HTTP2_STREAM_WINDOW;
/// For the answer to a ping, without which a client that has vanished would keep its requests running.
const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a connection may take for what.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// To send the head of a request, from its first byte on (or from the connection's start).
    pub head: Duration,
    /// To lie idle between two requests.
    pub idle: Duration,
}

/// What answers the requests of a connection. An object, so that HTTP is compiled once and not once for each site.
pub(crate) trait Handler: Send + Sync + 'static {
    /// The answer to a request.
    fn answer(self: Arc<Self>, request: Request<Incoming>) -> BoxFuture<'static, Answer>;

    /// The answer to what never becomes a request.
    fn refuse(&self, why: Unserved) -> Answer;
}

/// What a connection is made of: a socket, or TLS over one.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Socket for S {}

/// Serves a connection in the clear until it ends, times out, or the server stops.
pub(crate) async fn serve(
    socket: TcpStream,
    timeouts: Timeouts,
    stage: watch::Receiver<Stage>,
    handler: Arc<dyn Handler>,
) {
    let Ok(Ok(is_http2)) = tokio::time::timeout(timeouts.head, begins_with_http2(&socket)).await else { return };
    serve_stream(Box::new(socket), is_http2, timeouts, stage, handler).await;
}

/// The same for a connection that is known to speak HTTP/2 or not to.
pub(crate) async fn serve_stream(
    socket: Box<dyn Socket>,
    is_http2: bool,
    timeouts: Timeouts,
    stage: watch::Receiver<Stage>,
    handler: Arc<dyn Handler>,
) {
    let clock = Arc::new(Clock::new());
    let service = service_fn({
        let (clock, stage, handler) = (clock.clone(), stage.clone(), handler.clone());
        move |request: Request<Incoming>| {
            let underway = Underway::begin(clock.clone());
            let (stage, version) = (stage.clone(), request.version());
            let answer = match version == Version::HTTP_2 && has_too_large_a_head(&request) {
                false => Either::Left(handler.clone().answer(request)),
                true => Either::Right(std::future::ready(handler.refuse(Unserved::HeadTooLarge))),
            };
            async move {
                let mut answer = answer.await;
                // HTTP/2 has its own word for it, which is said at the end of the draining.
                if version <= Version::HTTP_11 && *stage.borrow() >= Stage::Draining {
                    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                }
                drop(underway);
                Ok::<_, Infallible>(answer)
            }
        }
    });
    if is_http2 {
        let timeouts = Timeouts { head: timeouts.idle, ..timeouts }; // a frame is not a request's head
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(HTTP2_STREAMS)
            .max_header_list_size(HTTP2_HEADER_LIST_BYTES)
            .max_pending_accept_reset_streams(HTTP2_RESETS_UNSEEN)
            .max_local_error_reset_streams(HTTP2_RESETS_BY_US)
            .initial_stream_window_size(HTTP2_STREAM_WINDOW)
            .initial_connection_window_size(HTTP2_CONNECTION_WINDOW)
            .keep_alive_interval(timeouts.idle)
            .keep_alive_timeout(HTTP2_PING_TIMEOUT)
            .serve_connection(TokioIo::new(Watched { socket, clock: clock.clone() }), service);
        run(pin!(connection), http2::Connection::graceful_shutdown, &clock, timeouts, stage).await;
    } else {
        let socket = ParseErrors::new(socket, move |why| handler.refuse(why));
        let connection = http1::Builder::new()
            .max_header_size(MAX_HEAD_BYTES)
            .max_buf_size(BUFFER_BYTES)
            .serve_connection(TokioIo::new(Watched { socket, clock: clock.clone() }), service);
        run(pin!(connection), http1::Connection::graceful_shutdown, &clock, timeouts, stage).await;
    }
}

/// Whether a head that came in frames is larger than HTTP/1.1's may be, measured as that would write it.
fn has_too_large_a_head(request: &Request<Incoming>) -> bool {
    let headers: usize = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    request.headers().len() > MAX_HEADERS || headers + target > MAX_HEAD_BYTES
}

/// Drives a connection; tells it when the server stops, and drops it when it takes too long.
async fn run<C: Future<Output = hyper::Result<()>>>(
    mut connection: Pin<&mut C>,
    stop: impl Fn(Pin<&mut C>),
    clock: &Clock,
    timeouts: Timeouts,
    mut stage: watch::Receiver<Stage>,
) {
    // What the connection does may change, and with it the deadline, so the timer looks at least this often.
    let tick = timeouts.head.min(timeouts.idle);
    let mut timer = pin!(sleep_until(Instant::now() + tick));
    let mut stopping = false;
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
                let (now, deadline) = (Instant::now(), clock.deadline(timeouts));
                if deadline <= now {
                    return;
                }
                timer.as_mut().reset(deadline.min(now + tick));
            }
            _ = stage.wait_for(|stage| *stage >= Stage::Finishing), if !stopping => {
                stopping = true;
                stop(connection.as_mut());
            }
        }
    }
}

/// Looks at a connection's first bytes without taking them.
async fn begins_with_http2(socket: &TcpStream) -> std::io::Result<bool> {
    let mut first = [0; HTTP2_PREFACE.len()];
    loop {
        let seen = socket.peek(&mut first).await?;
        // `PRI` is no method that anyone may use, so three bytes tell; fewer are worth a second look.
        match &first[..seen] {
            start if seen < 3 && seen > 0 && HTTP2_PREFACE.starts_with(start) => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            start => return Ok(seen >= 3 && HTTP2_PREFACE.starts_with(&start[..3])),
        }
    }
}

/// What a connection is doing, and since when, in microseconds from its start.
struct Clock {
    start: Instant,
    under_way: AtomicU32,
    idle_since: AtomicU64,
    /// When the first byte of a head arrived, plus one; 0 while none has.
    head_since: AtomicU64,
}

impl Clock {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            under_way: AtomicU32::new(0),
            idle_since: AtomicU64::new(0),
            head_since: AtomicU64::new(1),
        }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// When the connection is to be closed if nothing changes until then.
    fn deadline(&self, timeouts: Timeouts) -> Instant {
        let since = |micros| self.start + Duration::from_micros(micros);
        if self.under_way.load(Ordering::Relaxed) > 0 {
            return Instant::now() + timeouts.idle;
        }
        match self.head_since.load(Ordering::Relaxed) {
            0 => since(self.idle_since.load(Ordering::Relaxed)) + timeouts.idle,
            head => since(head - 1) + timeouts.head,
        }
    }

    /// While an answer is on its way to somebody who reads it, however long that takes, the connection is not idle.
    fn bytes_left(&self) {
        if self.under_way.load(Ordering::Relaxed) == 0 {
            self.idle_since.store(self.now(), Ordering::Relaxed);
        }
    }

    fn bytes_arrived(&self) {
        if self.under_way.load(Ordering::Relaxed) == 0 && self.head_since.load(Ordering::Relaxed) == 0 {
            self.head_since.store(self.now() + 1, Ordering::Relaxed);
        }
    }
}

/// A request between its head and its answer.
struct Underway(Arc<Clock>);

impl Underway {
    fn begin(clock: Arc<Clock>) -> Self {
        clock.under_way.fetch_add(1, Ordering::Relaxed);
        clock.head_since.store(0, Ordering::Relaxed);
        Self(clock)
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        self.0.idle_since.store(self.0.now(), Ordering::Relaxed);
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A socket that tells the clock when bytes arrive and leave.
struct Watched<S> {
    socket: S,
    clock: Arc<Clock>,
}

impl<S> Watched<S> {
    fn wrote(&self, polled: &Poll<std::io::Result<usize>>) {
        if matches!(polled, Poll::Ready(Ok(count)) if *count > 0) {
            self.clock.bytes_left();
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = into.filled().len();
        let polled = Pin::new(&mut self.socket).poll_read(context, into);
        if into.filled().len() > before {
            self.clock.bytes_arrived();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let polled = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.wrote(&polled);
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let polled = Pin::new(&mut self.socket).poll_write_vectored(context, pieces);
        self.wrote(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::ResponseBody;

    const IDLE: Duration = Duration::from_millis(800);
    const PIECES: u32 = 8;

    /// Answers in pieces that take longer, all together, than a connection may lie idle.
    struct Slow;

    impl Handler for Slow {
        fn answer(self: Arc<Self>, _request: Request<Incoming>) -> BoxFuture<'static, Answer> {
            let (pieces, body) = ResponseBody::stream();
            tokio::spawn(async move {
                for _ in 0..PIECES {
                    tokio::time::sleep(IDLE / 4).await;
                    if pieces.send(Ok(vec![b'x'; 1000].into())).await.is_err() {
                        return;
                    }
                }
            });
            Box::pin(std::future::ready(Answer::new(body)))
        }

        fn refuse(&self, why: Unserved) -> Answer {
            Answer::new(format!("{why:?}").into())
        }
    }

    #[tokio::test]
    async fn a_long_answer_is_sent_to_whoever_reads_it_and_to_nobody_else() {
        for reads in [true, false] {
            let (near, mut far) = tokio::io::duplex(512);
            let (_stages, stage) = watch::channel(Stage::Serving);
            let timeouts = Timeouts { head: IDLE, idle: IDLE };
            let served = tokio::spawn(serve_stream(Box::new(near), false, timeouts, stage, Arc::new(Slow)));
            far.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
            let mut received = Vec::new();
            if reads {
                far.read_to_end(&mut received).await.unwrap();
                assert!(received.ends_with(b"\r\n0\r\n\r\n"), "whole: {}", received.len());
                assert!(received.len() > 1000 * PIECES as usize, "{}", received.len());
            }
            // Who does not read is left before long.
            tokio::time::timeout(Duration::from_secs(30), served).await.expect("an end").unwrap();
        }
    }
}
