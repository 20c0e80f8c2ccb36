//! What a connection is doing, and since when: what its timeouts and its eviction depend on.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use admission::Permit;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::connection::Timeouts;
use crate::connections::Peer;

/// A response of which nothing could be sent for so long does not keep its connection from being idle.
const STALLED: Duration = Duration::from_secs(5);

/// Updated by the connection's socket and requests. Times are in microseconds from its start, and some milliseconds late:
/// a precise clock takes several times as long to read.
pub(crate) struct Activity {
    start: Instant,
    /// The same by the clock that is used from then on.
    coarse_start: Duration,
    /// Requests between their head and their response.
    in_flight: AtomicU32,
    /// The same, until the response's body is produced as well.
    open: AtomicU32,
    /// Whether a request's sender has proved who it is. It holds until there is no open request.
    is_identified: AtomicBool,
    idle_since: AtomicU64,
    /// When the first byte of a head arrived, plus one; 0 while none has.
    head_since: AtomicU64,
    evicted: Notify,
    /// Held until the connection has ended.
    eviction: OnceLock<Permit<Peer>>,
}

impl Activity {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            coarse_start: coarse_time(),
            in_flight: AtomicU32::new(0),
            open: AtomicU32::new(0),
            is_identified: AtomicBool::new(false),
            idle_since: AtomicU64::new(0),
            head_since: AtomicU64::new(1),
            evicted: Notify::new(),
            eviction: OnceLock::new(),
        }
    }

    fn now(&self) -> u64 {
        coarse_time().saturating_sub(self.coarse_start).as_micros() as u64
    }

    /// When to close the connection if nothing happens until then.
    pub(crate) fn deadline(&self, timeouts: Timeouts) -> Instant {
        let since = |micros| self.start + Duration::from_micros(micros);
        if self.is_busy() {
            return Instant::now() + timeouts.idle;
        }
        match self.head_since.load(Ordering::Relaxed) {
            0 => since(self.idle_since.load(Ordering::Relaxed)) + timeouts.idle,
            head => since(head - 1) + timeouts.head,
        }
    }

    /// Whether a request is being handled.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) > 0
    }

    /// Whether there is a request whose response was not produced to its end.
    pub(crate) fn has_requests(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }

    /// Whether a request of an identified sender is being handled.
    pub(crate) fn is_working(&self) -> bool {
        self.is_busy() && self.is_identified.load(Ordering::Relaxed)
    }

    /// How long the connection has been without a request of an identified sender, or waiting for a request's head;
    /// `None` if it has one.
    pub(crate) fn idle_time(&self) -> Option<Duration> {
        if self.is_working() {
            return None;
        }
        let since = match self.head_since.load(Ordering::Relaxed) {
            0 => self.idle_since.load(Ordering::Relaxed),
            head => head - 1,
        };
        let idle = Duration::from_micros(self.now().saturating_sub(since));
        let is_read = self.has_requests() && self.is_identified.load(Ordering::Relaxed);
        (!is_read || idle >= STALLED).then_some(idle)
    }

    pub(crate) fn identify(&self) {
        self.is_identified.store(true, Ordering::Relaxed);
    }

    /// The handshake is over: the time for the first head begins.
    pub(crate) fn serving_begins(&self) {
        self.head_since.store(self.now() + 1, Ordering::Relaxed);
    }

    pub(crate) fn request_begins(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        // Until its sender is identified, it waits since its head began.
        if let Some(head) = self.head_since.swap(0, Ordering::Relaxed).checked_sub(1) {
            self.idle_since.store(head, Ordering::Relaxed);
        }
    }

    pub(crate) fn response_begins(&self) {
        self.idle_since.store(self.now(), Ordering::Relaxed);
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn request_ends(&self) {
        if self.open.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.is_identified.store(false, Ordering::Relaxed);
        }
    }

    /// A connection is not idle while a client still reads a response, however slowly.
    pub(crate) fn bytes_sent(&self) {
        if !self.is_busy() {
            self.idle_since.store(self.now(), Ordering::Relaxed);
        }
    }

    pub(crate) fn bytes_received(&self) {
        if !self.is_busy() && self.head_since.load(Ordering::Relaxed) == 0 {
            self.head_since.store(self.now() + 1, Ordering::Relaxed);
        }
    }

    /// Tells the connection to make way.
    pub(crate) fn evict(&self, permit: Permit<Peer>) {
        let _ = self.eviction.set(permit); // it is evicted once
        self.evicted.notify_one();
    }

    /// Waits until the connection is told to make way.
    pub(crate) async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

/// By a clock that the system moves every few milliseconds.
fn coarse_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
