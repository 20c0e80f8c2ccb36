//! One connection to a runtime, driven by the request that uses it.
//!
//! hyper separates a connection's driver from its sender so that another task can drive it. Here the same task polls
//! both: there is no switch between tasks per request, and dropping the future closes the socket, so that the runtime
//! stops.

use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::url::{RuntimeUrl, Target};

/// Far above 512 tokens of anything.
const MAX_RESPONSE_BYTES: usize = 4 << 20;

pub(crate) struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    /// Boxed, because it is large and futures that hold it are moved.
    /// `None` once the connection is closed. Dropping it wakes the sender.
    driver: Option<Box<Driver>>,
}

type Driver = http1::Connection<TokioIo<Box<dyn Stream>>, Full<Bytes>>;

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A complete response, whatever its status.
pub(crate) struct RuntimeResponse {
    pub(crate) status: StatusCode,
    /// In seconds. 0 if the header is a date, which no runtime sends.
    pub(crate) retry_after: Option<u64>,
    pub(crate) body: Bytes,
}

/// Why there is no complete response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    #[error("the connection was closed before a response: {0}")]
    BeforeResponse(#[source] hyper::Error),
    /// Or the response is too large.
    #[error("the response was cut off: {0}")]
    WithinResponse(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Connection {
    /// Connects to the given address of the host, or to any.
    pub(crate) async fn open(url: &RuntimeUrl, address: Option<IpAddr>) -> Result<Self, std::io::Error> {
        let stream: Box<dyn Stream> = match &url.target {
            Target::Unix(path, peer) => Box::new(unix_socket::connect(path, *peer).await?),
            Target::Tcp { tls, host, port } => {
                let socket = match address {
                    Some(address) => TcpStream::connect((address, *port)).await?,
                    None => TcpStream::connect((host.as_str(), *port)).await?,
                };
                socket.set_nodelay(true)?;
                if *tls {
                    let name = rustls::pki_types::ServerName::try_from(host.clone()).map_err(std::io::Error::other)?;
                    Box::new(tls_connector()?.connect(name, socket).await?)
                } else {
                    Box::new(socket)
                }
            }
        };
        let (sender, driver) = http1::handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
        Ok(Self { sender, driver: Some(Box::new(driver)) })
    }

    /// Whether an idle connection can still be used. The runtime may have closed it.
    pub(crate) async fn is_usable(&mut self) -> bool {
        let ready = drive(&mut self.driver, self.sender.ready()).await;
        ready.is_ok() && self.is_open()
    }

    /// `begun` is set once the response begins to arrive.
    pub(crate) async fn exchange(
        &mut self,
        request: Request<Full<Bytes>>,
        begun: &AtomicBool,
    ) -> Result<RuntimeResponse, ExchangeError> {
        let sent = self.sender.send_request(request);
        let whole = async {
            let response = sent.await.map_err(ExchangeError::BeforeResponse)?;
            begun.store(true, Ordering::Relaxed);
            let status = response.status();
            let retry_after = response.headers().get(header::RETRY_AFTER);
            let retry_after =
                retry_after.map(|text| text.to_str().ok().and_then(|text| text.parse().ok()).unwrap_or(0));
            let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await;
            let body = body.map_err(ExchangeError::WithinResponse)?.to_bytes();
            Ok(RuntimeResponse { status, retry_after, body })
        };
        drive(&mut self.driver, whole).await
    }

    pub(crate) fn is_open(&self) -> bool {
        self.driver.is_some()
    }
}

/// Polls the driver and a future that depends on it. The driver goes first, so that a closed connection is noticed
/// before anything is sent.
async fn drive<T>(driver: &mut Option<Box<Driver>>, wanted: impl Future<Output = T>) -> T {
    let mut wanted = pin!(wanted);
    let mut polled_before = false;
    poll_fn(|context| {
        loop {
            if driver.as_mut().is_some_and(|driver| Pin::new(driver).poll(context).is_ready()) {
                *driver = None;
            }
            if let Poll::Ready(output) = wanted.as_mut().poll(context) {
                return Poll::Ready(output);
            }
            // The first poll may have queued a request, which the driver must send at once. Later the connection wakes
            // us, and one round is enough.
            if std::mem::replace(&mut polled_before, true) {
                return Poll::Pending;
            }
        }
    })
    .await
}

/// One configuration for all members, made at the first use.
fn tls_connector() -> Result<TlsConnector, std::io::Error> {
    static CONFIG: OnceLock<Arc<rustls::ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(config.clone().into());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(std::io::Error::other)?
        .with_root_certificates(tls_roots::load())
        .with_no_client_auth();
    Ok(CONFIG.get_or_init(|| Arc::new(config)).clone().into())
}
