//! Callers that hang up: a future is dropped where it waits.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::thread;
use std::time::Duration;

/// Polls a future until it was pending for that many times, and drops it there; its output, if it has one before. What
/// it waits for may still arrive during `pause`, unseen.
pub async fn drop_when_pending<F: Future>(times: usize, pause: Duration, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut pending = 0;
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => {
            pending += 1;
            if pending < times {
                return Poll::Pending;
            }
            thread::sleep(pause);
            Poll::Ready(None)
        }
    })
    .await
}
