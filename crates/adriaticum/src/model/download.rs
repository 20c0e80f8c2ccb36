//! Downloads that resume after a broken connection, a stop or a restart.
//!
//! The content is not checked here: the caller compares the digest.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use reqwest::{Client, Response, StatusCode};

use super::model_dir::{self, ModelDir};
use super::web::WebFile;
use crate::error::{CliError, root_cause};
use crate::progress::{ProgressOutput, Unit};

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

/// A file from some offset on.
pub(super) struct Tail {
    pub(super) offset: u64,
    /// The size of the whole file, if known.
    pub(super) total: Option<u64>,
    /// `None` if nothing is left.
    pub(super) response: Option<Response>,
}

pub(super) enum DownloadError {
    /// A retry may succeed.
    Transient(String),
    /// A retry would fail the same way.
    Permanent(String),
    /// The partial file cannot be resumed.
    Stale,
    /// The file cannot be written.
    Io(io::Error),
    /// There is too little disk space.
    Refused(CliError),
}

impl From<io::Error> for DownloadError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<reqwest::Error> for DownloadError {
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
    source: &WebFile,
    model_dir: &ModelDir,
    part: &Path,
    extra_bytes: u64,
    retry: RetryPolicy,
) -> Result<(), CliError> {
    let name = source.name.clone();
    let opened = OpenOptions::new().create(true).append(true).open(part);
    let file = opened.map_err(|error| model_dir::write_error(part, &error))?;
    let mut transfer = Transfer { file, name: &name, extra_bytes, model_dir, progress: None };
    let result = transfer.run_with_retries(source, retry).await;
    result.map_err(|error| {
        let length = transfer.length().unwrap_or(0);
        // An empty part is useless, and a full disk needs the space.
        if length == 0 || matches!(&error, DownloadError::Io(error) if model_dir::is_disk_full(error)) {
            let _ = std::fs::remove_file(part);
        }
        let reason = match error {
            DownloadError::Transient(reason) | DownloadError::Permanent(reason) => reason,
            DownloadError::Stale => "the server cannot resume the download".into(),
            DownloadError::Io(error) => return model_dir::write_error(part, &error),
            DownloadError::Refused(error) => return error,
        };
        let again = if length > 0 { " to resume" } else { "" };
        CliError::new(format!(
            "{name} could not be downloaded: {reason}. Check the network and run the command again{again}, or use a \
             GGUF file of your own: adriaticum model fetch --from PATH."
        ))
    })
}

struct Transfer<'a> {
    file: File,
    name: &'a str,
    extra_bytes: u64,
    model_dir: &'a ModelDir,
    progress: Option<ProgressOutput>,
}

impl Transfer<'_> {
    fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    async fn run_with_retries(&mut self, source: &WebFile, retry: RetryPolicy) -> Result<(), DownloadError> {
        let (mut longest, mut failures) = (self.length()?, 0);
        loop {
            let Err(error) = self.attempt(source).await else { return Ok(()) };
            match &error {
                DownloadError::Transient(_) => {}
                DownloadError::Stale => self.file.set_len(0)?,
                DownloadError::Permanent(_) | DownloadError::Io(_) | DownloadError::Refused(_) => return Err(error),
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
    async fn attempt(&mut self, source: &WebFile) -> Result<(), DownloadError> {
        let mut tail = source.open(self.length()?).await?;
        self.file.set_len(tail.offset)?;
        let mut length = tail.offset;
        if let Some(total) = tail.total {
            self.model_dir
                .require_free_space(total.saturating_sub(length).saturating_add(self.extra_bytes))
                .map_err(DownloadError::Refused)?;
            self.progress.get_or_insert_with(|| ProgressOutput::new(self.name, Unit::Bytes, total, length));
        }
        while let Some(response) = &mut tail.response
            && let Some(chunk) = response.chunk().await?
        {
            self.file.write_all(&chunk)?;
            length += chunk.len() as u64;
            if let Some(progress) = &mut self.progress {
                progress.set(length);
            }
            if tail.total.is_some_and(|total| length > total) {
                return Err(DownloadError::Stale);
            }
        }
        match tail.total {
            Some(total) if length < total => Err(DownloadError::Transient("the connection was closed early".into())),
            _ => Ok(()),
        }
    }
}
