//! The server's certificates: loaded from files, chosen by server name (SNI), and reloaded when the files change. A
//! reload replaces all of them or none: a broken file never replaces a working certificate.

use std::convert::Infallible;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::RwLock;
use rustls::client::verify_server_name;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use x509_cert::der::Decode;

const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// A certificate with its chain, and its key: two PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate first, then its chain.
    pub certificate: PathBuf,
    pub key: PathBuf,
}

#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", file.display())]
pub struct CertificateError {
    file: PathBuf,
    reason: String,
}

#[derive(Debug)]
pub struct Certificates {
    files: Vec<CertificateFiles>,
    current: RwLock<Arc<[Certificate]>>,
}

impl Certificates {
    /// The first certificate is the default for clients without SNI or with an unknown name.
    pub fn load(files: Vec<CertificateFiles>) -> Result<Arc<Self>, CertificateError> {
        let current = RwLock::new(load_all(&files)?);
        Ok(Arc::new(Self { files, current }))
    }

    /// Keeps the current ones if the files cannot be used, and logs why.
    pub fn reload(&self) {
        match load_all(&self.files) {
            Ok(loaded) => {
                let until = loaded.iter().map(|each| each.expiry).min().map(humantime::format_rfc3339_seconds);
                *self.current.write() = loaded;
                tracing::info!(until = until.map(tracing::field::display), "the certificates were reloaded");
            }
            Err(error) => tracing::error!(%error, "the certificates cannot be reloaded; the current ones stay in use"),
        }
    }

    /// Reloads whenever the files have changed; never returns.
    pub async fn watch(self: Arc<Self>) -> Infallible {
        let (mut loaded, mut seen) = (self.stamps(), Vec::new());
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let certificates = self.clone();
            // On a blocking thread: the files may be on a network file system.
            let Ok(now) = tokio::task::spawn_blocking(move || certificates.stamps()).await else { continue };
            // Certificate and key are written one after the other: wait until the files are stable.
            if now != loaded && now == seen {
                let certificates = self.clone();
                let _ = tokio::task::spawn_blocking(move || certificates.reload()).await;
                loaded.clone_from(&now);
            }
            seen = now;
        }
    }

    pub fn cover(&self, host: &str) -> bool {
        self.current().iter().any(|each| each.is_for(host))
    }

    /// Each certificate's file, and when it expires.
    pub fn expiries(&self) -> Vec<(PathBuf, SystemTime)> {
        let files = self.files.iter().map(|files| files.certificate.clone());
        files.zip(self.current().iter().map(|each| each.expiry)).collect()
    }

    fn current(&self) -> Arc<[Certificate]> {
        self.current.read().clone()
    }

    fn stamps(&self) -> Vec<Option<Stamp>> {
        self.files.iter().flat_map(|files| [&files.certificate, &files.key]).map(|file| stamp(file)).collect()
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let current = self.current();
        let named = hello.server_name().and_then(|name| current.iter().find(|each| each.is_for(name)));
        named.or(current.first()).map(|each| each.signed.clone())
    }
}

/// Modification time, size and inode, which change with the file.
type Stamp = (Option<SystemTime>, u64, u64);

fn stamp(file: &Path) -> Option<Stamp> {
    let to_stamp = |metadata: Metadata| (metadata.modified().ok(), metadata.len(), metadata.ino());
    std::fs::metadata(file).ok().map(to_stamp)
}

#[derive(Debug)]
struct Certificate {
    signed: Arc<CertifiedKey>,
    expiry: SystemTime,
}

impl Certificate {
    fn load(files: &CertificateFiles) -> Result<Self, CertificateError> {
        let wrong = |file: &Path, reason: String| CertificateError { file: file.to_owned(), reason };
        let file = &files.certificate;
        let chain = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let chain = chain.map_err(|error| wrong(file, error.to_string()))?;
        let Some(first) = chain.first() else { return Err(wrong(file, "there is no certificate in it".into())) };
        let parsed = x509_cert::Certificate::from_der(first).map_err(|error| wrong(file, error.to_string()))?;
        let expiry = parsed.tbs_certificate.validity.not_after.to_system_time();
        let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| wrong(&files.key, error.to_string()))?;
        let signed = CertifiedKey::from_der(chain, key, &default_provider()).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                wrong(&files.key, format!("it is not the key of the certificate in {}", file.display()))
            }
            other => wrong(&files.key, other.to_string()),
        })?;
        Ok(Self { signed: Arc::new(signed), expiry })
    }

    fn is_for(&self, host: &str) -> bool {
        let Some(certificate) = self.signed.cert.first() else { return false };
        let (Ok(parsed), Ok(name)) = (ParsedCertificate::try_from(certificate), ServerName::try_from(host)) else {
            return false;
        };
        verify_server_name(&parsed, &name).is_ok()
    }
}

fn load_all(files: &[CertificateFiles]) -> Result<Arc<[Certificate]>, CertificateError> {
    files.iter().map(Certificate::load).collect()
}
