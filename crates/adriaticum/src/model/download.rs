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
use reqwest::header::{ACCEPT_ENCODING, CONTENT_RANGE, RANGE};
use reqwest::{Client, Response, StatusCode, Url};

use super::place::{self, Place};
use super::progress::Progress;
use crate::complaint::Complaint;

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
    pub(super) fn client(&self) -> Result<Client, Complaint> {
        let client = Client::builder()
            .user_agent(concat!("adriaticum/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(self.connect)
            .read_timeout(self.stall);
        client.build().map_err(|error| {
            Complaint::new(format!("nothing can be downloaded: {}. Look at the system's certificates.", cause(&error)))
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

/// Brings the file to `part`. `more` is the room that will be needed beside it.
pub(super) async fn download(
    source: &impl Source,
    place: &Place,
    part: &Path,
    more: u64,
    patience: Patience,
) -> Result<(), Complaint> {
    let name = source.name();
    let opened = OpenOptions::new().create(true).append(true).open(part);
    let mut transfer = Transfer {
        file: opened.map_err(|error| place::unwritable(part, &error))?,
        name: &name,
        more,
        place,
        progress: None,
    };
    let (mut most, mut fruitless) = (transfer.length().unwrap_or(0), 0);
    loop {
        let (reason, hope) = match transfer.run(source).await {
            Ok(()) => return Ok(()),
            Err(Stop::Remote(Failure::Passing(reason))) => (reason, true),
            Err(Stop::Remote(Failure::Lasting(reason))) => (reason, false),
            Err(Stop::Remote(Failure::Stale)) => {
                transfer.file.set_len(0).map_err(|error| place::unwritable(part, &error))?;
                ("the server does not go on from what has arrived".into(), true)
            }
            Err(Stop::Local(error)) => {
                if place::is_full(&error) {
                    // A full disk stops more than this.
                    let _ = std::fs::remove_file(part);
                }
                return Err(place::unwritable(part, &error));
            }
            Err(Stop::Told(complaint)) => return Err(complaint),
        };
        let length = transfer.length().unwrap_or(0);
        if length > most {
            (most, fruitless) = (length, 0);
        }
        match patience.pauses.get(fruitless) {
            Some(pause) if hope => tokio::time::sleep(*pause).await,
            _ => return Err(gave_up(&name, &reason, length)),
        }
        fruitless += 1;
    }
}

fn gave_up(name: &str, reason: &str, length: u64) -> Complaint {
    let again = if length > 0 { " to go on with what has arrived" } else { "" };
    Complaint::new(format!(
        "{name} could not be downloaded: {reason}. Look at the network and run the command again{again}, or give a GGUF file that you have: adriaticum model fetch --from PATH."
    ))
}

/// Why one try has ended.
enum Stop {
    Remote(Failure),
    Local(io::Error),
    Told(Complaint),
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

    /// One try, from where the last one ended.
    async fn run(&mut self, source: &impl Source) -> Result<(), Stop> {
        let mut opened = source.open(self.length()?).await?;
        self.file.set_len(opened.offset)?;
        let mut length = opened.offset;
        if let Some(total) = opened.total {
            self.place.room_for(total.saturating_sub(length).saturating_add(self.more)).map_err(Stop::Told)?;
            self.progress.get_or_insert_with(|| Progress::new(self.name, total, length));
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

/// A file on the web.
pub(super) struct WebFile {
    /// What it is called in messages.
    pub(super) name: String,
    pub(super) client: Client,
    pub(super) url: Url,
}

impl Source for WebFile {
    fn name(&self) -> String {
        self.name.clone()
    }

    async fn open(&self, offset: u64) -> Result<Opened, Failure> {
        // Packed on the way, bytes could not be counted.
        let mut request = self.client.get(self.url.clone()).header(ACCEPT_ENCODING, "identity");
        if offset > 0 {
            request = request.header(RANGE, format!("bytes={offset}-"));
        }
        let answer = request.send().await?;
        let (first, total) = content_range(&answer);
        let offset = match answer.status() {
            StatusCode::OK => return Ok(Opened { offset: 0, total: answer.content_length(), pieces: pieces(answer) }),
            StatusCode::PARTIAL_CONTENT if first == Some(offset) => offset,
            StatusCode::RANGE_NOT_SATISFIABLE if total == Some(offset) => {
                return Ok(Opened { offset, total, pieces: futures_util::stream::empty().boxed() });
            }
            StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => return Err(Failure::Stale),
            status if is_passing(status) => return Err(Failure::Passing(format!("the server answers {status}"))),
            status => return Err(Failure::Lasting(format!("the server answers {status}"))),
        };
        Ok(Opened { offset, total, pieces: pieces(answer) })
    }
}

fn pieces(answer: Response) -> Pin<Box<dyn Stream<Item = Result<Bytes, Failure>> + Send>> {
    answer.bytes_stream().map(|piece| piece.map_err(Failure::from)).boxed()
}

/// Does a server that answers so do better another time?
pub(super) fn is_passing(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
}

/// The first byte and the whole size in `bytes 100-199/200` or `bytes */200`.
fn content_range(answer: &Response) -> (Option<u64>, Option<u64>) {
    let header = answer.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    let Some((range, total)) = header.and_then(|text| text.strip_prefix("bytes ")?.split_once('/')) else {
        return (None, None);
    };
    (range.split_once('-').and_then(|(first, _)| first.parse().ok()), total.parse().ok())
}
