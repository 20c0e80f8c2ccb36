//! Values as text with their origins, and reading them as what they are.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use store::{Database, PostgresSettings};
use transport::CertificateFiles;
use url::Url;

use super::mask::mask;
use crate::error::CliError;

#[derive(Clone)]
pub(super) struct Value {
    pub(super) text: String,
    pub(super) origin: Origin,
}

#[derive(Clone)]
pub(super) enum Origin {
    Default,
    File(PathBuf),
    Environment(String),
    Flag,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Environment(name) => f.write_str(name),
            Self::Flag => f.write_str("a flag"),
        }
    }
}

/// Reads values as what they are; says which setting is wrong, where it was set, and why.
pub(super) struct Reader<'a>(pub(super) &'a BTreeMap<&'static str, Value>);

impl Reader<'_> {
    pub(super) fn text(&self, name: &str) -> &str {
        &self.0[name].text
    }

    pub(super) fn wrong(&self, name: &str, reason: &dyn fmt::Display) -> CliError {
        let value = &self.0[name];
        CliError::new(format!(
            "the setting `{name}` (from {}) is {:?}: {reason}",
            value.origin,
            mask(name, &value.text)
        ))
    }

    pub(super) fn list(&self, name: &str) -> impl Iterator<Item = &str> {
        self.text(name).split(',').map(str::trim).filter(|entry| !entry.is_empty())
    }

    pub(super) fn address(&self, name: &str) -> Result<SocketAddr, CliError> {
        SocketAddr::from_str(self.text(name))
            .map_err(|_| self.wrong(name, &"it must be an IP address and a port, such as 127.0.0.1:8080"))
    }

    pub(super) fn address_or_none(&self, name: &str) -> Result<Option<SocketAddr>, CliError> {
        if self.text(name) == "none" { Ok(None) } else { self.address(name).map(Some) }
    }

    pub(super) fn count(&self, name: &str) -> Result<usize, CliError> {
        let number = self.text(name).parse().ok().filter(|number| *number > 0);
        number.ok_or_else(|| self.wrong(name, &"it must be a whole number above 0"))
    }

    pub(super) fn threads(&self, name: &str) -> Result<usize, CliError> {
        match self.text(name) {
            "auto" => Ok(std::thread::available_parallelism().map_or(1, usize::from)),
            _ => self.count_or_auto(name),
        }
    }

    pub(super) fn count_or_auto(&self, name: &str) -> Result<usize, CliError> {
        self.count(name).map_err(|_| self.wrong(name, &"it must be auto, or a whole number above 0"))
    }

    pub(super) fn duration(&self, name: &str) -> Result<Duration, CliError> {
        let duration = humantime::parse_duration(self.text(name)).ok().filter(|duration| !duration.is_zero());
        duration.ok_or_else(|| self.wrong(name, &"it must be a time above 0, such as 30s, 5m or 90d"))
    }

    pub(super) fn switch(&self, name: &str) -> Result<bool, CliError> {
        match self.text(name) {
            "on" => Ok(true),
            "off" => Ok(false),
            _ => Err(self.wrong(name, &"it must be on or off")),
        }
    }

    /// A part of a whole.
    pub(super) fn part(&self, name: &str) -> Result<f64, CliError> {
        let part = self.text(name).parse().ok().filter(|part| (0.0..=1.0).contains(part));
        part.ok_or_else(|| self.wrong(name, &"it must be a number from 0 to 1"))
    }

    pub(super) fn endpoint(&self, name: &str) -> Result<Option<Url>, CliError> {
        let text = self.text(name);
        if text.is_empty() {
            return Ok(None);
        }
        let url = Url::parse(text).ok().filter(|url| ["http", "https"].contains(&url.scheme()) && url.has_host());
        url.map(Some).ok_or_else(|| self.wrong(name, &"it must be a URL such as http://localhost:4318"))
    }

    /// A time that may be none at all.
    pub(super) fn pause(&self, name: &str) -> Result<Duration, CliError> {
        let pause = humantime::parse_duration(self.text(name));
        pause.map_err(|_| self.wrong(name, &"it must be a time, such as 0s, 5s or 1m"))
    }
}

/// Certificates and keys, which come in pairs. Where TLS is spoken, base URLs must say so: cookies and forms go by them.
pub(super) fn certificate_files(reader: &Reader<'_>, with_console: bool) -> Result<Vec<CertificateFiles>, CliError> {
    let (certificates, keys) = (reader.list("tls.certificate"), reader.list("tls.key"));
    let (certificates, keys): (Vec<_>, Vec<_>) = (certificates.collect(), keys.collect());
    if certificates.len() != keys.len() {
        let reason = format!(
            "there must be as many keys as certificates in `tls.certificate`, which are {}",
            certificates.len()
        );
        return Err(reader.wrong("tls.key", &reason));
    }
    let base_urls = [Some("api.base_url"), with_console.then_some("console.base_url")];
    for name in base_urls.into_iter().flatten().filter(|_| !certificates.is_empty()) {
        if !reader.text(name).to_ascii_lowercase().starts_with("https://") {
            return Err(reader.wrong(name, &"it must begin with https://, because `tls.certificate` is set"));
        }
    }
    let pair =
        |(certificate, key)| CertificateFiles { certificate: PathBuf::from(certificate), key: PathBuf::from(key) };
    Ok(certificates.into_iter().zip(keys).map(pair).collect())
}

pub(super) fn database(reader: &Reader<'_>, data_dir: &Path) -> Result<Database, CliError> {
    match reader.text("database_url") {
        "" => Ok(Database::Sqlite(data_dir.join("adriaticum.db"))),
        url if url.starts_with("postgres://") || url.starts_with("postgresql://") => {
            postgres(reader, url).map(Database::Postgres)
        }
        url => match url.strip_prefix("sqlite:").map(|path| path.strip_prefix("//").unwrap_or(path)) {
            Some(path) if !path.is_empty() => Ok(Database::Sqlite(PathBuf::from(path))),
            _ => Err(reader.wrong("database_url", &"it must be sqlite:PATH or postgres://USER:PASSWORD@HOST/NAME")),
        },
    }
}

fn postgres(reader: &Reader<'_>, url: &str) -> Result<PostgresSettings, CliError> {
    Ok(PostgresSettings {
        url: url.parse().map_err(|error: store::UnusableDatabase| reader.wrong("database_url", &error))?,
        connections: reader.count("database.connections")?,
        timeout: reader.duration("database.timeout")?,
    })
}
