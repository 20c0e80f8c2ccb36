//! A folder on a disk that fails, fills up and loses power. For tests only; not part of the program.
//!
//! A program that links this crate calls its `open`, `write`, `fsync` and so on instead of the C library's (`calls`), from
//! SQLite's file layer as well as from `std::fs`. Files in a `Disk`'s folder are watched; calls for other files are passed
//! on. The files are real, so locks and shared memory work as usual. A model keeps their possible contents after a power
//! cut (`model`). Nothing is really synced, so a thousand power cuts take seconds.
#![allow(unsafe_code, reason = "functions of the C library are replaced, and called by raw system calls")]

mod calls;
mod disk;
mod model;
mod vfs;

pub use disk::{Counts, Cut, Disk, Faults, Operation};
pub use vfs::with_default_vfs;
