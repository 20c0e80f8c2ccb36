//! From a file's bytes to a document. Whatever the bytes are, the outcome is a document or a reason why there is none.
//!
//! Formats are read by other people's code, so each file gets a thread of its own: with a stack for what is nested
//! deeply, and a time that it may take. One that never ends costs a thread, not the run; what is panicked about is a
//! damaged file.

mod decode;
mod html;
mod markdown;
mod pdf;
mod text;

use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::document::Document;
use super::panics::catch_panic;

/// Only touched as far as it is used.
const STACK: usize = 256 * 1024 * 1024;
/// A thousand pages take a few seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Formats that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Markdown,
    Text,
    Html,
    Pdf,
}

impl Format {
    /// By the name's ending, whatever its case. `None` for files that are no documents.
    pub(super) fn of(path: &Path) -> Option<Self> {
        Some(match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "md" | "markdown" => Self::Markdown,
            "txt" | "text" => Self::Text,
            "html" | "htm" => Self::Html,
            "pdf" => Self::Pdf,
            _ => return None,
        })
    }
}

/// Why there is no document in these bytes, as a person should read it.
pub(super) type Reason = &'static str;

/// Reads a document.
pub(super) fn extract(format: Format, bytes: Vec<u8>) -> Result<Document, Reason> {
    const DAMAGED: Reason = "it is damaged, or of a kind that cannot be read";

    let (done, outcome) = mpsc::sync_channel(1);
    let read = move || {
        // Nobody waits any more if it took too long.
        let _ = done.send(catch_panic(|| read(format, &bytes)).unwrap_or(Err(DAMAGED)));
    };
    let thread = thread::Builder::new().name("document".into()).stack_size(STACK);
    thread.spawn(read).map_err(|_| "no thread could be started to read it")?;
    match outcome.recv_timeout(PATIENCE) {
        Ok(outcome) => outcome,
        Err(mpsc::RecvTimeoutError::Timeout) => Err("reading it takes too long"),
        Err(mpsc::RecvTimeoutError::Disconnected) => Err(DAMAGED),
    }
}

fn read(format: Format, bytes: &[u8]) -> Result<Document, Reason> {
    let document = match format {
        Format::Pdf => pdf::read(bytes)?,
        Format::Html => html::read(&decode::decode(bytes, html::charset(bytes))?),
        Format::Markdown => markdown::read(&decode::decode(bytes, None)?),
        Format::Text => text::read(&decode::decode(bytes, None)?),
    };
    if document.blocks.is_empty() { Err("there is no text in it") } else { Ok(document) }
}
