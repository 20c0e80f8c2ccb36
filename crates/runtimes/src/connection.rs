//! One connection to a runtime. The request that uses it reads and writes it in its own task: there is no switch
//! between tasks, and dropping the future closes the socket, so that the runtime stops.

use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use rustix::net::RecvFlags;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::http1::{self, BodyReader, HeadReader, ResponseHead};
use crate::url::{RuntimeUrl, Target};

/// Room for what arrives: most responses fit.
const READ_BYTES: usize = 8 << 10;
/// An idle connection keeps no more.
const MAX_IDLE_BYTES: usize = 8 * READ_BYTES;
/// For reading what has already arrived.
const READ_TIMEOUT: Duration = Duration::from_millis(100);

pub(crate) struct Connection {
    stream: Box<dyn Stream>,
    /// What has arrived and was not taken yet.
    arrived: BytesMut,
    reuse: Reuse,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {
    fn socket(&self) -> BorrowedFd<'_>;
}

impl Stream for TcpStream {
    fn socket(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}

impl Stream for UnixStream {
    fn socket(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}

impl Stream for TlsStream<TcpStream> {
    fn socket(&self) -> BorrowedFd<'_> {
        self.get_ref().0.as_fd()
    }
}

/// Whether another request may follow on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reuse {
    No,
    /// After a while without anything more: its responses do not say which request they are for.
    WhenSettled,
    /// Its responses carry the ids of their requests.
    Now,
}

/// What has happened on an idle connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdleState {
    Quiet,
    Closed,
    /// Something arrived that no request had asked for.
    Spoke,
}

/// A request as it is sent. The id is empty if there is none.
#[derive(Clone, Copy)]
pub(crate) struct RuntimeRequest<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) id: &'a [u8],
}

/// A complete response, whatever its status.
pub(crate) struct RuntimeResponse {
    pub(crate) status: StatusCode,
    /// In seconds.
    pub(crate) retry_after: Option<u64>,
    pub(crate) body: Bytes,
    /// Whether it carries the id of its request.
    pub(crate) has_id: bool,
    /// Whether more has arrived than the response.
    pub(crate) has_surplus: bool,
}

