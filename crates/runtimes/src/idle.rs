//! Idle connections to a member.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::connection::{Connection, Reuse};

/// How long a connection whose responses carry no ids stays unused, so that a surplus response arrives before the next
/// request is sent.
const SETTLE_TIME: Duration = Duration::from_millis(5);
/// How long idle connections are kept for the next burst of requests.
const MAX_IDLE: Duration = Duration::from_secs(30);

/// The connections that a request may use. Afterwards its connection is kept with the idle ones.
#[derive(Clone, Copy)]
pub(crate) enum Connections<'a> {
    Any(&'a IdleConnections),
    /// Only new ones, so that a request that failed at another member is sent only once more.
    New(&'a IdleConnections),
}

/// One thread's idle connections to one member, with the time since when they are idle, the longest idle first.
#[derive(Default)]
pub(crate) struct IdleConnections(Mutex<Idle>);

#[derive(Default)]
struct Idle {
    connections: VecDeque<(Instant, Connection)>,
    /// The number of unexpected responses that the member had sent when these connections were added.
    unexpected: u64,
}

impl IdleConnections {
    /// After an unexpected response, closes all connections.
    fn lock(&self, unexpected: u64) -> MutexGuard<'_, Idle> {
        let mut idle = self.0.lock();
        if idle.unexpected != unexpected {
            *idle = Idle { connections: VecDeque::new(), unexpected };
        }
        idle
    }

    /// Takes the most recently used connection, so that superfluous ones stay idle and expire; if that one has not settled,
    /// the one that has been idle longest.
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

    /// If the member has sent unexpected responses, keeps only connections whose responses carry ids.
    pub(crate) fn put(&self, connection: Connection, unexpected: u64) {
        if connection.reuse() == Reuse::Now || connection.reuse() == Reuse::WhenSettled && unexpected == 0 {
            let (mut idle, now) = (self.lock(unexpected), Instant::now());
            let outdated = idle.connections.partition_point(|(since, _)| now.duration_since(*since) > MAX_IDLE);
            idle.connections.drain(..outdated);
            idle.connections.push_back((now, connection));
        }
    }
}
