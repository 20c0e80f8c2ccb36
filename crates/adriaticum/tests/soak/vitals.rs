//! The memory, open files and threads of a process, and the rule that decides whether they have grown.

use std::fs;

use rustix::process::Pid;

/// Fluctuation of memory: the allocator keeps freed memory, and SQLite caches pages.
const MEMORY_TOLERANCE: f64 = 1.25;
const MEMORY_SLACK_KIB: u64 = 32 << 10;
/// Kept-alive connections to runtimes and databases. Those to runtimes have two descriptors each and stay unused for a
/// while after each response.
const FILES_SLACK: u64 = 96;
/// Threads for hashes, reports and searches, which start with the first one and then stay.
const THREADS_SLACK: u64 = 8;
/// How much the median of the last third may exceed that of the first.
const DRIFT: f64 = 1.08;
const DRIFT_SLACK_KIB: u64 = 6 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Vitals {
    pub(crate) memory_kib: u64,
    pub(crate) files: u64,
    pub(crate) threads: u64,
}

impl Vitals {
    pub(crate) fn read(pid: Pid) -> Self {
        let process = format!("/proc/{}", pid.as_raw_nonzero());
        let status = fs::read_to_string(format!("{process}/status")).unwrap();
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().next().unwrap().parse().unwrap()
        };
        let files = fs::read_dir(format!("{process}/fd")).unwrap().count() as u64;
        Self { memory_kib: number("VmRSS:"), files, threads: number("Threads:") }
    }
}

/// Samples of an idle process. The first one is the baseline for the others.
#[derive(Debug, Default)]
pub(crate) struct Life(Vec<Vitals>);

impl Life {
    pub(crate) fn add(&mut self, vitals: Vitals) {
        self.0.push(vitals);
    }

    /// What has grown, if anything has.
    pub(crate) fn growth(&self) -> Option<String> {
        let (first, rest) = self.0.split_first()?;
        let most_memory = (first.memory_kib as f64 * MEMORY_TOLERANCE) as u64 + MEMORY_SLACK_KIB;
        for (round, now) in rest.iter().enumerate() {
            let grown = now.memory_kib > most_memory
                || now.files > first.files + FILES_SLACK
                || now.threads > first.threads + THREADS_SLACK;
            if grown {
                return Some(format!("{first:?} became {now:?} after {} rounds", round + 1));
            }
        }
        let third = rest.len() / 3;
        let (begin, end) = (median(&rest[..third])?, median(&rest[rest.len() - third..])?);
        let drifts = end > (begin as f64 * DRIFT) as u64 + DRIFT_SLACK_KIB;
        drifts.then(|| format!("memory drifts from {begin} KiB to {end} KiB in {} rounds", rest.len()))
    }

    pub(crate) fn first_and_last(&self) -> Option<(Vitals, Vitals)> {
        Some((*self.0.first()?, *self.0.last()?))
    }
}

fn median(samples: &[Vitals]) -> Option<u64> {
    let mut memory: Vec<_> = samples.iter().map(|vitals| vitals.memory_kib).collect();
    memory.sort_unstable();
    memory.get(memory.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(memory: impl IntoIterator<Item = u64>) -> Life {
        Life(memory.into_iter().map(|mib| Vitals { memory_kib: mib << 10, files: 20, threads: 8 }).collect())
    }

    #[test]
    fn noise_is_no_growth_but_a_leak_is() {
        assert_eq!(life([30, 33, 31, 36, 32, 31, 34, 33, 35, 32]).growth(), None);
        assert!(life([21, 30, 669, 660]).growth().unwrap().contains("after 2 rounds"));
        assert!(life([30, 32, 34, 36, 38, 40, 42, 44, 46, 48]).growth().unwrap().contains("drifts"));
        let mut files = life([30, 30]);
        files.add(Vitals { memory_kib: 30 << 10, files: 21 + FILES_SLACK, threads: 8 });
        assert!(files.growth().is_some());
    }
}
