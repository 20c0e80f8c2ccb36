//! CPU time of this process, and busy and idle time of the machine.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Measures elapsed time and this process's CPU time.
pub(crate) struct CpuClock {
    began: Instant,
    cpu: Duration,
}

impl CpuClock {
    pub(crate) fn start() -> Self {
        Self { began: Instant::now(), cpu: cpu_time() }
    }

    /// Elapsed time, and CPU time of all threads of this process.
    pub(crate) fn elapsed(&self) -> (Duration, Duration) {
        (self.began.elapsed(), cpu_time().saturating_sub(self.cpu))
    }

    /// The fraction of the time of `cpus` CPUs that this process got.
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
    /// Used by processes and the system. Time that a host takes from a virtual machine is neither busy nor idle.
    pub(crate) busy: Duration,
    pub(crate) cpus: usize,
}

impl MachineTime {
    /// Of the control group if that has a quota, as in a container; otherwise of the machine. `None` if the system does not
    /// report it.
    pub(crate) fn now() -> Option<Self> {
        Self::of_group().or_else(|| {
            Self::parse(&std::fs::read_to_string("/proc/stat").ok()?, rustix::param::clock_ticks_per_second())
        })
    }

    fn of_group() -> Option<Self> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let read = |file: &str| std::fs::read_to_string(Path::new("/sys/fs/cgroup").join(group).join(file)).ok();
        let uptime = clock_gettime(ClockId::Monotonic);
        let uptime = Duration::new(uptime.tv_sec.try_into().ok()?, uptime.tv_nsec.try_into().ok()?);
        Self::parse_group(&read("cpu.max")?, &read("cpu.stat")?, uptime)
    }

    fn parse_group(max: &str, stat: &str, uptime: Duration) -> Option<Self> {
        let (quota, period) = max.trim().split_once(' ')?;
        let quota = quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?; // "max" is none
        let busy = stat.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
        let busy = Duration::from_micros(busy.parse().ok()?);
        Some(Self { idle: uptime.mul_f64(quota).saturating_sub(busy), busy, cpus: (quota.ceil() as usize).max(1) })
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
    fn a_container_has_the_time_of_its_quota() {
        let (stat, uptime) = ("usage_usec 3500000\nuser_usec 3000000\n", Duration::from_secs(10));
        let time = MachineTime::parse_group("150000 100000\n", stat, uptime).unwrap();
        assert_eq!((time.cpus, time.busy, time.idle), (2, Duration::from_millis(3500), Duration::from_millis(11_500)));
        assert!(MachineTime::parse_group("max 100000\n", stat, uptime).is_none());
    }

    #[test]
    fn the_kernels_figures_are_read() {
        let stat = "cpu  100 20 30 400 5 6 7 800 9 10\ncpu0 1 2 3\ncpu1 4 5 6\nintr 1 2\n";
        let expected = MachineTime { idle: Duration::from_secs(4), busy: Duration::from_millis(1630), cpus: 2 };
        assert_eq!(MachineTime::parse(stat, 100), Some(expected));
        assert_eq!(MachineTime::parse("cpu  1 2 3\n", 100), None);
        assert_eq!(MachineTime::parse("", 100), None);
    }
}
