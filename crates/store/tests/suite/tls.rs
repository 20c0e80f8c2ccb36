//! TLS to the server: certificates are checked according to the URL.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use store::Store;
use testbed::Cluster;

use crate::database::TestDatabase;

/// A certificate authority.
fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

#[tokio::test]
async fn certificates_are_checked_according_to_the_url() {
    let cluster = Cluster::start(&[]);
    let (trusted, stranger) = (authority(), authority());
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap().signed_by(&key, &trusted).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (name, authority) in [("trusted", &trusted), ("stranger", &stranger)] {
        std::fs::write(folder.path().join(name), authority.pem()).unwrap();
    }
    let files = [("ssl_cert_file", certificate.pem()), ("ssl_key_file", key.serialize_pem())];
    for (setting, contents) in files {
        cluster.set(setting, cluster.keep(setting, &contents).to_str().unwrap());
    }
    cluster.set("ssl", "on");

    let url = cluster.create_database();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let by_name = |url: &str| url.replace("127.0.0.1", "localhost");
    let (trusted, stranger) =
        (format!("&sslrootcert={}", file("trusted")), format!("&sslrootcert={}", file("stranger")));
    let cases = [
        (url.clone(), "disable", "", Ok("f")),
        (url.clone(), "prefer", "", Ok("t")),
        (url.clone(), "require", "", Ok("t")),
        (url.clone(), "verify-ca", trusted.as_str(), Ok("t")),
        (by_name(&url), "verify-full", &trusted, Ok("t")),
        (url.clone(), "verify-full", &trusted, Err("not valid for name")),
        (by_name(&url), "verify-ca", &stranger, Err("invalid peer certificate")),
        (by_name(&url), "verify-full", &stranger, Err("invalid peer certificate")),
        (url.clone(), "verify-ca", "&sslrootcert=/nowhere", Err("/nowhere")),
    ];
    for (url, mode, more, expected) in cases {
        let what = format!("{mode}{more}");
        let name = format!("case_{}", what.len());
        let database = TestDatabase::at(&format!("{url}?sslmode={mode}{more}&application_name={name}"));
        match (Store::open(&database.database).await, expected) {
            (Ok(store), Ok(encrypted)) => {
                store.keys().count().await.unwrap();
                let seen = cluster.sql(
                    "postgres",
                    &format!(
                        "SELECT DISTINCT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
                         WHERE application_name = '{name}'"
                    ),
                );
                assert_eq!(seen, encrypted, "{what}");
            }
            (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{what}: {error}"),
            (Ok(_), Err(_)) => panic!("{what} trusts too much"),
            (Err(error), Ok(_)) => panic!("{what}: {error}"),
        }
    }
}
