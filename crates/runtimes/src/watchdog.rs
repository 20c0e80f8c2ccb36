//! Distinguishes a hung engine from a slow one. Pure: samples come in, one at a time.
//!
//! An engine that shares its cores can take minutes for work that usually takes a second, and a restart would not make
//! it faster. So the criterion is progress. A process that computes, or waits for a core, is slow. A process that is
//! suspended, or rests although it has to respond, is hung. Samples are counted rather than seconds, because the observing
//! process may have been suspended, too.

/// The engine at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    /// `None` if the system does not report it.
    pub(crate) process: Option<ProcessState>,
    /// Whether it decodes tokens; `None` if it was not checked.
    pub(crate) decodes: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessState {
    /// Suspended by SIGSTOP or by a debugger.
    pub(crate) suspended: bool,
    /// Whether a thread computes or waits for a core.
    pub(crate) runnable: bool,
    /// Grows whenever the process computes, or waits for memory to be read from the disk.
    pub(crate) progress: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EngineState {
    Responsive,
    /// Not known to be hung.
    Unclear,
    /// It does not respond now, but may recover.
    Unresponsive(Cause),
    /// It will not recover.
    Hung(Cause),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    Suspended,
    Resting,
    NotDecoding,
}

impl Cause {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Suspended => "it is suspended (SIGSTOP, or a debugger)",
            Self::Resting => "it does not decode, and does not compute",
            Self::NotDecoding => "it computes, but has not decoded a token for minutes",
        }
    }
}

/// More than one, because a profiler, for example, suspends a process briefly.
const SUSPENDED_SAMPLES: u32 = 2;
const MAX_SUSPENDED_SAMPLES: u32 = 15;
/// Each of these includes the timeout of a health check.
const RESTING_SAMPLES: u32 = 3;
const MAX_RESTING_SAMPLES: u32 = 10;
/// At least two minutes.
const MAX_SAMPLES_WITHOUT_DECODING: u32 = 60;

#[derive(Debug, Default)]
pub(crate) struct Watchdog {
    progress: Option<u64>,
    suspended: u32,
    resting: u32,
    without_decoding: u32,
}

impl Watchdog {
    pub(crate) fn observe(&mut self, sample: Sample) -> EngineState {
        let progress = sample.process.map(|process| process.progress);
        let has_computed = progress != std::mem::replace(&mut self.progress, progress);
        if sample.process.is_some_and(|process| process.suspended) {
            // A process that is suspended and resumed repeatedly, as by a tool that limits its CPU time, computes between.
            self.suspended = if has_computed { 0 } else { self.suspended + 1 };
            return state(self.suspended, SUSPENDED_SAMPLES, MAX_SUSPENDED_SAMPLES, Cause::Suspended);
        }
        self.suspended = 0;
        let rests = sample.process.is_some_and(|process| !process.runnable) && !has_computed;
        match sample.decodes {
            None => return EngineState::Unclear,
            Some(true) => {
                (self.resting, self.without_decoding) = (0, 0);
                return EngineState::Responsive;
            }
            Some(false) => {}
        }
        self.resting = if rests { self.resting + 1 } else { 0 };
        self.without_decoding += 1;
        if self.without_decoding >= MAX_SAMPLES_WITHOUT_DECODING {
            return EngineState::Hung(Cause::NotDecoding);
        }
        state(self.resting, RESTING_SAMPLES, MAX_RESTING_SAMPLES, Cause::Resting)
    }
}

fn state(samples: u32, some: u32, max: u32, cause: Cause) -> EngineState {
    match samples {
        samples if samples >= max => EngineState::Hung(cause),
        samples if samples >= some => EngineState::Unresponsive(cause),
        _ => EngineState::Unclear,
    }
}

impl ProcessState {
    /// From `/proc`. `None` if the process has ended, or the system has no such files.
    pub(crate) fn read(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
        let threads = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
        Self::parse(&stat, threads)
    }

    fn parse(stat: &str, threads: impl Iterator<Item = String>) -> Option<Self> {
        let number = |number| stat_field(stat, number)?.parse::<u64>().ok();
        let (major_faults, user, system) = (number(12)?, number(14)?, number(15)?);
        Some(Self {
            suspended: matches!(stat_field(stat, 3)?, "T" | "t"),
            runnable: threads.into_iter().any(|thread| stat_field(&thread, 3) == Some("R")),
            progress: major_faults + user + system,
        })
    }
}

