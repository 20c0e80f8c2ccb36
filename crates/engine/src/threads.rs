//! How many threads compute: as many as the tuning found best, and fewer while other processes need the CPUs.
//!
//! Threads wait for each other many times in a step. If another process has the CPU of one of them, all others wait, and
//! one busy process costs nine tenths of the speed instead of its share. With one thread less, the other process has a
//! CPU to itself.
//!
//! Pure: measured times come in, numbers of threads come out.

use std::time::Duration;

/// Measurements over a time in which the engine computed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) passed: Duration,
    /// CPU time of all threads of this process.
    pub(crate) cpu: Duration,
    /// `None` if unknown.
    pub(crate) machine: Option<MachineSample>,
}

/// The machine's CPUs in that time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MachineSample {
    pub(crate) cpus: usize,
    pub(crate) idle: Duration,
    /// Taken by other processes.
    pub(crate) others: Duration,
}

/// CPUs that other processes must use before they count: a service in front of the engine uses some, too.
const MIN_OTHERS: f64 = 0.35;
/// The CPU time that the threads of a step may lack, in CPUs: it goes to interrupts and this process's other work.
const TOLERANCE: f64 = 0.15;
/// How long to wait before more threads are tried. Doubled each time that they were too many.
const MIN_PATIENCE: Duration = Duration::from_millis(500);
const MAX_PATIENCE: Duration = Duration::from_secs(16);

pub(crate) struct Threads {
    max: usize,
    pub(crate) now: usize,
    /// Since the last change.
    passed: Duration,
    patience: Duration,
}

impl Threads {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, now: max, passed: Duration::ZERO, patience: MIN_PATIENCE }
    }

    /// Takes a measurement into account and returns the number of threads from now on.
    pub(crate) fn observe(&mut self, sample: &Sample) -> usize {
        self.passed += sample.passed;
        let Some(machine) = sample.machine else { return self.now };
        let cpus = |time: Duration| time.as_secs_f64() / sample.passed.as_secs_f64().max(f64::MIN_POSITIVE);
        let (got, idle, others) = (cpus(sample.cpu), cpus(machine.idle), cpus(machine.others));
        // A thread that lacks time while a CPU is idle was asleep, because it had no work. A thread that lacks time though
        // others use little is on a virtual machine whose host takes the time: fewer threads would not help.
        let are_too_many = got + idle < self.now as f64 - TOLERANCE && others > MIN_OTHERS;
        let free = machine.cpus as f64 - others;
        if self.now > 1 && are_too_many {
            // The last increase was too much if it did not last.
            if self.passed < self.patience && self.passed > sample.passed {
                self.patience = (self.patience * 2).min(MAX_PATIENCE);
            }
            self.set((got + TOLERANCE / 2.0) as usize);
        } else if self.now < self.max && self.passed >= self.patience && free + MIN_OTHERS >= (self.now + 1) as f64 {
            self.set((free + MIN_OTHERS) as usize);
        } else if self.passed > 4 * self.patience {
            self.patience = (self.patience / 2).max(MIN_PATIENCE);
        }
        self.now
    }

    fn set(&mut self, threads: usize) {
        self.now = threads.clamp(1, self.max);
        self.passed = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WINDOW: Duration = Duration::from_millis(50);

    /// A machine on which other processes use some CPUs, shared with our threads as a fair scheduler does.
    fn measured(cpus: usize, others: usize, threads: usize) -> Sample {
        let wanted = others + threads;
        let got = if wanted <= cpus { threads as f64 } else { threads as f64 * cpus as f64 / wanted as f64 };
        let idle = cpus.saturating_sub(wanted);
        let times = |factor: f64| Duration::from_secs_f64(WINDOW.as_secs_f64() * factor);
        let others = cpus as f64 - got - idle as f64;
        let machine = MachineSample { cpus, idle: times(idle as f64), others: times(others.max(0.0)) };
        Sample { passed: WINDOW, cpu: times(got), machine: Some(machine) }
    }

    fn run(threads: &mut Threads, cpus: usize, others: usize, windows: usize) {
        for _ in 0..windows {
            let sample = measured(cpus, others, threads.now);
            threads.observe(&sample);
        }
    }

    #[test]
    fn one_busy_process_gets_a_cpu_to_itself_and_gives_it_back() {
        let mut threads = Threads::new(2);
        run(&mut threads, 2, 0, 100);
        assert_eq!(threads.now, 2);
        run(&mut threads, 2, 1, 2);
        assert_eq!(threads.now, 1);
        run(&mut threads, 2, 1, 1000);
        assert_eq!(threads.now, 1);
        run(&mut threads, 2, 0, 20);
        assert_eq!(threads.now, 2);
    }

    #[test]
    fn the_number_of_threads_stays_if_no_other_process_needs_the_cpus() {
        let sleeping = MachineSample { cpus: 2, idle: WINDOW / 2, others: WINDOW / 10 };
        let host_takes_time = MachineSample { cpus: 2, idle: Duration::ZERO, others: WINDOW / 10 };
        for machine in [Some(sleeping), Some(host_takes_time), None] {
            let mut threads = Threads::new(2);
            for _ in 0..100 {
                assert_eq!(threads.observe(&Sample { passed: WINDOW, cpu: WINDOW * 3 / 2, machine }), 2);
            }
        }
    }

    proptest! {
        /// For any load of others, there is at least one thread and never more than the tuning found best. All threads are
        /// back after a quiet time.
        #[test]
        fn stays_within_its_bounds_and_recovers(
            cpus in 1..64_usize,
            loads in prop::collection::vec((0..80_usize, 1..50_usize), 0..20),
        ) {
            let mut threads = Threads::new(cpus);
            for (others, windows) in loads {
                run(&mut threads, cpus, others, windows);
                prop_assert!((1..=cpus).contains(&threads.now));
            }
            run(&mut threads, cpus, 0, 2 * (MAX_PATIENCE.as_millis() / WINDOW.as_millis()) as usize);
            prop_assert_eq!(threads.now, cpus);
        }

        /// Processes that use some CPUs all the time soon have them to themselves.
        #[test]
        fn others_have_their_cpus(cpus in 2..16_usize, others in 1..16_usize) {
            let others = others.min(cpus - 1);
            let mut threads = Threads::new(cpus);
            run(&mut threads, cpus, others, 200);
            prop_assert!(threads.now + others <= cpus + 1, "{} threads", threads.now);
        }
    }
}