/// Why there is no complete response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    /// No head of a final response has arrived.
    #[error("there is no response: {0}")]
    BeforeResponse(#[source] io::Error),
    #[error("the response is not complete: {0}")]
    WithinResponse(#[source] io::Error),
    /// The connection's responses carry ids, and this one has another.
    #[error("the response is for another request")]
    Foreign,
}

impl Connection {
    /// Connects to the given address of the host, or to any.
    pub(crate) async fn open(url: &RuntimeUrl, address: Option<IpAddr>) -> Result<Self, io::Error> {
        let stream: Box<dyn Stream> = match &url.target {
            Target::Unix(path, peer) => Box::new(unix_socket::connect(path, *peer).await?),
            Target::Tcp { tls, host, port } => {
                let socket = match address {
                    Some(address) => TcpStream::connect((address, *port)).await?,
                    None => TcpStream::connect((host.as_str(), *port)).await?,
                };
                socket.set_nodelay(true)?;
                if *tls {
                    let name = rustls::pki_types::ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                    Box::new(tls_connector()?.connect(name, socket).await?)
                } else {
                    Box::new(socket)
                }
            }
        };
        Ok(Self { stream, arrived: BytesMut::new(), reuse: Reuse::No })
    }

    /// Asks the socket itself, because tokio may not know yet of what has arrived.
    pub(crate) async fn idle_state(&mut self) -> IdleState {
        match rustix::net::recv(self.stream.socket(), &mut [0], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Err(rustix::io::Errno::WOULDBLOCK) => IdleState::Quiet,
            Err(_) | Ok((_, 0)) => IdleState::Closed,
            // Behind TLS it may be no more than the notice of the end.
            Ok(_) => match tokio::time::timeout(READ_TIMEOUT, self.stream.read_u8()).await {
                Ok(Ok(_)) => IdleState::Spoke,
                Ok(Err(_)) | Err(_) => IdleState::Closed,
            },
        }
    }

    /// Sends a whole request, and receives its response. `begun` is set once the head of the final response is there.
    pub(crate) async fn exchange(
        &mut self,
        request: RuntimeRequest<'_>,
        begun: &AtomicBool,
    ) -> Result<RuntimeResponse, ExchangeError> {
        let needs_id = std::mem::replace(&mut self.reuse, Reuse::No) == Reuse::Now;
        let mut unsent = request.bytes;
        let mut is_early = false;
        let mut reader = HeadReader::default();
        let head = loop {
            if self.transfer(&mut unsent).await.map_err(ExchangeError::BeforeResponse)? == 0 {
                return Err(ExchangeError::BeforeResponse(closed()));
            }
            is_early |= !unsent.is_empty();
            let head = reader.take(&mut self.arrived, request.id);
            if let Some(head) = head.map_err(|error| ExchangeError::WithinResponse(error.into()))? {
                break head;
            }
        };
        begun.store(true, Ordering::Relaxed);
        let mut reader = BodyReader::new(head.framing);
        let body = loop {
            let body = reader.take(&mut self.arrived);
            if let Some(body) = body.map_err(|error| ExchangeError::WithinResponse(error.into()))? {
                break body;
            }
            if self.transfer(&mut unsent).await.map_err(ExchangeError::WithinResponse)? == 0 {
                break reader.end(&mut self.arrived).ok_or_else(|| ExchangeError::WithinResponse(closed()))?;
            }
        };
        let has_id = head.has_id || http1::contains(&body, request.id);
        if needs_id && !has_id {
            return Err(ExchangeError::Foreign);
        }
        let has_surplus = !self.arrived.is_empty();
        // A runtime that responds before it has read the request may take the rest of it for the next one.
        if head.keeps_alive && !reader.is_unusual() && !is_early && unsent.is_empty() && !has_surplus {
            self.reuse = if has_id { Reuse::Now } else { Reuse::WhenSettled };
        }
        if body.len() > MAX_IDLE_BYTES {
            self.arrived = BytesMut::new();
        }
        let ResponseHead { status, retry_after, .. } = head;
        Ok(RuntimeResponse { status, retry_after, body, has_id, has_surplus })
    }

    pub(crate) fn reuse(&self) -> Reuse {
        self.reuse
    }

    /// Sends what it can, and waits for something to arrive: how many bytes, 0 at the end of the connection. A runtime
    /// may respond before it has read everything, and then stop reading; so what cannot be sent is no error yet.
    async fn transfer(&mut self, unsent: &mut &[u8]) -> Result<usize, io::Error> {
        poll_fn(|context| {
            let sent = self.poll_send(context, unsent);
            self.arrived.reserve(READ_BYTES);
            let received = ready!(pin!(self.stream.read_buf(&mut self.arrived)).poll(context));
            match (received, sent) {
                (Ok(0) | Err(_), Poll::Ready(Err(error))) => Poll::Ready(Err(error)),
                (received, _) => Poll::Ready(received),
            }
        })
        .await
    }

    fn poll_send(&mut self, context: &mut Context<'_>, unsent: &mut &[u8]) -> Poll<Result<(), io::Error>> {
        let mut stream = Pin::new(&mut self.stream);
        while !unsent.is_empty() {
            match ready!(stream.as_mut().poll_write(context, unsent))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => *unsent = &unsent[sent..],
            }
        }
        stream.poll_flush(context)
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed")
}

/// One configuration for all members, made at the first use.
fn tls_connector() -> Result<TlsConnector, io::Error> {
    static CONFIG: OnceLock<Arc<rustls::ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(config.clone().into());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(tls_roots::load())
        .with_no_client_auth();
    Ok(CONFIG.get_or_init(|| Arc::new(config)).clone().into())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    const REQUEST: RuntimeRequest<'_> = RuntimeRequest { bytes: b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", id: b"id-7" };

    /// A connection to a server that does what it is told.
    async fn connect() -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url: RuntimeUrl = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let (connection, accepted) = tokio::join!(Connection::open(&url, None), listener.accept());
        (connection.unwrap(), accepted.unwrap().0)
    }

    async fn read_request(server: &mut TcpStream) {
        let mut request = vec![0; REQUEST.bytes.len()];
        server.read_exact(&mut request).await.unwrap();
    }

    /// What comes of a request to which the server responds with these pieces.
    async fn exchange(
        connection: &mut Connection,
        server: &mut TcpStream,
        pieces: &[&str],
    ) -> Result<RuntimeResponse, ExchangeError> {
        let respond = async {
            read_request(server).await;
            for piece in pieces {
                server.write_all(piece.as_bytes()).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let begun = AtomicBool::default();
        tokio::join!(connection.exchange(REQUEST, &begun), respond).0
    }

    #[tokio::test]
    async fn a_connection_is_used_again_until_the_runtime_closes_it() {
        let (mut connection, mut server) = connect().await;
        for (body, reuse) in [("one", Reuse::WhenSettled), ("three", Reuse::WhenSettled), ("id-7", Reuse::Now)] {
            let length = format!("{:x}\r\n", body.len());
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            let response = exchange(&mut connection, &mut server, &[head, &length, body, "\r\n0", "\r\n\r\n"]).await;
            assert_eq!(response.unwrap().body, body);
            assert_eq!((connection.reuse(), connection.idle_state().await), (reuse, IdleState::Quiet));
        }
        drop(server);
        assert_eq!(connection.stream.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(connection.idle_state().await, IdleState::Closed);
    }

    #[tokio::test]
    async fn what_follows_a_response_makes_a_connection_useless() {
        let (mut connection, mut server) = connect().await;
        let pieces = ["HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxHTTP/1.1 200 OK\r\n"];
        let response = exchange(&mut connection, &mut server, &pieces).await.unwrap();
        assert!(response.has_surplus && response.body == "x" && connection.reuse() == Reuse::No);
    }

    /// Without a turn of the reactor in between, which would tell tokio.
    #[tokio::test]
    async fn what_arrives_on_an_idle_connection_is_seen_at_once() {
        let (mut connection, mut server) = connect().await;
        let response = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx";
        exchange(&mut connection, &mut server, &[response]).await.unwrap();
        assert_eq!(connection.idle_state().await, IdleState::Quiet);
        server.into_std().unwrap().write_all(response.as_bytes()).unwrap();
        assert_eq!(connection.idle_state().await, IdleState::Spoke);
    }

    #[tokio::test]
    async fn a_response_for_another_request_is_noticed_where_responses_carry_ids() {
        let (mut connection, mut server) = connect().await;
        let response = |id: &str| format!("HTTP/1.1 200 OK\r\nX-Request-Id: {id}\r\nContent-Length: 1\r\n\r\nx");
        exchange(&mut connection, &mut server, &[&response("id-7")]).await.unwrap();
        let other = exchange(&mut connection, &mut server, &[&response("id-6")]).await;
        assert!(matches!(other, Err(ExchangeError::Foreign)));
        assert_eq!(connection.reuse(), Reuse::No);
    }

    /// A runtime that refuses a long prompt need not read it.
    #[tokio::test]
    async fn a_response_counts_even_if_the_request_could_not_be_sent() {
        let (mut connection, mut server) = connect().await;
        let refuse = async {
            read_request(&mut server).await;
            server.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno").await.unwrap();
            server.shutdown().await.unwrap();
        };
        let long = vec![b'x'; 16 << 20];
        let request = RuntimeRequest { bytes: &long, id: b"" };
        let begun = AtomicBool::default();
        let (response, ()) = tokio::join!(connection.exchange(request, &begun), refuse);
        assert_eq!((response.unwrap().status, connection.reuse()), (StatusCode::PAYLOAD_TOO_LARGE, Reuse::No));
    }

    /// Even a 200: the rest of the request would be read as the next one.
    #[tokio::test]
    async fn a_response_before_the_whole_request_was_sent_ends_the_connection() {
        let (mut connection, mut server) = connect().await;
        let long = vec![b'x'; 16 << 20];
        let respond = async {
            read_request(&mut server).await;
            server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n").await.unwrap();
            let mut rest = vec![0; long.len() - REQUEST.bytes.len()];
            server.read_exact(&mut rest).await.unwrap();
            server.write_all(b"ok").await.unwrap();
        };
        let request = RuntimeRequest { bytes: &long, id: b"" };
        let begun = AtomicBool::default();
        let (response, ()) = tokio::join!(connection.exchange(request, &begun), respond);
        assert_eq!((response.unwrap().status, connection.reuse()), (StatusCode::OK, Reuse::No));
    }

    #[tokio::test]
    async fn an_end_before_or_within_the_response_is_told_apart() {
        for (sent, is_before, has_begun) in [
            ("", true, false),
            ("HTTP/1.1 100 Continue\r\n\r\n", true, false),
            ("HTTP/1.1 200 OK\r\nContent-Le", true, false),
            ("garbage\r\n\r\n", false, false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", false, true),
        ] {
            let (mut connection, mut server) = connect().await;
            let respond = async move {
                read_request(&mut server).await;
                server.write_all(sent.as_bytes()).await.unwrap();
            };
            let begun = AtomicBool::default();
            let (result, ()) = tokio::join!(connection.exchange(REQUEST, &begun), respond);
            assert_eq!(matches!(result, Err(ExchangeError::BeforeResponse(_))), is_before, "{sent}");
            assert_eq!(begun.into_inner(), has_begun, "{sent}");
        }
    }
}
