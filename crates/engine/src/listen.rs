//! Where the engine listens: a Unix socket, or a TCP port.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;

/// Written as `127.0.0.1:8090`, or as `unix:` and a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    Tcp(SocketAddr),
    /// A socket that serves only its owner and root.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix("unix:") {
            Some("") => Err("there is no path after `unix:`"),
            Some(path) => Ok(Self::Unix(path.into())),
            None => text.parse().map(Self::Tcp).map_err(|_| "it must be like 127.0.0.1:8090 or unix:/path/to/socket"),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

pub struct Listener(Kind);

enum Kind {
    Tcp(TcpListener),
    Unix(unix_socket::Listener, PathBuf),
}

impl Listener {
    /// Replaces a socket that an earlier process left behind.
    pub async fn bind(address: &Address) -> std::io::Result<Self> {
        match address {
            Address::Tcp(address) => Ok(Self(Kind::Tcp(TcpListener::bind(address).await?))),
            Address::Unix(path) => Ok(Self(Kind::Unix(unix_socket::Listener::bind(path)?, path.clone()))),
        }
    }

    /// The actual address: port 0 has been replaced by the one that the system chose.
    pub fn address(&self) -> std::io::Result<Address> {
        match &self.0 {
            Kind::Tcp(listener) => listener.local_addr().map(Address::Tcp),
            Kind::Unix(_, path) => Ok(Address::Unix(path.clone())),
        }
    }

    pub(crate) async fn accept(&self) -> std::io::Result<Box<dyn Stream>> {
        match &self.0 {
            Kind::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Box::new(stream))
            }
            Kind::Unix(listener, _) => Ok(Box::new(listener.accept().await?)),
        }
    }
}
