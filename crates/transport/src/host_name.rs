//! The host that requests must name, compared purely.

use std::net::IpAddr;

use http::{header, request::Parts, uri::Authority};
use url::Url;

/// Parses a base URL: `http` or `https`, no query, no fragment.
pub fn parse_base_url(base_url: &str) -> Result<Url, BaseUrlError> {
    let url = Url::parse(base_url).map_err(|_| BaseUrlError("it is not a URL"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(BaseUrlError("it does not begin with http:// or https://"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(BaseUrlError("it has a query or a fragment"));
    }
    Ok(url)
}

/// The host that requests must name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostName(Host);

impl HostName {
    /// The host of a base URL that has no path, and its origin as browsers write it.
    pub fn of_site(base_url: &str) -> Result<(Self, String), BaseUrlError> {
        let url = parse_base_url(base_url)?;
        if url.path() != "/" {
            return Err(BaseUrlError("it has a path"));
        }
        Ok((Self::of(&url)?, url.origin().ascii_serialization()))
    }

    /// The host of a URL.
    pub fn of(url: &Url) -> Result<Self, BaseUrlError> {
        Ok(Self(Host::parse(url.host_str().ok_or(BaseUrlError("it has no host"))?)))
    }

    /// Whether only programs on the same machine can name it.
    pub fn is_loopback(&self) -> bool {
        self.0 == Host::Loopback
    }

    /// Whether a request names this host, and nothing else.
    pub fn is_named_by(&self, head: &Parts) -> bool {
        let mut headers = head.headers.get_all(header::HOST).iter();
        let header = headers.next();
        if headers.next().is_some() {
            return false;
        }
        // The target's own authority (HTTP/2, absolute form) counts as Host; where both are given, both must be ours.
        let in_header = header.map(|value| value.to_str().is_ok_and(|text| self.is(text)));
        let in_target = head.uri.authority().map(|authority| self.is(authority.as_str()));
        matches!((in_header, in_target), (Some(true), None | Some(true)) | (None, Some(true)))
    }

    fn is(&self, authority: &str) -> bool {
        authority.parse::<Authority>().is_ok_and(|authority| {
            // An empty port (`localhost:`) is the scheme's own.
            let port = authority.as_str().strip_prefix(authority.host());
            let plain = port.is_some_and(|port| matches!(port, "" | ":") || authority.port_u16().is_some());
            plain && Host::parse(authority.host()) == self.0
        })
    }
}

/// A host without its port. All loopback names are one.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    Loopback,
    Address(IpAddr),
    Name(String),
}

impl Host {
    fn parse(host: &str) -> Self {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        match bare.parse::<IpAddr>() {
            Ok(address) if address.to_canonical().is_loopback() => Self::Loopback,
            Ok(address) => Self::Address(address.to_canonical()),
            Err(_) => match host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase() {
                name if name == "localhost" => Self::Loopback,
                name => Self::Name(name),
            },
        }
    }
}

/// Why a base URL is not one that can be served under; the URL itself may hold a secret and is not repeated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BaseUrlError(pub &'static str);
