//! How much of the CPUs this process got, and how much nobody used.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Measures this process's CPU time beside the time that passes.
pub(crate) struct CpuClock {
    began: Instant,
    cpu: Duration,
}

impl CpuClock {
    pub(crate) fn start() -> Self {
        Self { began: Instant::now(), cpu: cpu_time() }
    }

    /// Time that has passed, and CPU time of all threads of this process.
    pub(crate) fn elapsed(&self) -> (Duration, Duration) {
        (self.began.elapsed(), cpu_time().saturating_sub(self.cpu))
    }

    /// Which part of the time of so many CPUs this process got.
    pub(crate) fn share_of(&self, cpus: usize) -> f64 {
        let (passed, cpu) = self.elapsed();
        cpu.as_secs_f64() / (passed.as_secs_f64() * cpus as f64).max(f64::MIN_POSITIVE)
    }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Time of all CPUs of the machine together since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MachineTime {
    pub(crate) idle: Duration,
    /// Taken by any process or by the system. What a host took from a virtual machine is neither busy nor idle.
    pub(crate) busy: Duration,
    pub(crate) cpus: usize,
}

impl MachineTime {
    /// `None` where the system does not say.
    pub(crate) fn now() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/stat").ok()?, rustix::param::clock_ticks_per_second())
    }

    fn parse(stat: &str, ticks_per_second: u64) -> Option<Self> {
        let mut lines = stat.lines();
        let all: Vec<u64> = lines
            .next()?
            .strip_prefix("cpu ")?
            .split_ascii_whitespace()
            .map_while(|field| field.parse().ok())
            .collect();
        let [user, nice, system, idle, _iowait, interrupts, soft_interrupts] = *all.first_chunk()?;
        let seconds = |ticks: u64| Duration::from_secs_f64(ticks as f64 / ticks_per_second as f64);
        Some(Self {
            idle: seconds(idle),
            busy: seconds(user + nice + system + interrupts + soft_interrupts),
            cpus: lines.take_while(|line| line.starts_with("cpu")).count(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_figures_are_read() {
        let stat = "cpu  100 20 30 400 5 6 7 800 9 10\ncpu0 1 2 3\ncpu1 4 5 6\nintr 1 2\n";
        let expected = MachineTime { idle: Duration::from_secs(4), busy: Duration::from_millis(1630), cpus: 2 };
        assert_eq!(MachineTime::parse(stat, 100), Some(expected));
        assert_eq!(MachineTime::parse("cpu  1 2 3\n", 100), None);
        assert_eq!(MachineTime::parse("", 100), None);
    }
}
