//! The state of a connection and its start time: the basis of its timeouts and its eviction.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use admission::Permit;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::connection::Timeouts;
use crate::connections::Peer;

/// Once no byte of a response could be sent for this long, its connection counts as idle.
const STALLED: Duration = Duration::from_secs(5);

/// Updated by the connection's socket and requests. Times are microseconds since its start.
pub(crate) struct Activity {
    start: Instant,
    /// Requests between their head and their response.
    in_flight: AtomicU32,
    /// The same, until the response's body is produced as well.
    open: AtomicU32,
    /// Whether the sender of a request is authenticated. Reset when no request is open.
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
        self.start.elapsed().as_micros() as u64
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

    /// Whether there is a request whose response is not yet complete.
    pub(crate) fn has_requests(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }

    /// Whether a request of an identified sender is being handled.
    pub(crate) fn is_working(&self) -> bool {
        self.is_busy() && self.is_identified.load(Ordering::Relaxed)
    }

    /// How long the connection has been without a request of an identified sender, or has waited for a request's head;
    /// `None` while it has such a request.
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
        // Until its sender is identified, the connection counts as idle since the request's head began.
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

    /// Tells the connection to close in favour of another one.
    pub(crate) fn evict(&self, permit: Permit<Peer>) {
        let _ = self.eviction.set(permit); // it is evicted once
        self.evicted.notify_one();
    }

    /// Waits until the connection is evicted.
    pub(crate) async fn evicted(&self) {
        self.evicted.notified().await;
    }
}
