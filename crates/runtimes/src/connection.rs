//! One connection to a runtime. The request that uses it drives it in its own task: there is no switch between tasks, and
//! dropping the future closes the socket, so that the runtime stops.
//!
//! It carries one request at a time. It is reused only if the end of its last response is certain: otherwise the rest of
//! that response could reach the next caller.

use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode, Version, header};
use http_body_util::{BodyExt, Collected, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use memchr::memmem;
use rustix::net::RecvFlags;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::url::{RuntimeUrl, Target};

/// Limits of a response's head and body. The body is far larger than any text of 512 tokens.
const MAX_HEAD_BYTES: usize = 64 << 10;
const MAX_BODY_BYTES: usize = 4 << 20;
/// The timeout for reading data that has already arrived.
const READ_TIMEOUT: Duration = Duration::from_millis(100);

pub(crate) struct Connection {
    requests: SendRequest<Full<Bytes>>,
    /// Reads and writes the socket, until the connection ends.
    driver: Result<Pin<Box<Driver>>, Ended>,
    /// The same socket.
    socket: OwnedFd,
    reuse: Reuse,
}

type Driver = http1::Connection<TokioIo<Box<dyn Stream>>, Full<Bytes>>;

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Whether another request may follow on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reuse {
    No,
    /// After a while without further data, because its responses do not carry the ids of their requests.
    WhenSettled,
    /// Its responses carry the ids of their requests.
    Now,
}

/// The state of an idle connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdleState {
    Quiet,
    Closed,
    /// Data arrived without a request.
    Spoke,
}

/// The id is empty for requests without one.
pub(crate) struct RuntimeRequest {
    pub(crate) request: Request<Full<Bytes>>,
    pub(crate) id: Bytes,
}

/// A complete response with any status.
pub(crate) struct RuntimeResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Whether it carries the id of its request.
    pub(crate) has_id: bool,
    /// Whether more data has arrived than the response.
    pub(crate) has_surplus: bool,
}

