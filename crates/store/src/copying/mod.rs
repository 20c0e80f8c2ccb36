//! Copies of the whole database: backups, and moves from SQLite to PostgreSQL.

pub(crate) mod backup;
pub(crate) mod copy;
mod export;
mod import;
