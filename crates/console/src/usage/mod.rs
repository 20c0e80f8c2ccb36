//! What was used: figures, charts, single requests, exports, and the prices behind costs.
//!
//! All figures come from the store's reports and are only displayed here. Message text is not stored, so no page has it.

pub(crate) mod breakdown;
pub(crate) mod chart;
pub(crate) mod charts;
pub(crate) mod export;
pub(crate) mod page;
pub(crate) mod prices;
pub(crate) mod range;
pub(crate) mod requests;
