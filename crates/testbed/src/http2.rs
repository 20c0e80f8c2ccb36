//! An HTTP/2 client with prior knowledge, on hyper. It can also leave bodies half sent.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::task::JoinHandle;

use crate::Response;

const CHUNK_BYTES: usize = 16 << 10;

/// A request whose target is absolute: its authority becomes `:authority`.
pub type Http2Request = hyper::Request<Http2Body>;

/// A body that is sent whole, or one whose end never comes.
pub struct Http2Body {
    unsent: Bytes,
    is_half: bool,
    /// Whether the connection's flow control has let all of it through.
    is_sent: Arc<AtomicBool>,
}

impl Body for Http2Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.unsent.is_empty() {
            self.is_sent.store(true, Ordering::Relaxed);
            return if self.is_half { Poll::Pending } else { Poll::Ready(None) };
        }
        let bytes = self.unsent.len().min(CHUNK_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.unsent.split_to(bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.unsent.is_empty() && !self.is_half
    }

    fn size_hint(&self) -> SizeHint {
        if self.is_half { SizeHint::default() } else { SizeHint::with_exact(self.unsent.len() as u64) }
    }
}

/// The response to a request that is partly or completely sent.
pub struct PendingResponse {
    is_sent: Arc<AtomicBool>,
    response: JoinHandle<Option<Response>>,
}

impl PendingResponse {
    /// Whether the server has received all available bytes, or has responded.
    pub fn is_over(&self) -> bool {
        self.is_sent.load(Ordering::Relaxed) || self.response.is_finished()
    }

    pub fn is_answered(&self) -> bool {
        self.response.is_finished()
    }
}

/// A connection, driven in the background by a separate Tokio runtime.
pub struct Http2Client {
    runtime: tokio::runtime::Runtime,
    sender: SendRequest<Http2Body>,
}

impl Http2Client {
    pub fn connect(address: SocketAddr) -> Self {
        Self::connect_from(Ipv4Addr::UNSPECIFIED.into(), address)
    }

    /// A connection from another of this machine's addresses.
    pub fn connect_from(source: IpAddr, address: SocketAddr) -> Self {
        Self::with_window(source, address, None)
    }

    /// A connection whose flow control lets no byte of a response's body through.
    pub fn connect_without_reading(source: IpAddr, address: SocketAddr) -> Self {
        Self::with_window(source, address, Some(0))
    }

    fn with_window(source: IpAddr, address: SocketAddr, stream_window: Option<u32>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let sender = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind(SocketAddr::new(source, 0)).unwrap();
            let socket = socket.connect(address).await.unwrap();
            let mut builder = Builder::new(TokioExecutor::new());
            builder.initial_stream_window_size(stream_window);
            let (sender, connection) = builder.handshake(TokioIo::new(socket)).await.unwrap();
            tokio::spawn(connection);
            sender
        });
        Self { runtime, sender }
    }

    /// A valid request with that key and body.
    pub fn request(key: &str, body: impl Into<Bytes>) -> Http2Request {
        hyper::Request::post("http://localhost/v1/chat/completions")
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {key}"))
            .body(Http2Body { unsent: body.into(), is_half: false, is_sent: Arc::default() })
            .unwrap()
    }

    /// The responses to requests that are sent at the same time, in the requests' order.
    pub fn send(&self, requests: Vec<Http2Request>) -> Vec<Response> {
        let asking: Vec<_> = requests.into_iter().map(|request| self.begin(request)).collect();
        asking.into_iter().map(|asking| self.runtime.block_on(asking).unwrap().expect("a response")).collect()
    }

    /// Begins to send a request.
    pub fn start(&self, request: Http2Request) -> PendingResponse {
        PendingResponse { is_sent: request.body().is_sent.clone(), response: self.begin(request) }
    }

    /// Sends a request's head and body, but not the body's end.
    pub fn send_half(&self, mut request: Http2Request) -> PendingResponse {
        request.body_mut().is_half = true;
        self.start(request)
    }

    /// The response, if the connection stays open until it arrives.
    pub fn response(&self, pending: PendingResponse) -> Option<Response> {
        self.runtime.block_on(pending.response).unwrap()
    }

    /// Sends a request and resets its stream as soon as `until` returns.
    pub fn send_and_give_up(&self, request: Http2Request, until: impl FnOnce()) {
        let asking = self.runtime.spawn(self.sender.clone().send_request(request));
        until();
        asking.abort();
    }

    fn begin(&self, request: Http2Request) -> JoinHandle<Option<Response>> {
        let response = self.sender.clone().send_request(request);
        self.runtime.spawn(async move { whole(response.await.ok()?).await })
    }
}

async fn whole(response: hyper::Response<Incoming>) -> Option<Response> {
    let (head, body) = response.into_parts();
    let headers = head.headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()));
    let headers = headers.collect();
    Some(Response { status: head.status.as_u16(), headers, body: body.collect().await.ok()?.to_bytes().into() })
}
