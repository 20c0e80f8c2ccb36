//! API keys: the list, the page of one, and its settings.
//!
//! A secret is shown once, on the page that creates it. The store restricts each viewer to their own keys.

pub(crate) mod key;
pub(crate) mod list;
pub(crate) mod settings;
