//! Why a search failed. The messages are for the log and for `check`: the failure and its remedy. From the server's
//! response they contain only the status and the cleaned names of engines.

use std::io;
use std::time::Duration;

use breaker::Verdict;
use reqwest::StatusCode;

/// No results from a healthy server are not an error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SearchError {
    #[error("it cannot be reached: {0}")]
    Unreachable(ConnectError),
    #[error("it did not respond within {0:?}; find out why it is slow, or allow it more time")]
    TimedOut(Duration),
    #[error("the connection was closed before the response was complete; check its log, and proxies in between")]
    Disconnected,
    #[error("its response is larger than any response of such a server, and is not read; check the URL")]
    TooLarge,
    /// Status 200, but not the JSON of such a server.
    #[error("its response is not the JSON of such a server; check the URL")]
    Malformed,
    #[error("it redirects to another URL (status {}), which is not followed; configure the final URL", .0.as_u16())]
    Redirected(StatusCode),
    #[error("it refuses the credentials (status {}); put those of a user with read access into the URL: USER:PASSWORD@HOST", .0.as_u16())]
    CredentialsRefused(StatusCode),
    /// SearXNG's limiter: too many searches, or not a browser.
    #[error(
        "its limiter takes this service for a robot, or has reached its limit of searches (status 429); add this machine's address to `pass_ip` in SearXNG's limiter.toml, or turn the limiter off in settings.yml"
    )]
    RateLimited,
    #[error("it is overloaded (status 429); check the cluster's load")]
    Busy,
    #[error(
        "its JSON format is not enabled (status 403); add `json` to `search.formats` in SearXNG's settings.yml and restart it"
    )]
    JsonNotEnabled,
    #[error("it has no index of that name (status 404); check the end of the URL")]
    IndexMissing,
    /// Any other status than 200.
    #[error("it responded with status {}; check its log and the URL", .0.as_u16())]
    Refused(StatusCode),
    #[error("none of SearXNG's engines responded ({0}); check its statistics and enable other engines")]
    SourcesUnresponsive(String),
    /// OpenSearch's own timeout passed.
    #[error("it reached its timeout before it had searched everything; find out why it is slow, or allow it more time")]
    CutShort,
    #[error("no shard of its index could be searched; check the cluster's health")]
    ShardsFailed,
    /// OpenSearch found documents without any field that we read.
    #[error("its documents have no text under any of the known names ({})", super::opensearch::field_names())]
    Unreadable,
    /// An embeddings server has changed its model.
    #[error("its model has changed in the meantime; run the command again")]
    ModelChanged,
    #[error(
        "its vectors do not distinguish related texts from others; check that it has an embedding model with the right prefixes"
    )]
    Meaningless,
    #[error("it failed several times in a row, and requests to it are paused; the log has the earlier failures")]
    CircuitOpen,
    #[error("{0}")]
    Index(String),
    #[error("TLS cannot be used on this machine; check the system's certificates")]
    NoTls,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    #[error("the name of its host is unknown; check the URL")]
    UnknownHost,
    /// Handshake or certificate.
    #[error("TLS could not be negotiated; check that this port has TLS and that this system trusts its certificate")]
    Tls,
    #[error("{0}; check that it is running, and the URL")]
    Network(io::ErrorKind),
}

impl SearchError {
    /// For the breaker. A rate limit counts as a failure.
    pub(crate) fn verdict(&self) -> Verdict {
        match self {
            // Only this query was refused.
            Self::Refused(
                StatusCode::BAD_REQUEST
                | StatusCode::PAYLOAD_TOO_LARGE
                | StatusCode::URI_TOO_LONG
                | StatusCode::UNPROCESSABLE_ENTITY,
            ) => Verdict::Good,
            // The server responded, and its response depends on the query: one caller must not block the server for others.
            Self::SourcesUnresponsive(_) | Self::TooLarge | Self::Unreadable => Verdict::Unclear,
            _ => Verdict::Bad,
        }
    }
}
