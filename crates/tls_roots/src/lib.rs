//! The root certificates that the system trusts, as a rustls store.

use rustls::RootCertStore;

/// Reads the system's certificates anew. Those that cannot be parsed are left out, as other clients do: system stores
/// contain some. The store is empty if the system has none; then every handshake fails.
pub fn load() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}