/// Why there is no complete response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    /// No head of a final response has arrived.
    #[error("there is no response: {0}")]
    BeforeResponse(#[source] hyper::Error),
    #[error("the response is not complete: {0}")]
    WithinResponse(#[source] Box<dyn Error + Send + Sync>),
    /// The connection's responses carry ids, and this one has a different id.
    #[error("the response is for another request")]
    Foreign,
}

impl Connection {
    /// Connects to the given address of the host, or to any of its addresses.
    pub(crate) async fn open(url: &RuntimeUrl, address: Option<IpAddr>) -> Result<Self, io::Error> {
        let (socket, stream): (OwnedFd, Box<dyn Stream>) = match &url.target {
            Target::Unix(path, peer) => {
                let socket = unix_socket::connect(path, *peer).await?;
                (socket.as_fd().try_clone_to_owned()?, Box::new(socket))
            }
            Target::Tcp { tls, host, port } => {
                let socket = match address {
                    Some(address) => TcpStream::connect((address, *port)).await?,
                    None => TcpStream::connect((host.as_str(), *port)).await?,
                };
                socket.set_nodelay(true)?;
                let copy = socket.as_fd().try_clone_to_owned()?;
                if *tls {
                    let name = rustls::pki_types::ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                    (copy, Box::new(tls_connector()?.connect(name, socket).await?))
                } else {
                    (copy, Box::new(socket))
                }
            }
        };
        let mut protocol = http1::Builder::new();
        protocol.max_buf_size(MAX_HEAD_BYTES);
        let (requests, driver) = protocol.handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        Ok(Self { requests, driver: Ok(Box::pin(driver)), socket, reuse: Reuse::No })
    }

    /// Peeks at the socket, because tokio may not yet have seen arrived data.
    pub(crate) async fn idle_state(&mut self) -> IdleState {
        match rustix::net::recv(&self.socket, &mut [0], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Err(rustix::io::Errno::WOULDBLOCK) => IdleState::Quiet,
            Err(_) | Ok((_, 0)) => IdleState::Closed,
            // With TLS it may be only the close notification.
            Ok(_) => match tokio::time::timeout(READ_TIMEOUT, poll_fn(|context| self.poll_driver(context))).await {
                Ok(Ended::BySurplus) => IdleState::Spoke,
                Ok(Ended::Closed) | Err(_) => IdleState::Closed,
            },
        }
    }

    /// Sends a whole request, and receives its response. `begun` is set once the head of the final response has arrived.
    pub(crate) async fn exchange(
        &mut self,
        request: RuntimeRequest,
        begun: &AtomicBool,
    ) -> Result<RuntimeResponse, ExchangeError> {
        let needs_id = std::mem::replace(&mut self.reuse, Reuse::No) == Reuse::Now;
        let RuntimeRequest { request, id } = request;
        let response = self.requests.send_request(request);
        let response = async {
            let response = response.await.map_err(|error| match error.is_parse() {
                true => ExchangeError::WithinResponse(error.into()),
                false => ExchangeError::BeforeResponse(error),
            })?;
            begun.store(true, Ordering::Relaxed);
            let (head, body) = response.into_parts();
            let body = Limited::new(body, MAX_BODY_BYTES).collect().await.map_err(ExchangeError::WithinResponse)?;
            Ok((head, body))
        };
        let mut response = pin!(response);
        let (head, body) = poll_fn(|context| {
            // The second time reads the body, once the head has been taken.
            for _ in 0..2 {
                let _ = self.poll_driver(context);
                if let Poll::Ready(response) = response.as_mut().poll(context) {
                    return Poll::Ready(response);
                }
            }
            Poll::Pending
        })
        .await?;
        let keeps_alive = keeps_alive(&head, &body);
        let body = body.to_bytes();
        let has_id = !id.is_empty() && {
            let finder = memmem::Finder::new(&id);
            let mut texts = head.headers.values().map(HeaderValue::as_bytes).chain([&body[..]]);
            texts.any(|text| finder.find(text).is_some())
        };
        if needs_id && !has_id {
            return Err(ExchangeError::Foreign);
        }
        let ended = poll_fn(|context| Poll::Ready(self.poll_driver(context))).await;
        if ended.is_pending() && keeps_alive {
            self.reuse = if has_id { Reuse::Now } else { Reuse::WhenSettled };
        }
        let has_surplus = ended == Poll::Ready(Ended::BySurplus);
        Ok(RuntimeResponse { status: head.status, headers: head.headers, body, has_id, has_surplus })
    }

    pub(crate) fn reuse(&self) -> Reuse {
        self.reuse
    }

    /// Ready once the connection has ended.
    fn poll_driver(&mut self, context: &mut Context<'_>) -> Poll<Ended> {
        let driver = match &mut self.driver {
            Ok(driver) => driver,
            Err(ended) => return Poll::Ready(*ended),
        };
        let ended = ready!(driver.as_mut().poll(context));
        // An error of the socket or of TLS has a source; the error for unexpected data has none.
        let is_surplus = ended.is_err_and(|error| error.source().is_none() && !error.is_incomplete_message());
        let ended = if is_surplus { Ended::BySurplus } else { Ended::Closed };
        self.driver = Err(ended);
        Poll::Ready(ended)
    }
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Closed,
    /// Data arrived without a request.
    BySurplus,
}

/// Whether another request may follow: only after a 200 with one length, or with chunks and no trailers.
fn keeps_alive(head: &http::response::Parts, body: &Collected<Bytes>) -> bool {
    let count = |name| head.headers.get_all(name).iter().count();
    let is_framed = match (count(header::CONTENT_LENGTH), count(header::TRANSFER_ENCODING)) {
        (1, 0) => true,
        (0, 1) => head.headers[header::TRANSFER_ENCODING].as_bytes().eq_ignore_ascii_case(b"chunked"),
        _ => false,
    };
    is_framed && head.status == StatusCode::OK && head.version == Version::HTTP_11 && body.trailers().is_none()
}

/// One configuration for all members, created on first use.
fn tls_connector() -> Result<TlsConnector, io::Error> {
    static CONFIG: OnceLock<Arc<rustls::ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(config.clone().into());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    // The system's, without those that cannot be parsed, as in other clients: system stores have some.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(CONFIG.get_or_init(|| Arc::new(config)).clone().into())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    fn request(body: Vec<u8>) -> RuntimeRequest {
        let request = Request::post("/").header(header::HOST, "x").body(Full::from(body)).unwrap();
        RuntimeRequest { request, id: Bytes::from_static(b"id-7") }
    }

    /// A connection, and the server's end of it.
    async fn connect() -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url: RuntimeUrl = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let (connection, accepted) = tokio::join!(Connection::open(&url, None), listener.accept());
        (connection.unwrap(), accepted.unwrap().0)
    }

    async fn read_head(server: &mut TcpStream) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(server.read_u8().await.unwrap());
        }
    }

    /// The result of a request to which the server responds with these pieces, and whether a response had begun.
    async fn exchange(
        connection: &mut Connection,
        server: &mut TcpStream,
        pieces: &[&str],
    ) -> (Result<RuntimeResponse, ExchangeError>, bool) {
        let respond = async {
            read_head(server).await;
            for piece in pieces {
                server.write_all(piece.as_bytes()).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let begun = AtomicBool::default();
        let (response, ()) = tokio::join!(connection.exchange(request(Vec::new()), &begun), respond);
        (response, begun.into_inner())
    }

    #[tokio::test]
    async fn a_connection_is_reused_until_the_runtime_closes_it() {
        let (mut connection, mut server) = connect().await;
        for (body, reuse) in [("one", Reuse::WhenSettled), ("three", Reuse::WhenSettled), ("id-7", Reuse::Now)] {
            let length = format!("{:x}\r\n", body.len());
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            let pieces = [head, &length, body, "\r\n0", "\r\n\r\n"];
            let (response, has_begun) = exchange(&mut connection, &mut server, &pieces).await;
            assert!(has_begun && response.unwrap().body == body);
            assert_eq!((connection.reuse(), connection.idle_state().await), (reuse, IdleState::Quiet));
        }
        drop(server);
        assert_eq!(connection.idle_state().await, IdleState::Closed);
    }

    #[tokio::test]
    async fn a_connection_is_reused_only_after_a_200_with_a_certain_end() {
        let chunks = "2\r\nab\r\n1\r\nc\r\n0\r\n\r\n";
        let cases = [
            ("1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", true),
            (&format!("1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n{chunks}"), true),
            ("1.1 204 None\r\n\r\nx", false),
            ("1.1 101 Switching\r\n\r\nx", false),
            ("1.1 429 Wait\r\nContent-Length: 1\r\n\r\nx", false),
            ("1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx", false),
            ("1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx", false),
            ("1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", false),
            (&format!("1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}"), false),
            ("1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", false),
            ("1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n\r\n", false),
            ("1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n\r\n", false),
            ("1.1 200 OK\r\nContent-Length: 1\r\n\r\nx\r\n", false),
        ];
        for (text, is_kept) in cases {
            let (mut connection, mut server) = connect().await;
            let _ = exchange(&mut connection, &mut server, &[&format!("HTTP/{text}")]).await;
            assert_eq!(connection.reuse() != Reuse::No, is_kept, "{text}");
        }
    }

    #[tokio::test]
    async fn data_after_a_response_is_reported() {
        let (mut connection, mut server) = connect().await;
        let pieces = ["HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxHTTP/1.1 200 OK\r\n"];
        let response = exchange(&mut connection, &mut server, &pieces).await.0.unwrap();
        assert!(response.has_surplus && response.body == "x" && connection.reuse() == Reuse::No);
    }

    /// Even if the reactor, by which tokio would learn of it, does not run in between.
    #[tokio::test]
    async fn data_on_an_idle_connection_is_seen_immediately() {
        let (mut connection, mut server) = connect().await;
        let response = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx";
        exchange(&mut connection, &mut server, &[response]).await.0.unwrap();
        assert_eq!(connection.idle_state().await, IdleState::Quiet);
        server.into_std().unwrap().write_all(response.as_bytes()).unwrap();
        assert_eq!(connection.idle_state().await, IdleState::Spoke);
    }

    #[tokio::test]
    async fn a_response_for_another_request_is_detected_if_responses_carry_ids() {
        let (mut connection, mut server) = connect().await;
        let response = |id: &str| format!("HTTP/1.1 200 OK\r\nX-Request-Id: {id}\r\nContent-Length: 1\r\n\r\nx");
        exchange(&mut connection, &mut server, &[&response("id-7")]).await.0.unwrap();
        let other = exchange(&mut connection, &mut server, &[&response("id-6")]).await.0;
        assert!(matches!(other, Err(ExchangeError::Foreign)));
        assert_eq!(connection.reuse(), Reuse::No);
    }

    /// A runtime that rejects a long prompt need not read it.
    #[tokio::test]
    async fn a_response_counts_even_if_the_request_could_not_be_sent() {
        let (mut connection, mut server) = connect().await;
        let refuse = async {
            read_head(&mut server).await;
            server.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno").await.unwrap();
            server.shutdown().await.unwrap();
        };
        let begun = AtomicBool::default();
        let (response, ()) = tokio::join!(connection.exchange(request(vec![b'x'; 16 << 20]), &begun), refuse);
        assert_eq!((response.unwrap().status, connection.reuse()), (StatusCode::PAYLOAD_TOO_LARGE, Reuse::No));
    }

    #[tokio::test]
    async fn an_end_before_the_response_is_distinguished_from_one_within_it() {
        for (sent, is_before, begins) in [
            ("", true, false),
            ("HTTP/1.1 100 Continue\r\n\r\n", true, false),
            ("HTTP/1.1 200 OK\r\nContent-Le", true, false),
            ("garbage\r\n\r\n", false, false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", false, true),
            (&format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\nx", MAX_BODY_BYTES + 1), false, true),
            (&format!("HTTP/1.1 200 OK\r\nA: {}", "x".repeat(MAX_HEAD_BYTES)), false, false),
        ] {
            let (mut connection, mut server) = connect().await;
            let respond = async move {
                read_head(&mut server).await;
                server.write_all(sent.as_bytes()).await.unwrap();
            };
            let begun = AtomicBool::default();
            let (result, ()) = tokio::join!(connection.exchange(request(Vec::new()), &begun), respond);
            let shown = &sent[..sent.len().min(60)];
            assert_eq!(matches!(result, Err(ExchangeError::BeforeResponse(_))), is_before, "{shown}");
            assert!(result.is_err() && begun.into_inner() == begins, "{shown}");
        }
    }
}
