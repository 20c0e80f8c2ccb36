//! Why a search failed. The messages are for the log and for `check`: what happened, and what to do about it. Of the
//! server's own words they hold only the status and, cleaned, the names of engines.

use std::io;
use std::time::Duration;

use breaker::Verdict;
use reqwest::StatusCode;

/// A healthy server that finds nothing is no error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SearchError {
    #[error("there is no connection to it: {0}")]
    Unreachable(ConnectError),
    #[error("it did not answer within {0:?}; find out why it is slow, or give it more time")]
    TimedOut(Duration),
    #[error("the connection ended before its whole answer had come; look at its log and at what stands between")]
    Disconnected,
    #[error("its answer is larger than anything that such a server gives, and is not read; does the URL lead to it?")]
    TooLarge,
    /// Status 200, but not the JSON of such a server.
    #[error("its answer is not the JSON that such a server gives; does the URL lead to it?")]
    Malformed,
    #[error("it redirects elsewhere (status {}), which is not followed; give the URL where it really is", .0.as_u16())]
    Redirected(StatusCode),
    #[error("it refuses the credentials (status {}); write those of a user who may read there into the URL, before the host", .0.as_u16())]
    CredentialsRefused(StatusCode),
    /// SearXNG's limiter: too many searches, or not a browser.
    #[error(
        "its limiter takes us for a robot or asks for fewer searches (status 429); add this machine's address to `pass_ip` in SearXNG's limiter.toml, or turn the limiter off in settings.yml"
    )]
    RateLimited,
    #[error("it has too much to do already (status 429); look at the cluster's load")]
    Busy,
    #[error(
        "it does not give its results as JSON (status 403); add `json` to `search.formats` in SearXNG's settings.yml and restart it"
    )]
    JsonNotEnabled,
    #[error("it has no index of that name (status 404); look at the end of the URL")]
    IndexMissing,
    /// Any other status than 200.
    #[error("it answered with status {}; look at its log, and whether the URL is right", .0.as_u16())]
    Refused(StatusCode),
    #[error("none of the engines that SearXNG asks gave an answer ({0}); look at its statistics and enable others")]
    SourcesUnresponsive(String),
    /// OpenSearch's own timeout passed.
    #[error("it ran out of time before it had searched everything; find out why it is slow, or give it more time")]
    CutShort,
    #[error("no shard of its index could be searched; look at the cluster's health")]
    ShardsFailed,
    /// OpenSearch found documents without any field that we read.
    #[error("its documents have no text under any of the names that are read ({})", super::opensearch::field_names())]
    Unreadable,
    /// Of an embeddings server.
    #[error("it has another model than a moment ago; run the command again")]
    ModelChanged,
    #[error(
        "its vectors do not tell related texts from others; has it an embedding model, with the prefixes that it wants?"
    )]
    Meaningless,
    #[error("it failed several times in a row and is not asked for a moment; the earlier failures say why")]
    CircuitOpen,
    #[error("{0}")]
    Index(String),
    #[error("TLS cannot be used on this machine; look at the system's certificates")]
    NoTls,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    #[error("the name of its host is unknown; look for a mistake in the URL")]
    UnknownHost,
    /// Handshake or certificate.
    #[error("TLS could not be negotiated; does it speak TLS there, and does this system trust its certificate?")]
    Tls,
    #[error("{0}; does it run, and is the URL right?")]
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
            // The server answered, and what it answered depends on the query: one caller must not close it to others.
            Self::SourcesUnresponsive(_) | Self::TooLarge | Self::Unreadable => Verdict::Unclear,
            _ => Verdict::Bad,
        }
    }
}
