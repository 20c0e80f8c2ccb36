//! The URL under which a site is reached from outside.

use std::fmt;

use url::Url;

use crate::host_name::HostName;

#[derive(Debug, Clone)]
pub struct BaseUrl {
    pub host: HostName,
    /// Scheme, host and port as browsers write them; without user and password.
    pub origin: String,
    /// Without a slash at its end; empty for the root.
    pub path: String,
}

impl BaseUrl {
    /// `http` or `https`, without query and fragment.
    pub fn parse(text: &str) -> Result<Self, BaseUrlError> {
        let url = Url::parse(text).map_err(|_| BaseUrlError("it is not a URL"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(BaseUrlError("it does not begin with http:// or https://"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(BaseUrlError("it has a query or a fragment"));
        }
        let host = url.host_str().ok_or(BaseUrlError("it has no host"))?;
        Ok(Self {
            host: HostName::new(host),
            origin: url.origin().ascii_serialization(),
            path: url.path().trim_end_matches('/').to_owned(),
        })
    }

    /// For a site that is served at the root of its host only.
    pub fn parse_root(text: &str) -> Result<Self, BaseUrlError> {
        let url = Self::parse(text)?;
        if url.path.is_empty() { Ok(url) } else { Err(BaseUrlError("it has a path")) }
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin, self.path)
    }
}

/// Why a base URL cannot be used. The URL itself may hold a secret and is not repeated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BaseUrlError(pub &'static str);
