//! Callers that disconnect: a future is dropped at an await.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::thread;
use std::time::Duration;

/// Polls a future until it was pending `times` times, then drops it; returns its output if it is ready before. The event
/// that it waits for may still arrive during `pause`, unnoticed.
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
