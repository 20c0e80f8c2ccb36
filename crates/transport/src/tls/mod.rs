//! TLS for listeners without a proxy in front: the handshake and ALPN. Plaintext HTTP is detected, so that the client gets
//! an explanation.

mod certificates;

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring::{Ticketer, default_provider};
use rustls::version::{TLS12, TLS13};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

pub use self::certificates::{CertificateError, CertificateFiles, Certificates};

const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";
/// The first byte of every TLS connection: the content type of a handshake record.
const HANDSHAKE_RECORD: u8 = 0x16;

#[derive(Clone)]
pub struct Tls(TlsAcceptor);

impl Tls {
    /// Each handshake uses the current certificates.
    pub fn with_certificates(certificates: Arc<Certificates>) -> Result<Self, rustls::Error> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&TLS13, &TLS12])?
            .with_no_client_auth()
            .with_cert_resolver(certificates);
        config.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
        // Tickets let clients resume without server-side state.
        config.ticketer = Ticketer::new()?;
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    pub(crate) async fn accept(&self, socket: TcpStream) -> std::io::Result<Accepted> {
        let mut first = [0; 1];
        match socket.peek(&mut first).await? {
            1 if first[0] != HANDSHAKE_RECORD => Ok(Accepted::Plaintext(socket)),
            _ => {
                let stream = self.0.accept(socket).await?;
                let is_http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP2);
                Ok(Accepted::Encrypted { stream: Box::new(stream), is_http2 })
            }
        }
    }
}

pub(crate) enum Accepted {
    Encrypted { stream: Box<TlsStream<TcpStream>>, is_http2: bool },
    Plaintext(TcpStream),
}
