//! What tests stand on: real peers that they start by themselves, and that are gone when they are.

mod postgres;

pub use postgres::Cluster;
