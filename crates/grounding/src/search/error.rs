//! Why a search brought nothing. The sentences are for the log and for `check`: what happened, and what to do about it.
//! They are our own; of the server's words they hold a status and, cleaned, the names of engines.

use std::io;
use std::time::Duration;

use breaker::Verdict;
use reqwest::StatusCode;

/// Why a search brought nothing. That a healthy server found nothing is no error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SearchError {
    /// No connection.
    #[error("there is no connection to it: {0}")]
    Unreachable(ConnectError),
    /// The deadline passed before the whole answer was there.
    #[error("it did not answer within {0:?}; find out why it is slow, or give it more time")]
    TimedOut(Duration),
    /// The connection ended before the whole answer was there.
    #[error("the connection ended before its whole answer had come; look at its log and at what stands between")]
    BrokeOff,
    /// More than we read.
    #[error("its answer is larger than {} MiB, which is not read; does the URL lead to a search engine?", super::exchange::MAX_ANSWER_BYTES >> 20)]
    TooLarge,
    /// Status 200, but not an answer.
    #[error("its answer is not the JSON that such a server gives; does the URL lead to it?")]
    Malformed,
    /// It wants us to go elsewhere.
    #[error("it redirects elsewhere (status {}), which is not followed; give the URL where it really is", .0.as_u16())]
    Redirected(StatusCode),
    /// It asks for credentials, or does not accept those that it got.
    #[error("it refuses the credentials (status {}); write a user who may search there, with the password, into the URL: http://USER:PASSWORD@HOST", .0.as_u16())]
    CredentialsRefused(StatusCode),
    /// SearXNG's limiter: we ask too often, or do not look like a browser.
    #[error(
        "its limiter takes us for a robot or asks for fewer searches (status 429); add this machine's address to `pass_ip` in SearXNG's limiter.toml, or turn the limiter off in settings.yml"
    )]
    RateLimited,
    /// OpenSearch takes no more searches now.
    #[error("it has too much to do already (status 429); look at the cluster's load")]
    Busy,
    /// SearXNG does not give JSON.
    #[error(
        "it does not give its results as JSON (status 403); add `json` to `search.formats` in SearXNG's settings.yml and restart it"
    )]
    JsonNotEnabled,
    /// OpenSearch has no such index.
    #[error("it has no index of that name (status 404); look at the end of the URL")]
    IndexMissing,
    /// Another status than 200.
    #[error("it answered with status {}; look at its log, and whether the URL is right", .0.as_u16())]
    Refused(StatusCode),
    /// SearXNG got nothing out of the engines that it asks.
    #[error("none of the engines that SearXNG asks gave an answer ({0}); look at its statistics and enable others")]
    SourcesUnresponsive(String),
    /// OpenSearch gave up searching.
    #[error("it ran out of time before it had searched everything; find out why it is slow, or give it more time")]
    CutShort,
    /// OpenSearch could search no part of the index.
    #[error("no shard of its index could be searched; look at the cluster's health")]
    ShardsFailed,
    /// OpenSearch found documents in which there is nothing that we would know how to read.
    #[error("its documents have no text under any of the names that are read ({})", super::opensearch::names())]
    Unreadable,
    /// It failed several times in a row and is not asked for a while.
    #[error("it failed several times in a row and is left alone for a moment; the failures before say why")]
    Paused,
    /// The built-in index cannot be searched.
    #[error("{0}")]
    Index(String),
    /// There is no TLS on this machine.
    #[error("TLS cannot be used on this machine; look at the system's certificates")]
    NoTls,
}

/// What kept a connection from coming about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// Its name has no address.
    #[error("the name of its host is unknown; look for a mistake in the URL")]
    UnknownHost,
    /// There is somebody, but not somebody to be trusted.
    #[error("TLS did not come about; does it speak TLS there, and does this system trust its certificate?")]
    Tls,
    /// What the network said.
    #[error("{0}; does it run, and is the URL right?")]
    Network(io::ErrorKind),
}

impl SearchError {
    /// What it says about the server. A limiter's refusal is a reason to leave it alone like any other.
    pub(super) fn verdict(&self) -> Verdict {
        match self {
            // Only this query was too much for it.
            Self::Refused(
                StatusCode::BAD_REQUEST
                | StatusCode::PAYLOAD_TOO_LARGE
                | StatusCode::URI_TOO_LONG
                | StatusCode::UNPROCESSABLE_ENTITY,
            ) => Verdict::Good,
            _ => Verdict::Bad,
        }
    }
}
