//! Downloads that survive a broken connection, a stop and a restart: what has arrived is gone on from.
//!
//! Whether the right bytes have arrived is not known here; whoever asked for them looks at their digest.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use reqwest::{Client, StatusCode};

use super::place::{self, Place};
use crate::error::CliError;
use crate::progress::{Progress, Unit};

/// How long to wait for a server, and how often to try again.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    /// For a connection.
    pub(super) connect: Duration,
    /// For the next bytes.
    pub(super) stall: Duration,
    /// Before each further try that is made although the last one brought nothing new.
    pub(super) pauses: &'static [Duration],
}

impl Patience {
    /// What suits a person who waits.
    pub(super) const USUAL: Self = Self {
        connect: Duration::from_secs(10),
        stall: Duration::from_secs(30),
        pauses: &[Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(5)],
    };

    /// A client that waits so long. It trusts the certificates that the system trusts.
    pub(super) fn client(&self) -> Result<Client, CliError> {
        let client = Client::builder()
            .user_agent(concat!("adriaticum/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(self.connect)
            .read_timeout(self.stall);
        client.build().map_err(|error| {
            CliError::new(format!("nothing can be downloaded: {}. Look at the system's certificates.", cause(&error)))
        })
    }
}

/// Where a file can be had, from any byte on.
pub(super) trait Source {
    /// What it is called in messages.
    fn name(&self) -> String;

    /// Begins with the byte at that offset, or earlier if it cannot be helped.
    async fn open(&self, offset: u64) -> Result<Opened, Failure>;
}

/// A file that is arriving.
pub(super) struct Opened {
    /// The offset of the first byte to come.
    pub(super) offset: u64,
    /// The size of the whole file, if it is known.
    pub(super) total: Option<u64>,
    pub(super) pieces: Pin<Box<dyn Stream<Item = Result<Bytes, Failure>> + Send>>,
}

/// Why nothing more has come.
pub(super) enum Failure {
    /// Another try may do better.
    Passing(String),
    /// Another try would end the same way.
    Lasting(String),
    /// What has arrived cannot be gone on from.
    Stale,
}

impl From<reqwest::Error> for Failure {
    fn from(error: reqwest::Error) -> Self {
        Self::Passing(if error.is_timeout() { "no answer in time".into() } else { cause(&error) })
    }
}

/// What lies at the bottom of an error; what stands above it says only where it came through.
pub(super) fn cause(mut error: &(dyn Error + 'static)) -> String {
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Does a server that answers so do better another time?
pub(super) fn is_passing(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
}

/// Brings the file to `part`. `more` is the room that will be needed beside it.
pub(super) async fn download(
    source: &impl Source,
    place: &Place,
    part: &Path,
    more: u64,
    patience: Patience,
) -> Result<(), CliError> {
    let name = source.name();
    let opened = OpenOptions::new().create(true).append(true).open(part);
    let file = opened.map_err(|error| place::unwritable(part, &error))?;
    let mut transfer = Transfer { file, name: &name, more, place, progress: None };
    let stopped = transfer.persist(source, patience).await;
    stopped.map_err(|stop| {
        let length = transfer.length().unwrap_or(0);
        // There is nothing to keep, or a full disk that stops more than this.
        if length == 0 || matches!(&stop, Stop::Local(error) if place::is_full(error)) {
            let _ = std::fs::remove_file(part);
        }
        match stop {
            Stop::Remote(failure) => gave_up(&name, failure, length),
            Stop::Local(error) => place::unwritable(part, &error),
            Stop::Told(error) => error,
        }
    })
}

fn gave_up(name: &str, failure: Failure, length: u64) -> CliError {
    let reason = match failure {
        Failure::Passing(reason) | Failure::Lasting(reason) => reason,
        Failure::Stale => "the server does not go on from what has arrived".into(),
    };
    let again = if length > 0 { " to go on with what has arrived" } else { "" };
    CliError::new(format!(
        "{name} could not be downloaded: {reason}. Look at the network and run the command again{again}, or give a GGUF file that you have: adriaticum model fetch --from PATH."
    ))
}

/// Why one try has ended.
enum Stop {
    Remote(Failure),
    Local(io::Error),
    Told(CliError),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Remote(failure)
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Local(error)
    }
}

struct Transfer<'a> {
    file: File,
    name: &'a str,
    more: u64,
    place: &'a Place,
    progress: Option<Progress>,
}

impl Transfer<'_> {
    fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Tries as long as there is hope.
    async fn persist(&mut self, source: &impl Source, patience: Patience) -> Result<(), Stop> {
        let (mut most, mut fruitless) = (self.length()?, 0);
        loop {
            let Err(stop) = self.run(source).await else { return Ok(()) };
            match &stop {
                Stop::Remote(Failure::Passing(_)) => {}
                Stop::Remote(Failure::Stale) => self.file.set_len(0)?,
                Stop::Remote(Failure::Lasting(_)) | Stop::Local(_) | Stop::Told(_) => return Err(stop),
            }
            let length = self.length()?;
            if length > most {
                (most, fruitless) = (length, 0);
            }
            let Some(pause) = patience.pauses.get(fruitless) else { return Err(stop) };
            tokio::time::sleep(*pause).await;
            fruitless += 1;
        }
    }

    /// One try, from where the last one ended.
    async fn run(&mut self, source: &impl Source) -> Result<(), Stop> {
        let mut opened = source.open(self.length()?).await?;
        self.file.set_len(opened.offset)?;
        let mut length = opened.offset;
        if let Some(total) = opened.total {
            self.place.room_for(total.saturating_sub(length).saturating_add(self.more)).map_err(Stop::Told)?;
            self.progress.get_or_insert_with(|| Progress::new(self.name, Unit::Bytes, total, length));
        }
        while let Some(piece) = opened.pieces.next().await {
            let piece = piece?;
            self.file.write_all(&piece)?;
            length += piece.len() as u64;
            if let Some(progress) = &mut self.progress {
                progress.at(length);
            }
            if opened.total.is_some_and(|total| length > total) {
                return Err(Failure::Stale.into());
            }
        }
        match opened.total {
            Some(total) if length < total => Err(Failure::Passing("the connection was closed early".into()).into()),
            _ => Ok(()),
        }
    }
}
