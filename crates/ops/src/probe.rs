//! An active health probe of one part, run on demand.
//!
//! A readiness check starts one, at most once per interval, and waits for it only briefly; until it has ended, the last
//! result counts. So the recovery of a part is detected without any request, and a service without readiness checks sends
//! no probes.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

/// A probe's timeout, and the minimum time between the starts of two probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// How long a readiness check waits for a probe: less than the second that orchestrators commonly grant.
const CHECK_TIMEOUT: Duration = Duration::from_millis(700);

pub(crate) struct Probe {
    /// When the last probe started, and its number.
    started: Mutex<(Option<Instant>, u64)>,
    outcome: watch::Sender<ProbeOutcome>,
    interval: Duration,
    check_timeout: Duration,
}

#[derive(Clone, Copy, Default)]
struct ProbeOutcome {
    number: u64,
    is_healthy: Option<bool>,
}

impl Probe {
    pub(crate) fn new() -> Self {
        Self {
            started: Mutex::default(),
            outcome: watch::Sender::default(),
            interval: PROBE_INTERVAL,
            check_timeout: CHECK_TIMEOUT,
        }
    }

    /// The last result; `None` before the first.
    pub(crate) fn last(&self) -> Option<bool> {
        self.outcome.borrow().is_healthy
    }

    /// Runs a probe, unless one was started within the interval.
    pub(crate) async fn run(
        &self,
        part: &'static str,
        probe: impl Future<Output = Result<(), String>> + Send + 'static,
    ) -> Option<bool> {
        let mut outcomes = self.outcome.subscribe();
        let number = self.start(part, probe);
        // A timeout means that the last result still counts.
        let _ = tokio::time::timeout(self.check_timeout, outcomes.wait_for(|outcome| outcome.number >= number)).await;
        self.last()
    }

    /// The number of the latest probe.
    fn start(&self, part: &'static str, probe: impl Future<Output = Result<(), String>> + Send + 'static) -> u64 {
        let mut started = self.started.lock();
        let (when, number) = &mut *started;
        if when.is_some_and(|when| when.elapsed() < self.interval) {
            return *number;
        }
        *when = Some(Instant::now());
        *number += 1;
        let (number, outcome) = (*number, self.outcome.clone());
        tokio::spawn(async move {
            let result = tokio::time::timeout(PROBE_INTERVAL, probe).await.unwrap_or_else(|_| Err("timed out".into()));
            if let Err(cause) = &result {
                tracing::warn!(part, cause, "a health probe failed");
            }
            outcome.send_replace(ProbeOutcome { number, is_healthy: Some(result.is_ok()) });
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
    async fn a_check_waits_briefly_and_the_last_result_counts_until_the_next() {
        let probe =
            Probe { interval: Duration::from_secs(3600), check_timeout: Duration::from_millis(10), ..Probe::new() };
        assert_eq!(probe.last(), None);
        let (end, ended) = oneshot::channel();
        assert_eq!(probe.run("it", async { ended.await.unwrap() }).await, None, "it takes longer");
        assert_eq!(probe.run("it", ready(Ok(()))).await, None, "one probe at a time");
        end.send(Ok(())).unwrap();
        probe.outcome.subscribe().wait_for(|outcome| outcome.number == 1).await.unwrap();
        assert_eq!(probe.run("it", ready(Err("not run".into()))).await, Some(true));
    }

    #[tokio::test]
    async fn a_part_goes_down_and_comes_back() {
        let probe = Probe { interval: Duration::ZERO, check_timeout: Duration::from_secs(60), ..Probe::new() };
        for (result, is_healthy) in [(Ok(()), true), (Err("down"), false), (Err("still down"), false), (Ok(()), true)] {
            assert_eq!(probe.run("it", ready(result.map_err(str::to_owned))).await, Some(is_healthy));
            assert_eq!(probe.last(), Some(is_healthy));
        }
        let probe = Probe { check_timeout: Duration::from_millis(10), ..probe };
        assert_eq!(probe.run("it", pending()).await, Some(true), "the last result counts until there is another");
    }
}
