//! One connection to a runtime. The request that uses it reads and writes it in its own task: there is no switch
//! between tasks, and dropping the future closes the socket, so that the runtime stops.

use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::http1::{BodyReader, ResponseHead};
use crate::url::{RuntimeUrl, Target};

/// Room for what arrives: most responses fit.
const READ_BYTES: usize = 8 << 10;
/// An idle connection keeps no more.
const MAX_IDLE_BYTES: usize = 8 * READ_BYTES;

pub(crate) struct Connection {
    stream: Box<dyn Stream>,
    /// What has arrived and was not taken yet.
    arrived: BytesMut,
    /// Whether another request may follow.
    is_open: bool,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A complete response, whatever its status.
pub(crate) struct RuntimeResponse {
    pub(crate) status: StatusCode,
    /// In seconds.
    pub(crate) retry_after: Option<u64>,
    pub(crate) body: Bytes,
}

/// Why there is no complete response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    #[error("there is no response: {0}")]
    BeforeResponse(#[source] io::Error),
    #[error("the response is not complete: {0}")]
    WithinResponse(#[source] io::Error),
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
        Ok(Self { stream, arrived: BytesMut::new(), is_open: true })
    }

    /// Whether an idle connection can still be used: the runtime has neither closed it nor sent anything.
    pub(crate) async fn is_usable(&mut self) -> bool {
        let mut byte = [0];
        poll_fn(|context| {
            let read = Pin::new(&mut self.stream).poll_read(context, &mut ReadBuf::new(&mut byte));
            Poll::Ready(read.is_pending())
        })
        .await
    }

    /// Sends a whole request, and receives its response. `begun` is set once that begins to arrive.
    pub(crate) async fn exchange(
        &mut self,
        request: &[u8],
        begun: &AtomicBool,
    ) -> Result<RuntimeResponse, ExchangeError> {
        self.is_open = false;
        let mut unsent = request;
        let mut received = self.transfer(&mut unsent).await.map_err(ExchangeError::BeforeResponse)?;
        if received == 0 {
            return Err(ExchangeError::BeforeResponse(closed()));
        }
        begun.store(true, Ordering::Relaxed);
        let head = loop {
            let head = ResponseHead::take(&mut self.arrived);
            if let Some(head) = head.map_err(|error| ExchangeError::WithinResponse(error.into()))? {
                break head;
            }
            if received == 0 {
                return Err(ExchangeError::WithinResponse(closed()));
            }
            received = self.transfer(&mut unsent).await.map_err(ExchangeError::WithinResponse)?;
        };
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
        self.is_open = head.keeps_alive && unsent.is_empty() && self.arrived.is_empty();
        if body.len() > MAX_IDLE_BYTES {
            self.arrived = BytesMut::new();
        }
        Ok(RuntimeResponse { status: head.status, retry_after: head.retry_after, body })
    }

    pub(crate) fn is_open(&self) -> bool {
        self.is_open
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
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

    /// A connection to a server that does what it is told.
    async fn connect() -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url: RuntimeUrl = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let (connection, accepted) = tokio::join!(Connection::open(&url, None), listener.accept());
        (connection.unwrap(), accepted.unwrap().0)
    }

    async fn read_request(server: &mut TcpStream) {
        let mut request = vec![0; REQUEST.len()];
        server.read_exact(&mut request).await.unwrap();
    }

    #[tokio::test]
    async fn a_connection_is_used_again_until_the_runtime_closes_it() {
        let (mut connection, mut server) = connect().await;
        for body in ["one", "three"] {
            let respond = async {
                read_request(&mut server).await;
                let head = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
                for piece in [head, &format!("{:x}\r\n", body.len()), body, "\r\n0", "\r\n\r\n"] {
                    server.write_all(piece.as_bytes()).await.unwrap();
                    tokio::task::yield_now().await;
                }
            };
            let begun = AtomicBool::default();
            let (response, ()) = tokio::join!(connection.exchange(REQUEST, &begun), respond);
            assert_eq!(response.unwrap().body, body);
            assert!(begun.into_inner() && connection.is_open() && connection.is_usable().await);
        }
        drop(server);
        connection.stream.read_u8().await.unwrap_err();
        assert!(!connection.is_usable().await);
    }

    #[tokio::test]
    async fn what_follows_a_response_makes_a_connection_useless() {
        let (mut connection, mut server) = connect().await;
        server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxHTTP/1.1 200 OK\r\n").await.unwrap();
        let response = connection.exchange(REQUEST, &AtomicBool::default()).await.unwrap();
        assert_eq!((response.body.as_ref(), connection.is_open()), (b"x".as_slice(), false));
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
        let begun = AtomicBool::default();
        let (response, ()) = tokio::join!(connection.exchange(&long, &begun), refuse);
        assert_eq!((response.unwrap().status, connection.is_open()), (StatusCode::PAYLOAD_TOO_LARGE, false));
    }

    #[tokio::test]
    async fn an_end_before_or_within_the_response_is_told_apart() {
        for (sent, is_before) in [
            ("", true),
            ("HTTP/1.1 200 OK\r\nContent-Le", false),
            ("garbage\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", false),
        ] {
            let (mut connection, mut server) = connect().await;
            let respond = async move {
                read_request(&mut server).await;
                server.write_all(sent.as_bytes()).await.unwrap();
            };
            let begun = AtomicBool::default();
            let (result, ()) = tokio::join!(connection.exchange(REQUEST, &begun), respond);
            assert_eq!(matches!(result, Err(ExchangeError::BeforeResponse(_))), is_before, "{sent}");
            assert_eq!(begun.into_inner(), !sent.is_empty(), "{sent}");
        }
    }
}
