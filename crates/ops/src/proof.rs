//! Seen to work, not only believed to: what is found out by asking when nothing else has shown it.
//!
//! Somebody who asks whether the service is ready has it asked, at most once in a while, and waits for a moment at the most;
//! whoever asks meanwhile is told what was found out last. So a part that was down is found to be back without any request,
//! and a service that nobody looks at asks nobody.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

/// How long an attempt may take, and how long at least lies between the beginnings of two.
const ATTEMPT: Duration = Duration::from_secs(10);
/// How long whoever looks waits for an attempt: less than the second that probes commonly grant.
const MOMENT: Duration = Duration::from_millis(700);

/// What was found out by asking.
pub(crate) struct Proof {
    /// When the last attempt began, and which one it was.
    begun: Mutex<(Option<Instant>, u64)>,
    found: watch::Sender<Found>,
    pause: Duration,
    moment: Duration,
}

#[derive(Clone, Copy, Default)]
struct Found {
    /// Which attempt found it.
    attempt: u64,
    works: Option<bool>,
}

impl Proof {
    pub(crate) fn none() -> Self {
        Self { begun: Mutex::default(), found: watch::Sender::default(), pause: ATTEMPT, moment: MOMENT }
    }

    /// What was found last; `None` if nothing was yet.
    pub(crate) fn last(&self) -> Option<bool> {
        self.found.borrow().works
    }

    /// Tries it, unless that was done a short while ago.
    pub(crate) async fn look(
        &self,
        what: &'static str,
        attempt: impl Future<Output = Result<(), String>> + Send + 'static,
    ) -> Option<bool> {
        let mut found = self.found.subscribe();
        let number = self.begin(what, attempt);
        let waited = tokio::time::timeout(self.moment, found.wait_for(|found| found.attempt >= number)).await;
        drop(waited); // it holds what was found, or that it takes longer
        self.last()
    }

    /// The number of the attempt that is, or was, the last.
    fn begin(&self, what: &'static str, attempt: impl Future<Output = Result<(), String>> + Send + 'static) -> u64 {
        let mut begun = self.begun.lock();
        let (when, number) = &mut *begun;
        if when.is_some_and(|when| when.elapsed() < self.pause) {
            return *number;
        }
        *when = Some(Instant::now());
        *number += 1;
        let (number, found) = (*number, self.found.clone());
        tokio::spawn(async move {
            let tried =
                tokio::time::timeout(ATTEMPT, attempt).await.unwrap_or_else(|_| Err("no answer in time".into()));
            if let Err(cause) = &tried {
                tracing::warn!(part = what, cause, "it was asked whether it works, and does not");
            }
            found.send_replace(Found { attempt: number, works: Some(tried.is_ok()) });
        });
        number
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn nobody_waits_for_long_and_what_was_found_is_told_until_it_is_tried_again() {
        let proof = Proof { pause: Duration::from_secs(3600), moment: Duration::from_millis(10), ..Proof::none() };
        assert_eq!(proof.last(), None);
        let (answer, answered) = oneshot::channel();
        assert_eq!(proof.look("it", async { answered.await.unwrap() }).await, None, "it takes longer");
        assert_eq!(proof.look("it", ready(Ok(()))).await, None, "one attempt at a time");
        answer.send(Ok(())).unwrap();
        proof.found.subscribe().wait_for(|found| found.attempt == 1).await.unwrap();
        assert_eq!(proof.look("it", ready(Err("not asked".into()))).await, Some(true));
    }

    #[tokio::test]
    async fn it_comes_and_goes() {
        let proof = Proof { pause: Duration::ZERO, moment: Duration::from_secs(60), ..Proof::none() };
        for (tried, works) in [(Ok(()), true), (Err("down"), false), (Err("still down"), false), (Ok(()), true)] {
            assert_eq!(proof.look("it", ready(tried.map_err(str::to_owned))).await, Some(works));
            assert_eq!(proof.last(), Some(works));
        }
        let proof = Proof { moment: Duration::from_millis(10), ..proof };
        assert_eq!(proof.look("it", pending()).await, Some(true), "the last word counts until there is another");
    }
}
