//! Certificates that tests issue, and a client that trusts no others. The client is hyper's and speaks the version of
//! HTTP that the handshake agrees on.

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

use crate::Response;

/// A certificate authority, with a folder for its certificates.
pub struct CertificateAuthority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: tempfile::TempDir,
}

/// The files that a service reads a certificate from.
#[derive(Clone)]
pub struct CertificateFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl CertificateAuthority {
    pub fn generate() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // With the same name as its certificates, it would look like one of them.
        params.distinguished_name.push(DnType::CommonName, "the tests' authority");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Self { issuer, folder: tempfile::tempdir().unwrap() }
    }

    /// The file with the authority's own certificate.
    pub fn roots(&self) -> PathBuf {
        let roots = self.folder.path().join("roots.pem");
        std::fs::write(&roots, self.issuer.pem()).unwrap();
        roots
    }

    /// A new certificate for these names, in files of that name; also as DER.
    pub fn issue(&self, file: &str, names: &[&str]) -> (CertificateFiles, Vec<u8>) {
        self.issue_with(file, names, |_| {})
    }

    pub fn issue_with(
        &self,
        file: &str,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> (CertificateFiles, Vec<u8>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let path = |ending: &str| self.folder.path().join(format!("{file}.{ending}"));
        let pair = CertificateFiles { certificate: path("crt"), key: path("key") };
        std::fs::write(&pair.certificate, certificate.pem()).unwrap();
        std::fs::write(&pair.key, key.serialize_pem()).unwrap();
        (pair, certificate.der().to_vec())
    }

    /// A client that offers these protocols by ALPN.
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

impl CertificateFiles {
    /// Replaces these files by those of another certificate, each atomically.
    pub fn replace_with(&self, other: &Self) {
        for (from, to) in [(&other.certificate, &self.certificate), (&other.key, &self.key)] {
            replace_file(to, &std::fs::read(from).unwrap());
        }
    }
}

/// Replaces a file atomically.
pub fn replace_file(file: &Path, bytes: &[u8]) {
    let beside = file.with_extension("new");
    std::fs::write(&beside, bytes).unwrap();
    std::fs::rename(beside, file).unwrap();
}

/// A connection with TLS, driven in the background by a separate Tokio runtime.
pub struct TlsClient {
    runtime: tokio::runtime::Runtime,
    sender: Sender,
    /// The server's certificate.
    pub certificate: Vec<u8>,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2Client(http2::SendRequest<Full<Bytes>>),
}

impl TlsClient {
    /// Connects to a server that must have a certificate for that name.
    pub fn connect(address: SocketAddr, name: &str, client: &Arc<ClientConfig>) -> Result<Self, std::io::Error> {
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
                    Sender::Http2Client(sender)
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

    /// The response to a request, with its version of HTTP.
    pub fn send(&mut self, request: hyper::Request<Full<Bytes>>) -> (hyper::Version, Response) {
        let sender = &mut self.sender;
        self.runtime.block_on(async {
            let response: hyper::Response<Incoming> = match sender {
                Sender::Http1(sender) => {
                    sender.ready().await.unwrap();
                    sender.send_request(request).await.unwrap()
                }
                Sender::Http2Client(sender) => sender.send_request(request).await.unwrap(),
            };
            let (head, body) = response.into_parts();
            let headers = head.headers.iter();
            let headers = headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
            let body = body.collect().await.unwrap().to_bytes().into();
            (head.version, Response { status: head.status.as_u16(), headers, body })
        })
    }
}
