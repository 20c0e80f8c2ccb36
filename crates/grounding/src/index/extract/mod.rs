//! Turns a file's bytes into a document, or a reason why there is none.
//!
//! Third-party code parses the formats, and a small file can make it use gigabytes, hours or the whole stack. So the
//! program reads documents in child processes with limits (`child`, `server`): a file that exceeds them is skipped, and
//! its child is replaced. Without such a program (in tests), a thread reads them, with a timeout and caught panics only.

mod child;
mod decode;
#[cfg(test)]
mod fuzz;
mod html;
mod markdown;
mod message;
mod pdf;
mod server;
mod text;

use std::borrow::Cow;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::document::Document;
use super::panics::catch_panic;

pub use child::ChildProgram;
use child::ChildSession;
pub use server::serve;

/// Only used pages take memory.
const STACK_BYTES: usize = 128 * 1024 * 1024;
/// A document of a thousand pages takes a few seconds.
const EXTRACT_TIMEOUT: Duration = Duration::from_secs(60);

const DAMAGED: &str = "it is damaged, or of a kind that cannot be read";
const TOO_LONG: &str = "reading it takes too long";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Markdown,
    Text,
    Html,
    Pdf,
}

impl Format {
    /// By the file extension. `None` for files that are not documents.
    pub(super) fn from_path(path: &Path) -> Option<Self> {
        Some(match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "md" | "markdown" => Self::Markdown,
            "txt" | "text" => Self::Text,
            "html" | "htm" => Self::Html,
            "pdf" => Self::Pdf,
            _ => return None,
        })
    }
}

/// A sentence for people.
pub(super) type SkipReason = Cow<'static, str>;

/// How documents are read.
#[derive(Debug, Clone, Default)]
pub enum Extractor {
    /// On a thread, without a limit of memory.
    #[default]
    Thread,
    /// In processes that call `serve`.
    Child(ChildProgram),
}

impl Extractor {
    /// For one thread that reads files one after the other.
    pub(super) fn session(&self) -> Session<'_> {
        match self {
            Self::Thread => Session::Thread,
            Self::Child(program) => Session::Child(ChildSession::new(program)),
        }
    }
}

pub(super) enum Session<'a> {
    Thread,
    Child(ChildSession<'a>),
}

impl Session<'_> {
    pub(super) fn extract(&mut self, format: Format, bytes: Vec<u8>) -> Result<Document, SkipReason> {
        match self {
            Self::Thread => read_on_thread(format, bytes),
            // Plain text cannot expand or nest.
            Self::Child(_) if format == Format::Text => read(format, &bytes),
            Self::Child(child) => child.extract(format, bytes),
        }
    }
}

fn read_on_thread(format: Format, bytes: Vec<u8>) -> Result<Document, SkipReason> {
    let (done, outcome) = mpsc::sync_channel(1);
    let read = move || {
        // After the timeout the receiver is gone.
        let _ = done.send(read_caught(format, &bytes));
    };
    let thread = thread::Builder::new().name("document".into()).stack_size(STACK_BYTES);
    thread.spawn(read).map_err(|_| "no thread could be started to read it")?;
    match outcome.recv_timeout(EXTRACT_TIMEOUT) {
        Ok(outcome) => outcome,
        Err(mpsc::RecvTimeoutError::Timeout) => Err(TOO_LONG.into()),
        Err(mpsc::RecvTimeoutError::Disconnected) => Err(DAMAGED.into()),
    }
}

/// A panic of a parser means a damaged file.
fn read_caught(format: Format, bytes: &[u8]) -> Result<Document, SkipReason> {
    catch_panic(|| read(format, bytes)).unwrap_or(Err(DAMAGED.into()))
}

fn read(format: Format, bytes: &[u8]) -> Result<Document, SkipReason> {
    let document = match format {
        Format::Pdf => pdf::read(bytes)?,
        Format::Html => html::read(&decode::decode(bytes, html::declared_charset(bytes))?),
        Format::Markdown => markdown::read(&decode::decode(bytes, None)?),
        Format::Text => text::read(&decode::decode(bytes, None)?),
    };
    if document.blocks.is_empty() { Err("there is no text in it".into()) } else { Ok(document) }
}
