//! Certificates of the tests' own making, and a client that trusts nobody else. It is hyper's, and speaks whichever HTTP
//! the handshake agrees on.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::Answer;

/// Somebody who makes certificates, and a folder to keep them in.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: tempfile::TempDir,
}

/// Where a certificate is served from.
#[derive(Clone)]
pub struct Pair {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    pub fn generate() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Of the same name as its certificates it would seem to be one of them.
        params.distinguished_name.push(DnType::CommonName, "the tests' authority");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Self { issuer, folder: tempfile::tempdir().unwrap() }
    }

    /// Where the authority's own certificate is.
    pub fn roots(&self) -> PathBuf {
        let roots = self.folder.path().join("roots.pem");
        std::fs::write(&roots, self.issuer.pem()).unwrap();
        roots
    }

    /// A new certificate for those names, in files that are called so. Gives the certificate itself, too.
    pub fn certify(&self, file: &str, names: &[&str]) -> (Pair, Vec<u8>) {
        self.certify_as(file, names, |_| {})
    }

    pub fn certify_as(
        &self,
        file: &str,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> (Pair, Vec<u8>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let path = |ending: &str| self.folder.path().join(format!("{file}.{ending}"));
        let pair = Pair { certificate: path("crt"), key: path("key") };
        std::fs::write(&pair.certificate, certificate.pem()).unwrap();
        std::fs::write(&pair.key, key.serialize_pem()).unwrap();
        (pair, certificate.der().to_vec())
    }

    /// A client that offers these protocols, and none if there are none.
    pub fn client(&self, protocols: &[&str]) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

impl Pair {
    /// Puts the files of another pair in the place of these, each at once.
    pub fn replace_with(&self, other: &Self) {
        for (from, to) in [(&other.certificate, &self.certificate), (&other.key, &self.key)] {
            replace(to, &std::fs::read(from).unwrap());
        }
    }
}

/// Puts a file in the place of another.
pub fn replace(file: &Path, bytes: &[u8]) {
    let beside = file.with_extension("new");
    std::fs::write(&beside, bytes).unwrap();
    std::fs::rename(beside, file).unwrap();
}

/// A connection with TLS, driven in the background of the runtime that it was opened on.
pub struct Secured {
    runtime: tokio::runtime::Runtime,
    sender: Sender,
    /// The certificate that was served.
    pub certificate: Vec<u8>,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Secured {
    /// Shakes hands with whoever is there, who must be that name; or says why not.
    pub fn to(address: SocketAddr, name: &str, client: &Arc<ClientConfig>) -> Result<Self, std::io::Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let opened = runtime.block_on(async {
            let socket = TcpStream::connect(address).await?;
            let stream = TlsConnector::from(client.clone()).connect(name, socket).await?;
            let certificate = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
            let sender = match stream.get_ref().1.alpn_protocol() {
                Some(b"h2") => {
                    let (sender, connection) =
                        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
                    tokio::spawn(connection);
                    Sender::Http2(sender)
                }
                _ => {
                    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
                    tokio::spawn(connection);
                    Sender::Http1(sender)
                }
            };
            Ok::<_, std::io::Error>((sender, certificate))
        });
        opened.map(|(sender, certificate)| Self { runtime, sender, certificate })
    }

    /// The answer to a request, with the version of HTTP that it came by.
    pub fn send(&mut self, request: hyper::Request<Full<Bytes>>) -> (hyper::Version, Answer) {
        let sender = &mut self.sender;
        self.runtime.block_on(async {
            let response: hyper::Response<Incoming> = match sender {
                Sender::Http1(sender) => {
                    sender.ready().await.unwrap();
                    sender.send_request(request).await.unwrap()
                }
                Sender::Http2(sender) => sender.send_request(request).await.unwrap(),
            };
            let (head, body) = response.into_parts();
            let headers = head.headers.iter();
            let headers = headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
            let body = body.collect().await.unwrap().to_bytes().into();
            (head.version, Answer { status: head.status.as_u16(), headers, body })
        })
    }
}
