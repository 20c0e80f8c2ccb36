//! One connection to a runtime, driven by the request that uses it.
//!
//! hyper separates a connection's driver from its sender so that a task of its own can drive it. Here both stay together
//! and are polled by the same task: no hand-over between tasks per request, and dropping the future closes the socket,
//! which is how a runtime learns that its caller has gone.

use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use crate::url::{Place, RuntimeUrl};

/// The largest answer that is read: far above 512 tokens of anything.
const MAX_ANSWER_BYTES: usize = 4 << 20;

pub(crate) struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    /// Boxed, because a request's future holds the connection and is moved about.
    /// Gone once the connection has ended: what waits for it is told only then.
    driver: Option<Box<Driver>>,
}

type Driver = http1::Connection<TokioIo<Box<dyn Stream>>, Full<Bytes>>;

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A whole answer, whatever its status.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    /// Seconds after which to try again, if that was said. A date in their place, which no runtime sends, is the
    /// shortest time.
    pub(crate) retry_after: Option<u64>,
    pub(crate) body: Bytes,
}

/// Why there is no whole answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    /// Nothing of an answer has arrived.
    #[error("the connection broke before an answer: {0}")]
    BeforeResponse(#[source] hyper::Error),
    /// The answer broke off, or is too large.
    #[error("the answer broke off: {0}")]
    WithinResponse(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Connection {
    /// Connects to a runtime, at that one of its host's addresses if one is given.
    pub(crate) async fn open(url: &RuntimeUrl, address: Option<IpAddr>) -> Result<Self, std::io::Error> {
        let stream: Box<dyn Stream> = match &url.place {
            Place::Unix(path) => Box::new(UnixStream::connect(path).await?),
            Place::Tcp { tls, host, port } => {
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

    /// Whether a connection that lay idle can still be used; the runtime may have closed it meanwhile.
    pub(crate) async fn is_usable(&mut self) -> bool {
        let ready = drive(&mut self.driver, self.sender.ready()).await;
        ready.is_ok() && self.is_open()
    }

    /// Sends a request and reads the whole answer.
    pub(crate) async fn exchange(&mut self, request: Request<Full<Bytes>>) -> Result<Answer, ExchangeError> {
        let sent = self.sender.send_request(request);
        let whole = async {
            let response = sent.await.map_err(ExchangeError::BeforeResponse)?;
            let status = response.status();
            let retry_after = response.headers().get(header::RETRY_AFTER);
            let retry_after =
                retry_after.map(|text| text.to_str().ok().and_then(|text| text.parse().ok()).unwrap_or(0));
            let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
            let body = body.map_err(ExchangeError::WithinResponse)?.to_bytes();
            Ok(Answer { status, retry_after, body })
        };
        drive(&mut self.driver, whole).await
    }

    /// Whether it is worth keeping after an answer.
    pub(crate) fn is_open(&self) -> bool {
        self.driver.is_some()
    }
}

/// Waits for something that needs the connection to move, moving it first: so an end that came meanwhile is noticed
/// before anything is sent.
async fn drive<T>(driver: &mut Option<Box<Driver>>, wanted: impl Future<Output = T>) -> T {
    let mut wanted = pin!(wanted);
    let mut handed_over = false;
    poll_fn(|context| {
        loop {
            if driver.as_mut().is_some_and(|driver| Pin::new(driver).poll(context).is_ready()) {
                *driver = None;
            }
            if let Poll::Ready(output) = wanted.as_mut().poll(context) {
                return Poll::Ready(output);
            }
            // The first poll may have handed something over that is to be sent at once. Later on it is the connection
            // that wakes us, and one round is enough.
            if std::mem::replace(&mut handed_over, true) {
                return Poll::Pending;
            }
        }
    })
    .await
}

/// One TLS configuration for all members, with the system's trusted certificates.
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
