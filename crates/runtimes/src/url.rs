//! A runtime's base URL.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use http::{HeaderValue, Uri};
use percent_encoding::percent_decode_str;
use unix_socket::Peer;
use url::{Host, Url};

use crate::key::RuntimeKey;

/// The base URL of an OpenAI-shaped runtime, such as `http://10.0.0.5:8000/v1`. A URL without a path means `/v1`; so
/// does the socket of a runtime on this machine, `unix:/path/to/socket`. A key may stand before the host, as in
/// `https://:KEY@llm.example/v1`; it is never part of the displayed text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeUrl {
    text: String,
    pub(crate) target: Target,
    pub(crate) host_header: HeaderValue,
    path: String,
    key: Option<RuntimeKey>,
}

/// The address to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    Tcp {
        tls: bool,
        /// Without the brackets of an IPv6 address.
        host: String,
        port: u16,
    },
    Unix(PathBuf, Peer),
}

impl RuntimeUrl {
    /// The socket of an engine that this process has started. A process of another user is not accepted there.
    pub fn own_engine(socket: &Path) -> Self {
        Self::unix(socket, Peer::ThisUser)
    }

    fn unix(socket: &Path, peer: Peer) -> Self {
        Self {
            text: format!("unix:{}", socket.display()),
            target: Target::Unix(socket.to_owned(), peer),
            host_header: HeaderValue::from_static("localhost"),
            path: "/v1".into(),
            key: None,
        }
    }

    pub(crate) fn key(&self) -> Option<&RuntimeKey> {
        self.key.as_ref()
    }

    /// `None` for an address or a Unix socket.
    pub(crate) fn host_name(&self) -> Option<&str> {
        match &self.target {
            Target::Tcp { host, .. } if host.parse::<IpAddr>().is_err() => Some(host),
            _ => None,
        }
    }

    pub(crate) fn path_of(&self, below: &str) -> Uri {
        // The path is that of a URL, so this succeeds.
        Uri::try_from(format!("{}{below}", self.path)).unwrap_or_default()
    }
}

impl fmt::Display for RuntimeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for RuntimeUrl {
    type Err = RuntimeUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(socket) = text.strip_prefix("unix:") {
            let socket = Path::new(socket);
            return match socket.is_absolute() {
                true => Ok(Self::unix(socket, Peer::Anyone)),
                false => Err(RuntimeUrlError("it has no absolute path after `unix:`")),
            };
        }
        let url = Url::parse(text).map_err(|_| RuntimeUrlError("it is not a URL such as http://10.0.0.5:8000/v1"))?;
        let tls = match url.scheme() {
            "http" => false,
            "https" => true,
            _ => return Err(RuntimeUrlError("it does not begin with http://, https:// or unix:")),
        };
        let key = key_in(&url)?;
        if url.query().is_some() || url.fragment().is_some() {
            return Err(RuntimeUrlError("it has a query or a fragment"));
        }
        let host = match url.host().ok_or(RuntimeUrlError("it has no host"))? {
            Host::Domain(name) => name.to_owned(),
            Host::Ipv4(address) => address.to_string(),
            Host::Ipv6(address) => address.to_string(),
        };
        let authority = &url[url::Position::BeforeHost..url::Position::AfterPort];
        let path = match url.path().trim_end_matches('/') {
            "" => "/v1",
            path => path,
        };
        Ok(Self {
            text: format!("{}://{authority}{path}", url.scheme()),
            target: Target::Tcp {
                tls,
                host,
                port: url.port_or_known_default().ok_or(RuntimeUrlError("it has no port"))?,
            },
            host_header: HeaderValue::from_str(authority)
                .map_err(|_| RuntimeUrlError("its host is not a host name"))?,
            path: path.to_owned(),
            key,
        })
    }
}

/// The key stands before the host, as user name or as password.
fn key_in(url: &Url) -> Result<Option<RuntimeKey>, RuntimeUrlError> {
    let key = match (url.username(), url.password()) {
        ("", None) => return Ok(None),
        (key, None | Some("")) | ("", Some(key)) => key,
        _ => {
            return Err(RuntimeUrlError("it has a user name and a password; give only a key, as in http://:KEY@host"));
        }
    };
    let unusable = RuntimeUrlError("its key has characters other than letters, digits and punctuation of ASCII");
    let key = percent_decode_str(key).decode_utf8().map_err(|_| unusable)?;
    key.parse().map(Some).map_err(|_| unusable)
}

/// Does not repeat the URL, which may contain a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RuntimeUrlError(&'static str);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed_and_normalized() {
        let cases = [
            ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1", "127.0.0.1", 8000, "127.0.0.1:8000"),
            ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1", "127.0.0.1", 8000, "127.0.0.1:8000"),
            ("http://LLM.example/api/v1/", "http://llm.example/api/v1", "llm.example", 80, "llm.example"),
            ("https://llm.example", "https://llm.example/v1", "llm.example", 443, "llm.example"),
            ("http://[::1]:9/v1", "http://[::1]:9/v1", "::1", 9, "[::1]:9"),
        ];
        for (text, shown, host, port, header) in cases {
            let url: RuntimeUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), shown, "{text}");
            let tls = text.starts_with("https");
            assert_eq!(url.target, Target::Tcp { tls, host: host.into(), port }, "{text}");
            assert_eq!(url.host_header, header, "{text}");
        }
        let socket: RuntimeUrl = "unix:/run/a.sock".parse().unwrap();
        assert_eq!(socket.target, Target::Unix("/run/a.sock".into(), Peer::Anyone));
        assert_eq!(socket.text, "unix:/run/a.sock");
        assert_eq!("http://a/v1".parse::<RuntimeUrl>().unwrap().path_of("/chat/completions"), "/v1/chat/completions");
    }

    #[test]
    fn invalid_urls_are_rejected_with_a_reason_and_without_secrets() {
        for text in [
            "", "localhost:8000", "ftp://a/v1", "http://", "http://user:secret@a/v1", "http://%20@a",
            "http://a/v1?x=1", "unix:", "unix:a",
        ] {
            let refusal = text.parse::<RuntimeUrl>().unwrap_err().to_string();
            assert!(refusal.starts_with("it") && !refusal.contains("secret"), "{text}: {refusal}");
        }
    }

    #[test]
    fn a_key_is_sent_and_never_shown() {
        for (text, key) in [
            ("http://Quagga@a:1/v1", "Quagga"),
            ("http://Quagga:@a:1/v1", "Quagga"),
            ("http://:Quagga@a:1/v1", "Quagga"),
            ("http://:Quagga%2F%40%3A@a:1", "Quagga/@:"),
        ] {
            let url: RuntimeUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), "http://a:1/v1");
            assert_eq!(url.host_header, "a:1");
            assert_eq!(url.key().unwrap().header(), &format!("Bearer {key}"));
            assert!(!format!("{url:?}").contains("Quagga"), "{url:?}");
        }
        assert_eq!("http://a:1/v1".parse::<RuntimeUrl>().unwrap().key(), None);
    }
}
