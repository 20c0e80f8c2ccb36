//! From a file's bytes to a document, or a reason why there is none.
//!
//! Third-party code parses the formats, so each file gets a thread with a large stack for deep nesting, and a timeout.
//! A parser that hangs costs a thread, not the run; one that panics means a damaged file.

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

/// Only the pages that are used take memory.
const STACK_BYTES: usize = 256 * 1024 * 1024;
/// A thousand pages take a few seconds.
const EXTRACT_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Markdown,
    Text,
    Html,
    Pdf,
}

impl Format {
    /// By the file extension. `None` for files that are no documents.
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

/// For people.
pub(super) type SkipReason = &'static str;

pub(super) fn extract(format: Format, bytes: Vec<u8>) -> Result<Document, SkipReason> {
    const DAMAGED: SkipReason = "it is damaged, or of a kind that cannot be read";

    let (done, outcome) = mpsc::sync_channel(1);
    let read = move || {
        // The receiver is gone after the timeout.
        let _ = done.send(catch_panic(|| read(format, &bytes)).unwrap_or(Err(DAMAGED)));
    };
    let thread = thread::Builder::new().name("document".into()).stack_size(STACK_BYTES);
    thread.spawn(read).map_err(|_| "no thread could be started to read it")?;
    match outcome.recv_timeout(EXTRACT_TIMEOUT) {
        Ok(outcome) => outcome,
        Err(mpsc::RecvTimeoutError::Timeout) => Err("reading it takes too long"),
        Err(mpsc::RecvTimeoutError::Disconnected) => Err(DAMAGED),
    }
}

fn read(format: Format, bytes: &[u8]) -> Result<Document, SkipReason> {
    let document = match format {
        Format::Pdf => pdf::read(bytes)?,
        Format::Html => html::read(&decode::decode(bytes, html::declared_charset(bytes))?),
        Format::Markdown => markdown::read(&decode::decode(bytes, None)?),
        Format::Text => text::read(&decode::decode(bytes, None)?),
    };
    if document.blocks.is_empty() { Err("there is no text in it") } else { Ok(document) }
}
