//! Grounding: does a request need facts (scorer), where are they found (search), how do they get into the prompt (weave).

pub mod index;
mod passage;

pub use passage::Passage;
