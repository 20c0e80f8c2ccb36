//! TLS for those without a proxy in front: the handshake, and what it agrees on. Whoever speaks HTTP in the clear to an
//! address that speaks TLS is told so.

mod certificates;

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring::{Ticketer, default_provider};
use rustls::version::{TLS12, TLS13};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

pub use self::certificates::{CertificateFiles, Certificates, UnusableCertificate};

const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";
/// What every TLS connection begins with: the mark of a handshake.
const HANDSHAKE: u8 = 0x16;

/// TLS as a listener speaks it.
#[derive(Clone)]
pub struct Tls(TlsAcceptor);

impl Tls {
    /// With these certificates, whichever are in use at the time of a handshake.
    pub fn with(certificates: Arc<Certificates>) -> Result<Self, rustls::Error> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&TLS13, &TLS12])?
            .with_no_client_auth()
            .with_cert_resolver(certificates);
        config.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
        // Clients that come back need no second handshake, and we keep nothing for it.
        config.ticketer = Ticketer::new()?;
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    /// Shakes hands, unless it is not TLS that the client speaks.
    pub(crate) async fn accept(&self, socket: TcpStream) -> std::io::Result<Accepted> {
        let mut first = [0; 1];
        match socket.peek(&mut first).await? {
            1 if first[0] != HANDSHAKE => Ok(Accepted::InTheClear(socket)),
            _ => {
                let stream = self.0.accept(socket).await?;
                let http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP2);
                Ok(Accepted::Encrypted { stream: Box::new(stream), http2 })
            }
        }
    }
}

/// What a connection to an address with TLS turns out to be.
pub(crate) enum Accepted {
    Encrypted { stream: Box<TlsStream<TcpStream>>, http2: bool },
    InTheClear(TcpStream),
}
