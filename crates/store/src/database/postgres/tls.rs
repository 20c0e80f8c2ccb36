//! TLS to the server, in the mode of its URL.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::StoreError;
use crate::database::postgres::url::{PostgresUrl, TlsMode};

pub(crate) fn connector(url: &PostgresUrl) -> Result<MakeRustlsConnect, StoreError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| StoreError::Certificates(error.to_string()))?;
    let verifier: Option<Arc<WebPkiServerVerifier>> = match url.tls_mode {
        TlsMode::Disable | TlsMode::Prefer | TlsMode::Require => None,
        TlsMode::VerifyCa | TlsMode::VerifyFull => {
            let roots = Arc::new(roots(url.roots.as_deref())?);
            let built = WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build();
            Some(built.map_err(|error| StoreError::Certificates(error.to_string()))?)
        }
    };
    let config = match verifier {
        Some(verifier) if url.tls_mode == TlsMode::VerifyFull => builder.with_webpki_verifier(verifier),
        verifier => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(RelaxedVerifier { verifier, provider }))
        }
    };
    Ok(MakeRustlsConnect::new(config.with_no_client_auth()))
}

/// The certificates of a file, or those that the system trusts.
fn roots(file: Option<&Path>) -> Result<RootCertStore, StoreError> {
    let mut roots = RootCertStore::empty();
    let Some(path) = file else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(roots);
    };
    let unreadable = |error: &dyn std::fmt::Display| StoreError::Certificates(format!("{}: {error}", path.display()));
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| unreadable(&error))? {
        roots.add(certificate.map_err(|error| unreadable(&error))?).map_err(|error| unreadable(&error))?;
    }
    Ok(roots)
}

/// Accepts the same as libpq in this mode: any certificate, or any name in a trusted one. Signatures are still checked: the
/// server must have the certificate's key.
#[derive(Debug)]
struct RelaxedVerifier {
    /// `None` if any certificate is accepted.
    verifier: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for RelaxedVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(verifier) = &self.verifier else { return Ok(ServerCertVerified::assertion()) };
        match verifier.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
