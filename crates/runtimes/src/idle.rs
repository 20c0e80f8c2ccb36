//! Connections to a member that no request uses now.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::connection::{Connection, Reuse};

/// How long a connection whose responses carry no ids stays unused, so that a spare response has arrived before the
/// next request is sent.
const SETTLE_TIME: Duration = Duration::from_millis(5);
/// How long connections are kept for a rush that may come again.
const MAX_IDLE: Duration = Duration::from_secs(30);

/// Which connections a request may be sent over. It is kept with the idle ones afterwards.
#[derive(Clone, Copy)]
pub(crate) enum Connections<'a> {
    Any(&'a IdleConnections),
    /// New ones only: a request that has failed elsewhere is sent once more, and not twice.
    New(&'a IdleConnections),
}

/// One thread's unused connections to one member, with the time since when they are, from the longest to the latest.
#[derive(Default)]
pub(crate) struct IdleConnections(Mutex<Idle>);

#[derive(Default)]
struct Idle {
    connections: VecDeque<(Instant, Connection)>,
    /// How many unexpected responses the member had sent when they were put here.
    unexpected: u64,
}

impl IdleConnections {
    /// After an unexpected response all are closed.
    fn lock(&self, unexpected: u64) -> MutexGuard<'_, Idle> {
        let mut idle = self.0.lock();
        if idle.unexpected != unexpected {
            *idle = Idle { connections: VecDeque::new(), unexpected };
        }
        idle
    }

    /// The latest, so that those which are too many are not used and end; or else the one that has settled longest.
    pub(crate) fn take(&self, unexpected: u64) -> Option<Connection> {
        let (mut idle, now) = (self.lock(unexpected), Instant::now());
        let is_ready = |(since, connection): &(Instant, Connection)| {
            connection.reuse() == Reuse::Now || now.duration_since(*since) >= SETTLE_TIME
        };
        let connections = &mut idle.connections;
        let taken = match connections.back().is_some_and(is_ready) {
            true => connections.pop_back(),
            false => connections.pop_front_if(|idle| is_ready(idle)),
        };
        taken.map(|(_, connection)| connection)
    }

    /// Of a member that has sent unexpected responses, only connections whose responses carry ids are kept.
    pub(crate) fn put(&self, connection: Connection, unexpected: u64) {
        if connection.reuse() == Reuse::Now || connection.reuse() == Reuse::WhenSettled && unexpected == 0 {
            let (mut idle, now) = (self.lock(unexpected), Instant::now());
            let outdated = idle.connections.partition_point(|(since, _)| now.duration_since(*since) > MAX_IDLE);
            idle.connections.drain(..outdated);
            idle.connections.push_back((now, connection));
        }
    }
}
