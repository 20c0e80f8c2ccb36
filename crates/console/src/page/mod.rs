//! What every page is made of: the console's state, the request and its sender, forms, the response, the frame, lists.
//!
//! Only `response` sets headers, only `form` decides whether a form is ours, and no page contains an inline script or
//! style. Nothing here knows what a page is about.

pub(crate) mod assets;
mod components;
mod console;
mod cookies;
mod error;
mod export;
mod form;
mod history;
mod layout;
mod paging;
mod request;
mod response;
mod session;
mod sorting;

pub(crate) use self::components::{
    button_form, change, columns, copyable, csrf_field, data_table, empty, error_message, failed, heading, measured,
    notice, now, or_placeholder, password_input, relative_time, search_input, select, table, time,
};
pub use self::console::{Console, ConsoleSettings};
pub(crate) use self::cookies::Cookie;
pub(crate) use self::error::{ConsoleError, ConsoleResult, found, parse_id, sentence};
pub(crate) use self::export::{Export, Format, csv, export_links};
pub(crate) use self::form::{Draft, Form, Refusal};
pub(crate) use self::history::{History, parse_end, period, period_inputs};
pub(crate) use self::layout::{Area, error_page, signed_out_page};
pub(crate) use self::paging::Paging;
pub(crate) use self::request::{ConsoleRequest, Fields};
pub(crate) use self::response::ConsoleResponse;
pub(crate) use self::session::{Anonymous, FormSender, SignedIn};
pub(crate) use self::sorting::{Column, Direction, Order, remembered};
