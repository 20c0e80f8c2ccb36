//! What came out of a run.

use super::Time;
use super::fleet::Fleet;

#[derive(Debug, Clone)]
pub(crate) struct Figures {
    pub(crate) policy: &'static str,
    pub(crate) failed: u64,
    /// Requests that had neither an answer nor an error at the end.
    pub(crate) lost: usize,
    /// In microseconds, sorted at the end.
    latencies: Vec<Time>,
    found: u64,
    prompts: u64,
    asked: Vec<u64>,
    /// Of every second: the highest load of a member over the mean.
    peaks: Vec<f64>,
}

impl Figures {
    pub(crate) fn new(policy: &'static str, members: usize) -> Self {
        let (latencies, peaks) = (Vec::new(), Vec::new());
        Self { policy, failed: 0, lost: 0, latencies, found: 0, prompts: 0, asked: vec![0; members], peaks }
    }

    pub(crate) fn looked_up(&mut self, found: u32, prompt: u32, member: usize) {
        self.found += u64::from(found);
        self.prompts += u64::from(prompt);
        self.asked[member] += 1;
    }

    pub(crate) fn completed(&mut self, took: Time) {
        self.latencies.push(took);
    }

    pub(crate) fn weighed(&mut self, fleet: &Fleet) {
        let (sum, highest) = fleet.running().fold((0, 0), |(sum, highest), load| (sum + load, highest.max(load)));
        if sum > 0 {
            self.peaks.push(f64::from(highest) * self.asked.len() as f64 / f64::from(sum));
        }
    }

    pub(crate) fn finish(&mut self) {
        self.latencies.sort_unstable();
    }

    pub(crate) fn completed_count(&self) -> usize {
        self.latencies.len()
    }

    /// Prompt tokens that were found in a cache, of all.
    pub(crate) fn hit_rate(&self) -> f64 {
        self.found as f64 / self.prompts.max(1) as f64
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

    /// Requests of the member that was asked most, over the mean.
    pub(crate) fn most_asked(&self) -> f64 {
        let mean = self.asked.iter().sum::<u64>() as f64 / self.asked.len() as f64;
        self.asked.iter().max().map_or(0.0, |most| *most as f64 / mean.max(1.0))
    }

    /// The highest load of a member over the mean, on average.
    pub(crate) fn peak(&self) -> f64 {
        self.peaks.iter().sum::<f64>() / self.peaks.len().max(1) as f64
    }
}
