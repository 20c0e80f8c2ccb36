//! Turns a file's bytes into a document, or a reason why there is none.
//!
//! Third-party code parses the formats, and a small file can make it use gigabytes, hours or the whole stack. So the
//! program reads documents in child processes with limits (`child`, `server`): a file that exceeds them is skipped, and
//! its child is replaced. Without such a program (in tests), they are read in the process, and only panics are caught.

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
use std::time::Duration;

use super::document::Document;
use super::panics::catch_panic;

pub use child::ChildProgram;
pub(super) use child::ChildSession;
pub use server::serve;

/// Of a thread that reads documents, for deeply nested ones. Only used pages take memory.
pub(super) const STACK_BYTES: usize = 128 * 1024 * 1024;
/// A document of a thousand pages takes a few seconds.
const EXTRACT_TIMEOUT: Duration = Duration::from_secs(60);

const DAMAGED: &str = "it is damaged, or of a kind that cannot be read";
const TOO_LONG: &str = "reading it takes too long";

/// The numbers are types of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Format {
    Markdown = b'm',
    Text = b't',
    Html = b'h',
    Pdf = b'p',
}

impl Format {
    const ALL: [Self; 4] = [Self::Markdown, Self::Text, Self::Html, Self::Pdf];

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

/// Reads in a child process or, without one, in this process. Plain text needs none: it cannot expand or nest.
pub(super) fn extract(
    child: Option<&mut ChildSession<'_>>,
    format: Format,
    bytes: Vec<u8>,
) -> Result<Document, SkipReason> {
    match child {
        Some(child) if format != Format::Text => child.extract(format, bytes),
        _ => read_caught(format, &bytes),
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
