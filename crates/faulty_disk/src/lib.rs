//! A folder on a disk that fails, fills up and loses power. For tests only; no part of the program.
//!
//! A program that links this crate calls its `open`, `write`, `fsync` and so on instead of the C library's (`calls`):
//! SQLite's own file layer as well as `std::fs`. Files in a `Disk`'s folder are watched, all others are passed on. The
//! files themselves are real, so locks and shared memory work as ever; what would be left of them after a power cut is
//! kept beside them (`model`), and nothing is ever synced for real, so a thousand power cuts take seconds.
#![allow(unsafe_code, reason = "functions of the C library are replaced, and called by raw system calls")]

mod calls;
mod disk;
mod model;
mod vfs;

pub use disk::{Counts, Cut, Disk, Faults, Operation};
pub use vfs::with_default_vfs;
