//! Grounding: does a request need facts (scorer), where are they found (search), how do they get into the prompt (weave).

pub mod index;
mod invisible;
mod passage;
pub mod query;
pub mod scorer;
pub mod search;
pub mod weave;

pub use passage::Passage;
