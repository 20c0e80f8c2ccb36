//! Waiting for conditions, and parallel work.

use std::thread;
use std::time::{Duration, Instant};

/// How long a test waits for an event before it fails. Much longer than any event takes, even on a busy machine, but
/// shorter than the service's idle and stop timeouts: none of them may expire and let a test pass.
pub const TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Polls until there is a value.
pub fn wait_for<T>(what: &str, poll: impl FnMut() -> Option<T>) -> T {
    wait_for_within(TIMEOUT, what, poll)
}

/// Polls until there is a value, for what takes longer than the usual timeout.
pub fn wait_for_within<T>(timeout: Duration, what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(began.elapsed() < timeout, "timed out: {what}");
        thread::sleep(POLL_INTERVAL);
    }
}

/// Works on all items in parallel, one thread each; returns the results in the items' order.
pub fn all_at_once<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let workers: Vec<_> = items.iter().map(|item| scope.spawn(|| work(item))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    })
}
