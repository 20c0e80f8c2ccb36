//! What every page is made of: the request and its sender, forms, the response, the frame, lists and their parts.
//!
//! Only `response` sets headers, only `form` decides whether a form is ours, and no page contains an inline script or
//! style. Nothing here knows what a page is about.

pub(crate) mod assets;
pub(crate) mod components;
pub(crate) mod cookies;
pub(crate) mod error;
pub(crate) mod form;
pub(crate) mod layout;
pub(crate) mod paging;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod session;
pub(crate) mod sorting;
