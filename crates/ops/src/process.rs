//! Process metrics under the names of Prometheus' own client libraries. Systems without `/proc` export none.

use runtimes::stat_field;
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use crate::encode::{Metric, counter, gauge};

pub(crate) const PROCESS_METRICS: &[Metric<Process>] = &[
    counter("process_cpu_seconds", "CPU time of the process, user and system", |process| process.cpu_seconds),
    gauge("process_resident_memory_bytes", "Resident memory", |process| process.resident),
    gauge("process_virtual_memory_bytes", "Virtual memory", |process| process.reserved),
    gauge("process_open_fds", "Open file descriptors", |process| process.open_files),
    gauge("process_max_fds", "Maximum number of open file descriptors", |process| process.most_files),
    gauge("process_threads", "Threads", |process| process.threads),
];

pub(crate) struct Process {
    cpu_seconds: f64,
    resident: f64,
    reserved: f64,
    open_files: f64,
    most_files: f64,
    threads: f64,
}

impl Process {
    pub(crate) fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let field = |number| field(&stat, number);
        Self {
            cpu_seconds: (field(14) + field(15)) / clock_ticks_per_second() as f64,
            resident: field(24) * page_size() as f64,
            reserved: field(23),
            open_files: std::fs::read_dir("/proc/self/fd").map_or(f64::NAN, |files| files.count() as f64),
            most_files: getrlimit(Resource::Nofile).current.map_or(f64::NAN, |most| most as f64),
            threads: field(20),
        }
    }
}

/// NaN if the system does not have it.
fn field(stat: &str, number: usize) -> f64 {
    stat_field(stat, number).and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_parentheses_is_skipped() {
        let stat = "7 (a) b (c d) S 4 5 6 7 8 9 10 11 12 13 140 15 16 17 18 19 20 21 22 23 24 25";
        assert_eq!((field(stat, 4), field(stat, 14), field(stat, 24)), (4.0, 140.0, 24.0));
        assert!(field("", 14).is_nan() && field(stat, 60).is_nan());
    }
}
