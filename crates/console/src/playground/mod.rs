//! Conversations from the browser, and requests as programs in several languages.
//!
//! The API's handler completes the playground's requests; the conversation is never stored.

pub(crate) mod page;
mod snippets;

pub(crate) use self::snippets::{curl, examples};
