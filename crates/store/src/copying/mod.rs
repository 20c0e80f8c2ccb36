//! Copies of the whole database: backups, and moves from SQLite to PostgreSQL. A copy is one snapshot, is
//! compared with the original, and never overwrites data.

pub(crate) mod backup;
pub(crate) mod copy;
mod import;
mod source;
