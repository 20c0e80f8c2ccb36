//! The host that requests must name. Pure.

use std::net::IpAddr;

use http::{header, request::Parts, uri::Authority};

const LOOPBACK_NAME: &str = "localhost";

/// The host that requests must name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostName(Host);

impl HostName {
    pub(crate) fn new(host: &str) -> Self {
        Self(Host::parse(host))
    }

    /// Whether only programs on the same machine reach it.
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
        // The target's authority (HTTP/2, absolute form) counts as Host; where both are given, both must match.
        let in_header = header.map(|value| value.to_str().is_ok_and(|text| self.matches(text)));
        let in_target = head.uri.authority().map(|authority| self.matches(authority.as_str()));
        matches!((in_header, in_target), (Some(true), None | Some(true)) | (None, Some(true)))
    }

    fn matches(&self, authority: &str) -> bool {
        authority.parse::<Authority>().is_ok_and(|authority| {
            // An empty port (`localhost:`) means the scheme's default.
            let port = authority.as_str().strip_prefix(authority.host());
            let plain = port.is_some_and(|port| matches!(port, "" | ":") || is_port(port));
            plain && Host::parse(authority.host()) == self.0
        })
    }
}

/// Whether it is a colon and a port's number.
fn is_port(text: &str) -> bool {
    text.strip_prefix(':')
        .is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok())
}

/// A host without its port. All loopback names are equal.
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
                name if name == LOOPBACK_NAME => Self::Loopback,
                name => Self::Name(name),
            },
        }
    }
}
