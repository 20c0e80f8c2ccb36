//! The measurements of a run.

use crate::fleet::Fleet;
use crate::simulation::Time;

#[derive(Debug, Clone)]
pub(crate) struct Results {
    pub(crate) policy: &'static str,
    pub(crate) failed: u64,
    /// Requests that were moved to another member while they waited.
    pub(crate) moved: u64,
    /// Requests with neither a completion nor an error at the end.
    pub(crate) lost: usize,
    /// Sorted by `finish`.
    latencies: Vec<Time>,
    cached_tokens: u64,
    prompt_tokens: u64,
    requests_by_member: Vec<u64>,
    /// One per second: the highest load of a member divided by the mean.
    peaks: Vec<f64>,
}

impl Results {
    pub(crate) fn new(policy: &'static str, members: usize) -> Self {
        let (latencies, peaks) = (Vec::new(), Vec::new());
        Self {
            policy,
            failed: 0,
            moved: 0,
            lost: 0,
            latencies,
            cached_tokens: 0,
            prompt_tokens: 0,
            requests_by_member: vec![0; members],
            peaks,
        }
    }

    pub(crate) fn record_lookup(&mut self, cached: u32, prompt: u32, member: usize) {
        self.cached_tokens += u64::from(cached);
        self.prompt_tokens += u64::from(prompt);
        self.requests_by_member[member] += 1;
    }

    pub(crate) fn record_latency(&mut self, took: Time) {
        self.latencies.push(took);
    }

    pub(crate) fn record_load(&mut self, fleet: &Fleet) {
        let (sum, highest) = fleet.running().fold((0, 0), |(sum, highest), load| (sum + load, highest.max(load)));
        if sum > 0 {
            self.peaks.push(f64::from(highest) * self.requests_by_member.len() as f64 / f64::from(sum));
        }
    }

    pub(crate) fn finish(&mut self) {
        self.latencies.sort_unstable();
    }

    pub(crate) fn completed_count(&self) -> usize {
        self.latencies.len()
    }

    /// The fraction of all prompt tokens that was found in a cache.
    pub(crate) fn hit_rate(&self) -> f64 {
        self.cached_tokens as f64 / self.prompt_tokens.max(1) as f64
    }

    /// In milliseconds.
    pub(crate) fn mean(&self) -> f64 {
        self.latencies.iter().sum::<Time>() as f64 / self.latencies.len().max(1) as f64 / 1_000.0
    }

    /// In milliseconds.
    pub(crate) fn quantile(&self, part: f64) -> f64 {
        let at = (self.latencies.len() as f64 * part) as usize;
        self.latencies.get(at.min(self.latencies.len().saturating_sub(1))).map_or(0.0, |time| *time as f64 / 1_000.0)
    }

    /// Requests of the busiest member divided by the mean.
    pub(crate) fn busiest(&self) -> f64 {
        let mean = self.requests_by_member.iter().sum::<u64>() as f64 / self.requests_by_member.len() as f64;
        self.requests_by_member.iter().max().map_or(0.0, |most| *most as f64 / mean.max(1.0))
    }

    /// The mean of the peaks.
    pub(crate) fn peak(&self) -> f64 {
        self.peaks.iter().sum::<f64>() / self.peaks.len().max(1) as f64
    }
}
