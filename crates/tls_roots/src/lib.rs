//! The system's trusted root certificates, as a rustls store.

use rustls::RootCertStore;

/// Reads the system's certificates. Omits those that cannot be parsed, like other clients: system stores contain some. The
/// store is empty if the system has none; then every handshake fails.
pub fn load() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}
