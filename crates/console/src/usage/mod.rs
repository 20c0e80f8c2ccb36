//! What was used: figures, charts, single requests, and the prices behind costs.
//!
//! All figures come from the store's reports and are only displayed here. Message text is not stored, so no page has it.
//! Nothing here knows the pages of keys and people.

mod breakdown;
mod chart;
mod charts;
pub(crate) mod page;
pub(crate) mod prices;
mod range;
pub(crate) mod requests;

pub(crate) use self::page::last_day;
