//! Grounding: does a request need facts (scorer), where are they found (search), how do they get into the prompt (weave).

mod passage;
pub mod scorer;
pub mod search;

pub use passage::Passage;
