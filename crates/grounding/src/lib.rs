//! Grounding: `scorer` decides whether a request needs facts, `query` derives the search query, `index` and `search` find
//! passages, and `augment` adds them to the prompt. `grounder` combines these. Results are untrusted text until `augment`
//! has cleaned them. Only the derived query is sent to a search server.

pub mod augment;
mod cjk;
mod date;
#[cfg(test)]
mod fuzz;
mod grounder;
pub mod helpful;
pub mod index;
mod invisible;
mod local;
mod passage;
pub mod query;
pub mod scorer;
pub mod search;

pub use grounder::{Assessment, Grounder, Mode, Need, Search, SearchOutage};
pub use local::{Embedders, LocalSearch};
pub use passage::Passage;
