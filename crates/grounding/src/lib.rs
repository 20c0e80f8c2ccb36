//! Grounding: does a request need facts (`scorer`), what is searched for (`query`), where (`index`, `search`), and how does what was
//! found get into the prompt (`weave`). `grounder` puts them together. Results are hostile text until they are woven, and only
//! the derived query leaves the house.

pub mod augment;
mod cjk;
mod date;
mod grounder;
pub mod index;
mod invisible;
mod local;
mod passage;
pub mod query;
pub mod scorer;
pub mod search;

pub use grounder::{Assessment, Grounder, Mode, Search};
pub use local::LocalSearch;
pub use passage::Passage;
