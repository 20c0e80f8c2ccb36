//! Downloads that resume after a broken connection, a stop or a restart.
//!
//! The content is not checked here: the caller compares the digest.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use reqwest::{Client, StatusCode};

use super::model_dir::{self, ModelDir};
use crate::error::{CliError, root_cause};
use crate::progress::{Progress, Unit};

#[derive(Clone, Copy)]
pub(super) struct RetryPolicy {
    pub(super) connect_timeout: Duration,
    /// For the next chunk.
    pub(super) read_timeout: Duration,
    /// The wait before each retry. An attempt that made progress starts the list again; at its end, the download fails.
    pub(super) backoff: &'static [Duration],
}

impl RetryPolicy {
    pub(super) const DEFAULT: Self = Self {
        connect_timeout: Duration::from_secs(10),
        read_timeout: Duration::from_secs(30),
        backoff: &[Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(5)],
    };

    /// A client with these timeouts. It trusts the system's certificates.
    pub(super) fn client(&self) -> Result<Client, CliError> {
        let client = Client::builder()
            .user_agent(concat!("adriaticum/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(self.connect_timeout)
            .read_timeout(self.read_timeout);
        client.build().map_err(|error| {
            CliError::new(format!(
                "nothing can be downloaded: {}. Check the system's certificates.",
                root_cause(&error)
            ))
        })
    }
}

/// A file that can be read from any offset.
pub(super) trait RemoteFile {
    /// For messages.
    fn name(&self) -> String;

    /// Starts at that offset, or at 0 if the server does not support ranges.
    async fn open(&self, offset: u64) -> Result<RemoteStream, RemoteError>;
}

pub(super) struct RemoteStream {
    /// Of the first byte of `chunks`.
    pub(super) offset: u64,
    /// The size of the whole file, if known.
    pub(super) total: Option<u64>,
    pub(super) chunks: Pin<Box<dyn Stream<Item = Result<Bytes, RemoteError>> + Send>>,
}

pub(super) enum RemoteError {
    /// A retry may succeed.
    Transient(String),
    /// A retry would fail the same way.
    Permanent(String),
    /// The partial file cannot be resumed.
    Stale,
}

impl From<reqwest::Error> for RemoteError {
    fn from(error: reqwest::Error) -> Self {
        Self::Transient(if error.is_timeout() { "no response in time".into() } else { root_cause(&error) })
    }
}

/// Whether a retry may get another status.
pub(super) fn is_transient(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
}

/// Downloads to `part`, or resumes it. `extra_bytes` of disk space will be needed beside it.
pub(super) async fn download(
    source: &impl RemoteFile,
    model_dir: &ModelDir,
    part: &Path,
    extra_bytes: u64,
    retry: RetryPolicy,
) -> Result<(), CliError> {
    let name = source.name();
    let opened = OpenOptions::new().create(true).append(true).open(part);
    let file = opened.map_err(|error| model_dir::write_error(part, &error))?;
    let mut transfer = Transfer { file, name: &name, extra_bytes, model_dir, progress: None };
    let result = transfer.run_with_retries(source, retry).await;
    result.map_err(|error| {
        let length = transfer.length().unwrap_or(0);
        // An empty part is useless, and a full disk needs the space.
        if length == 0 || matches!(&error, TransferError::Io(error) if model_dir::is_disk_full(error)) {
            let _ = std::fs::remove_file(part);
        }
        match error {
            TransferError::Remote(error) => download_error(&name, error, length),
            TransferError::Io(error) => model_dir::write_error(part, &error),
            TransferError::Refused(error) => error,
        }
    })
}

fn download_error(name: &str, error: RemoteError, length: u64) -> CliError {
    let reason = match error {
        RemoteError::Transient(reason) | RemoteError::Permanent(reason) => reason,
        RemoteError::Stale => "the server cannot resume the download".into(),
    };
    let again = if length > 0 { " to resume" } else { "" };
    CliError::new(format!(
        "{name} could not be downloaded: {reason}. Check the network and run the command again{again}, or use a GGUF \
         file of your own: adriaticum model fetch --from PATH."
    ))
}

enum TransferError {
    Remote(RemoteError),
    Io(io::Error),
    Refused(CliError),
}

impl From<RemoteError> for TransferError {
    fn from(error: RemoteError) -> Self {
        Self::Remote(error)
    }
}

impl From<io::Error> for TransferError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

struct Transfer<'a> {
    file: File,
    name: &'a str,
    extra_bytes: u64,
    model_dir: &'a ModelDir,
    progress: Option<Progress>,
}

impl Transfer<'_> {
    fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    async fn run_with_retries(&mut self, source: &impl RemoteFile, retry: RetryPolicy) -> Result<(), TransferError> {
        let (mut longest, mut failures) = (self.length()?, 0);
        loop {
            let Err(error) = self.attempt(source).await else { return Ok(()) };
            match &error {
                TransferError::Remote(RemoteError::Transient(_)) => {}
                TransferError::Remote(RemoteError::Stale) => self.file.set_len(0)?,
                TransferError::Remote(RemoteError::Permanent(_)) | TransferError::Io(_) | TransferError::Refused(_) => {
                    return Err(error);
                }
            }
            let length = self.length()?;
            if length > longest {
                (longest, failures) = (length, 0);
            }
            let Some(backoff) = retry.backoff.get(failures) else { return Err(error) };
            tokio::time::sleep(*backoff).await;
            failures += 1;
        }
    }

    /// Continues where the last attempt ended.
    async fn attempt(&mut self, source: &impl RemoteFile) -> Result<(), TransferError> {
        let mut stream = source.open(self.length()?).await?;
        self.file.set_len(stream.offset)?;
        let mut length = stream.offset;
        if let Some(total) = stream.total {
            self.model_dir
                .require_free_space(total.saturating_sub(length).saturating_add(self.extra_bytes))
                .map_err(TransferError::Refused)?;
            self.progress.get_or_insert_with(|| Progress::new(self.name, Unit::Bytes, total, length));
        }
        while let Some(chunk) = stream.chunks.next().await {
            let chunk = chunk?;
            self.file.write_all(&chunk)?;
            length += chunk.len() as u64;
            if let Some(progress) = &mut self.progress {
                progress.set(length);
            }
            if stream.total.is_some_and(|total| length > total) {
                return Err(RemoteError::Stale.into());
            }
        }
        match stream.total {
            Some(total) if length < total => {
                Err(RemoteError::Transient("the connection was closed early".into()).into())
            }
            _ => Ok(()),
        }
    }
}
