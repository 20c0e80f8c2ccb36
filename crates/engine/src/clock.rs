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

/// Time that all CPUs of the machine together have been idle since it started. `None` where the system does not say.
pub(crate) fn idle_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let ticks: u64 = stat.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace().nth(3)?.parse().ok()?;
    Some(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}