/// A field of `/proc/PID/stat` by its number in proc(5), from 3 on. The second is the program's name in parentheses, which
/// may hold any character, so fields are counted from its end.
pub fn stat_field(stat: &str, number: usize) -> Option<&str> {
    stat.rsplit_once(") ")?.1.split(' ').nth(number - 3)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SUSPENDED: Sample =
        Sample { process: Some(ProcessState { suspended: true, runnable: false, progress: 7 }), decodes: None };

    fn sample(runnable: bool, progress: u64, decodes: Option<bool>) -> Sample {
        Sample { process: Some(ProcessState { suspended: false, runnable, progress }), decodes }
    }

    #[test]
    fn a_suspended_engine_is_unresponsive_at_the_second_sample_and_hung_after_a_while() {
        let mut watchdog = Watchdog::default();
        assert_eq!(watchdog.observe(sample(true, 7, Some(true))), EngineState::Responsive);
        let states: Vec<_> = (0..MAX_SUSPENDED_SAMPLES).map(|_| watchdog.observe(SUSPENDED)).collect();
        assert_eq!(states[0], EngineState::Unclear);
        let waiting = &states[1..states.len() - 1];
        assert!(waiting.iter().all(|state| *state == EngineState::Unresponsive(Cause::Suspended)), "{states:?}");
        assert_eq!(states.last(), Some(&EngineState::Hung(Cause::Suspended)));
    }

    #[test]
    fn an_engine_that_is_resumed_in_time_is_kept() {
        let mut watchdog = Watchdog::default();
        for _ in 0..100 {
            (1..MAX_SUSPENDED_SAMPLES)
                .for_each(|_| assert!(!matches!(watchdog.observe(SUSPENDED), EngineState::Hung(_))));
            assert_eq!(watchdog.observe(sample(false, 8, Some(true))), EngineState::Responsive);
        }
    }

    #[test]
    fn an_engine_that_rests_during_a_check_is_hung() {
        let mut watchdog = Watchdog::default();
        let states: Vec<_> =
            (0..=MAX_RESTING_SAMPLES).map(|_| watchdog.observe(sample(false, 9, Some(false)))).collect();
        // The first sample has nothing to compare with.
        assert_eq!(states[RESTING_SAMPLES as usize - 1], EngineState::Unclear);
        assert_eq!(states[RESTING_SAMPLES as usize], EngineState::Unresponsive(Cause::Resting));
        assert_eq!(states.last(), Some(&EngineState::Hung(Cause::Resting)));
    }

    #[test]
    fn an_idle_engine_that_is_not_checked_is_not_hung() {
        let mut watchdog = Watchdog::default();
        (0..10_000).for_each(|_| assert_eq!(watchdog.observe(sample(false, 9, None)), EngineState::Unclear));
    }

    #[test]
    fn an_engine_that_computes_but_does_not_decode_is_finally_hung() {
        let mut watchdog = Watchdog::default();
        let mut states = (0..).map(|progress| watchdog.observe(sample(true, progress, Some(false))));
        let hung = states.position(|state| state == EngineState::Hung(Cause::NotDecoding));
        assert_eq!(hung, Some(MAX_SAMPLES_WITHOUT_DECODING as usize - 1));
    }

    proptest! {
        /// A loaded engine waits for a core at every sample, or computes a little between samples, and decodes occasionally.
        /// It is never unresponsive, even if its health checks take long. Nor is an engine whose CPU time is limited by
        /// repeated suspension.
        #[test]
        fn a_slow_engine_is_never_called_hung(
            samples in proptest::collection::vec((any::<bool>(), any::<bool>(), 0..3u64, any::<bool>()), 1..500),
        ) {
            let (mut watchdog, mut progress, mut since_decoded) = (Watchdog::default(), 0, 0);
            for (suspended, runnable, computed, decodes) in samples {
                progress += if runnable && !suspended { computed } else { computed.max(1) };
                if suspended {
                    let process = Some(ProcessState { suspended, runnable: false, progress });
                    prop_assert_eq!(watchdog.observe(Sample { process, decodes: None }), EngineState::Unclear);
                    continue;
                }
                since_decoded = if decodes { 0 } else { since_decoded + 1 };
                let decodes = decodes || since_decoded >= MAX_SAMPLES_WITHOUT_DECODING;
                let state = watchdog.observe(sample(runnable, progress, Some(decodes)));
                prop_assert!(matches!(state, EngineState::Responsive | EngineState::Unclear), "{state:?}");
            }
        }

        /// An engine that decodes is responsive, regardless of earlier samples.
        #[test]
        fn an_engine_that_decodes_is_responsive(
            samples in proptest::collection::vec((any::<bool>(), any::<bool>(), 0..3u64, any::<Option<bool>>()), 0..200),
        ) {
            let (mut watchdog, mut progress) = (Watchdog::default(), 0);
            for (suspended, runnable, computed, decodes) in samples {
                progress += computed;
                let process = (progress % 7 > 0).then_some(ProcessState { suspended, runnable, progress });
                watchdog.observe(Sample { process, decodes });
            }
            prop_assert_eq!(watchdog.observe(sample(false, progress, Some(true))), EngineState::Responsive);
            prop_assert_eq!(watchdog.observe(sample(false, progress, Some(false))), EngineState::Unclear);
        }
    }

    #[test]
    fn the_state_of_a_process_is_read() {
        let stat = |state: &str| format!("7 (a) R (c d) {state} 4 5 6 7 8 9 10 11 100 13 20 3 16 17 18 19 20");
        let parse = |state: &str, threads: &[&str]| {
            ProcessState::parse(&stat(state), threads.iter().map(|thread| stat(thread))).unwrap()
        };
        let state = |suspended, runnable| ProcessState { suspended, runnable, progress: 123 };
        assert_eq!(parse("S", &["S", "S"]), state(false, false));
        assert_eq!(parse("S", &["S", "R"]), state(false, true));
        assert_eq!(parse("T", &["T", "T"]), state(true, false));
        assert_eq!(parse("t", &[]), state(true, false));
        assert_eq!(parse("D", &["D"]), state(false, false));
        assert_eq!(ProcessState::parse("nonsense", std::iter::empty()), None);
        assert!(ProcessState::read(std::process::id()).is_some_and(|state| state.runnable && !state.suspended));
    }
}
