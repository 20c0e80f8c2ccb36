//! The certificates that TLS is spoken with: read from files, chosen by the name that a client asks for, and read again
//! when the files change. All are exchanged at once or none is: what cannot be used never takes the place of what can.

use std::convert::Infallible;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use rustls::client::verify_server_name;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use x509_cert::der::Decode;

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(2);

/// A certificate with its chain, and its key: two PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate first, then those that vouch for it.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Why a certificate or its key cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", file.display())]
pub struct UnusableCertificate {
    file: PathBuf,
    reason: String,
}

/// The certificates in use.
#[derive(Debug)]
pub struct Certificates {
    files: Vec<CertificateFiles>,
    in_use: RwLock<Arc<[Certificate]>>,
}

impl Certificates {
    /// Reads them for the first time. The first one is for whoever asks for no name, or one that none is for.
    pub fn open(files: Vec<CertificateFiles>) -> Result<Arc<Self>, UnusableCertificate> {
        let in_use = RwLock::new(read_all(&files)?);
        Ok(Arc::new(Self { files, in_use }))
    }

    /// Reads them again; if that fails, those in use stay, and the log says why.
    pub fn reload(&self) {
        match read_all(&self.files) {
            Ok(read) => {
                let until = read.iter().map(|each| each.expiry).min().map(humantime::format_rfc3339_seconds);
                *self.in_use.write().unwrap_or_else(PoisonError::into_inner) = read;
                tracing::info!(until = until.map(tracing::field::display), "the certificates were read again");
            }
            Err(error) => tracing::error!(%error, "the certificates cannot be used; those from before stay in use"),
        }
    }

    /// Reads them again whenever their files have changed; never ends by itself.
    pub async fn watch(self: Arc<Self>) -> Infallible {
        let (mut read, mut seen) = (self.stamps(), Vec::new());
        loop {
            tokio::time::sleep(LOOK).await;
            let certificates = self.clone();
            // On a thread that may block: the files may lie anywhere.
            let Ok(now) = tokio::task::spawn_blocking(move || certificates.stamps()).await else { continue };
            // Whoever exchanges them writes one after the other: not before they are left alone is there a pair.
            if now != read && now == seen {
                let certificates = self.clone();
                let _ = tokio::task::spawn_blocking(move || certificates.reload()).await;
                read.clone_from(&now);
            }
            seen = now;
        }
    }

    /// Whether one of them is for that host.
    pub fn cover(&self, host: &str) -> bool {
        self.in_use().iter().any(|each| each.is_for(host))
    }

    /// Each one's file, and when it expires.
    pub fn expiries(&self) -> Vec<(PathBuf, SystemTime)> {
        let files = self.files.iter().map(|files| files.certificate.clone());
        files.zip(self.in_use().iter().map(|each| each.expiry)).collect()
    }

    fn in_use(&self) -> Arc<[Certificate]> {
        self.in_use.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn stamps(&self) -> Vec<Option<Stamp>> {
        self.files.iter().flat_map(|files| [&files.certificate, &files.key]).map(|file| stamp(file)).collect()
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let in_use = self.in_use();
        let named = hello.server_name().and_then(|name| in_use.iter().find(|each| each.is_for(name)));
        named.or(in_use.first()).map(|each| each.signed.clone())
    }
}

/// What changes when a file does: its time, its size, and, where it was put in another's place, its number.
type Stamp = (Option<SystemTime>, u64, u64);

fn stamp(file: &Path) -> Option<Stamp> {
    let of = |metadata: Metadata| (metadata.modified().ok(), metadata.len(), metadata.ino());
    std::fs::metadata(file).ok().map(of)
}

#[derive(Debug)]
struct Certificate {
    signed: Arc<CertifiedKey>,
    expiry: SystemTime,
}

impl Certificate {
    fn read(files: &CertificateFiles) -> Result<Self, UnusableCertificate> {
        let wrong = |file: &Path, reason: String| UnusableCertificate { file: file.to_owned(), reason };
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

fn read_all(files: &[CertificateFiles]) -> Result<Arc<[Certificate]>, UnusableCertificate> {
    files.iter().map(Certificate::read).collect()
}
