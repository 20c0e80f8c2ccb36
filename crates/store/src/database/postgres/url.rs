//! The URL of a PostgreSQL server.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

/// A URL in libpq's format: `postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=verify-full`. Of several hosts, separated
/// by commas, one that accepts writes is used. Displayed without user and password.
#[derive(Debug, Clone)]
pub struct PostgresUrl {
    pub(crate) config: Box<Config>,
    pub(crate) tls_mode: TlsMode,
    pub(crate) roots: Option<PathBuf>,
}

/// libpq's `sslmode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TlsMode {
    /// No TLS.
    Disable,
    /// TLS if the server has it, with any certificate.
    Prefer,
    /// TLS with any certificate.
    Require,
    /// A trusted certificate for any name.
    VerifyCa,
    /// A trusted certificate for the host's name.
    VerifyFull,
}

impl TlsMode {
    const WORDS: [(&str, Self); 5] = [
        ("disable", Self::Disable),
        ("prefer", Self::Prefer),
        ("require", Self::Require),
        ("verify-ca", Self::VerifyCa),
        ("verify-full", Self::VerifyFull),
    ];
}

/// Does not contain the URL, which may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PostgresUrlError(String);

impl FromStr for PostgresUrl {
    type Err = PostgresUrlError;

    fn from_str(text: &str) -> Result<Self, PostgresUrlError> {
        if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
            return Err(PostgresUrlError("it must begin with postgres://".into()));
        }
        let (place, query) = text.split_once('?').unwrap_or((text, ""));
        let authority = place.split_once("://").map_or(place, |(_, rest)| rest.split('/').next().unwrap_or(rest));
        if authority.matches('@').count() > 1 {
            return Err(PostgresUrlError(
                "it has more than one @; write an @ of a user name or password as %40".into(),
            ));
        }
        let (mut tls_mode, mut roots, mut rest) = (TlsMode::Prefer, None, Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("sslmode", word)) => {
                    let known = TlsMode::WORDS.into_iter().find(|(known, _)| *known == word);
                    let (_, known) = known.ok_or_else(|| {
                        let words = TlsMode::WORDS.map(|(word, _)| word).join(", ");
                        PostgresUrlError(format!("its sslmode is none of {words}"))
                    })?;
                    tls_mode = known;
                }
                Some(("sslrootcert", "system")) => {}
                Some(("sslrootcert", path)) => roots = Some(PathBuf::from(decoded(path)?)),
                _ => rest.push(pair),
            }
        }
        let text = if rest.is_empty() { place.to_owned() } else { format!("{place}?{}", rest.join("&")) };
        let mut config = Config::from_str(&text).map_err(|error| PostgresUrlError(super::error_chain(&error)))?;
        if config.get_hosts().is_empty() {
            return Err(PostgresUrlError("it has no host".into()));
        }
        config.ssl_mode(match tls_mode {
            TlsMode::Disable => SslMode::Disable,
            TlsMode::Prefer => SslMode::Prefer,
            _ => SslMode::Require,
        });
        // A read-only server may lag behind, but a revoked key must be refused from the next request on.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        if config.get_application_name().is_none() {
            config.application_name("adriaticum");
        }
        Ok(Self { config: Box::new(config), tls_mode, roots })
    }
}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("postgres://")?;
        let ports = self.config.get_ports();
        for (at, host) in self.config.get_hosts().iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
            match host {
                Host::Tcp(name) => write!(f, "{comma}{name}:{port}")?,
                Host::Unix(path) => write!(f, "{comma}{}:{port}", path.display())?,
            }
        }
        self.config.get_dbname().map_or(Ok(()), |name| write!(f, "/{name}"))
    }
}

fn decoded(value: &str) -> Result<String, PostgresUrlError> {
    let text = percent_encoding::percent_decode_str(value).decode_utf8();
    text.map(Into::into).map_err(|_| PostgresUrlError("its sslrootcert is not UTF-8".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed_like_libpq_and_shown_without_secrets() {
        let cases = [
            ("postgres://ada:secret@db.example/usage", "postgres://db.example:5432/usage", TlsMode::Prefer),
            ("postgresql://ada@a:1,b:2/usage?sslmode=verify-full", "postgres://a:1,b:2/usage", TlsMode::VerifyFull),
            ("postgres://ada@db/u?sslmode=disable&connect_timeout=3", "postgres://db:5432/u", TlsMode::Disable),
            ("postgres:///u?host=/run/postgresql&user=ada", "postgres:///run/postgresql:5432/u", TlsMode::Prefer),
        ];
        for (text, shown, tls_mode) in cases {
            let url: PostgresUrl = text.parse().unwrap();
            assert_eq!((url.to_string(), url.tls_mode), (shown.to_owned(), tls_mode), "{text}");
        }
        let url: PostgresUrl = "postgres://a/b?sslmode=verify-ca&sslrootcert=%2Fetc%2Fca.pem".parse().unwrap();
        assert_eq!(url.roots, Some("/etc/ca.pem".into()));
    }

    #[test]
    fn unusable_urls_are_refused_with_a_reason() {
        for (text, reason) in [
            ("postgres://a/b?sslmode=maybe", "sslmode"),
            ("postgres://a/b?colour=red", "colour"),
            ("postgres:///b", "no host"),
            ("postgres://a:port/b", "port"),
            ("postgres://ada:sec@ret@db/u", "%40"),
        ] {
            let refusal = text.parse::<PostgresUrl>().unwrap_err().to_string();
            assert!(refusal.contains(reason), "{text}: {refusal}");
        }
    }
}
