//! Distinguishes a hung engine from a slow one. Pure: observations come in, one look at a time.
//!
//! An engine that shares its cores can take minutes for work that usually takes a second, and a restart would not make
//! it faster. So the criterion is progress. A process that computes, or waits for a core, is slow. A process that is
//! suspended, or rests although it has to respond, is hung. Looks are counted rather than seconds, because the observing
//! process may have been suspended, too.

/// One observation of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Observation {
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
pub(crate) enum Verdict {
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
const SUSPENDED_LOOKS: u32 = 2;
const MAX_SUSPENDED_LOOKS: u32 = 15;
/// Each of these includes the timeout of a health check.
const RESTING_LOOKS: u32 = 3;
const MAX_RESTING_LOOKS: u32 = 10;
/// At least two minutes.
const MAX_LOOKS_WITHOUT_DECODING: u32 = 60;

#[derive(Debug, Default)]
pub(crate) struct Watchdog {
    progress: Option<u64>,
    suspended: u32,
    resting: u32,
    without_decoding: u32,
}

impl Watchdog {
    pub(crate) fn observe(&mut self, seen: Observation) -> Verdict {
        let progress = seen.process.map(|process| process.progress);
        let has_computed = progress != std::mem::replace(&mut self.progress, progress);
        if seen.process.is_some_and(|process| process.suspended) {
            // A process that is suspended and resumed repeatedly, as by a tool that limits its CPU time, computes between.
            self.suspended = if has_computed { 0 } else { self.suspended + 1 };
            return verdict(self.suspended, SUSPENDED_LOOKS, MAX_SUSPENDED_LOOKS, Cause::Suspended);
        }
        self.suspended = 0;
        let rests = seen.process.is_some_and(|process| !process.runnable) && !has_computed;
        match seen.decodes {
            None => return Verdict::Unclear,
            Some(true) => {
                (self.resting, self.without_decoding) = (0, 0);
                return Verdict::Responsive;
            }
            Some(false) => {}
        }
        self.resting = if rests { self.resting + 1 } else { 0 };
        self.without_decoding += 1;
        if self.without_decoding >= MAX_LOOKS_WITHOUT_DECODING {
            return Verdict::Hung(Cause::NotDecoding);
        }
        verdict(self.resting, RESTING_LOOKS, MAX_RESTING_LOOKS, Cause::Resting)
    }
}

fn verdict(looks: u32, some: u32, max: u32, cause: Cause) -> Verdict {
    match looks {
        looks if looks >= max => Verdict::Hung(cause),
        looks if looks >= some => Verdict::Unresponsive(cause),
        _ => Verdict::Unclear,
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

    /// The second field is the program's name in brackets, which may contain any character, so fields are counted after it.
    /// proc(5) counts from 1.
    fn parse(stat: &str, threads: impl Iterator<Item = String>) -> Option<Self> {
        let field = |number: usize| fields(stat)?.nth(number - 3);
        let number = |at: usize| field(at)?.parse::<u64>().ok();
        let (major_faults, user, system) = (number(12)?, number(14)?, number(15)?);
        let is_runnable = |thread: String| fields(&thread).and_then(|mut fields| fields.next()) == Some("R");
        Some(Self {
            suspended: matches!(field(3)?, "T" | "t"),
            runnable: threads.into_iter().any(is_runnable),
            progress: major_faults + user + system,
        })
    }
}

fn fields(stat: &str) -> Option<std::str::Split<'_, char>> {
    stat.rsplit_once(") ").map(|(_, behind)| behind.split(' '))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SUSPENDED: Observation =
        Observation { process: Some(ProcessState { suspended: true, runnable: false, progress: 7 }), decodes: None };

    fn observation(runnable: bool, progress: u64, decodes: Option<bool>) -> Observation {
        Observation { process: Some(ProcessState { suspended: false, runnable, progress }), decodes }
    }

    #[test]
    fn a_suspended_engine_is_unresponsive_at_the_second_look_and_hung_after_a_while() {
        let mut watchdog = Watchdog::default();
        assert_eq!(watchdog.observe(observation(true, 7, Some(true))), Verdict::Responsive);
        let verdicts: Vec<_> = (0..MAX_SUSPENDED_LOOKS).map(|_| watchdog.observe(SUSPENDED)).collect();
        assert_eq!(verdicts[0], Verdict::Unclear);
        let waiting = &verdicts[1..verdicts.len() - 1];
        assert!(waiting.iter().all(|verdict| *verdict == Verdict::Unresponsive(Cause::Suspended)), "{verdicts:?}");
        assert_eq!(verdicts.last(), Some(&Verdict::Hung(Cause::Suspended)));
    }

    #[test]
    fn an_engine_that_is_resumed_in_time_is_kept() {
        let mut watchdog = Watchdog::default();
        for _ in 0..100 {
            (1..MAX_SUSPENDED_LOOKS).for_each(|_| assert!(!matches!(watchdog.observe(SUSPENDED), Verdict::Hung(_))));
            assert_eq!(watchdog.observe(observation(false, 8, Some(true))), Verdict::Responsive);
        }
    }

    #[test]
    fn an_engine_that_rests_during_a_check_is_hung() {
        let mut watchdog = Watchdog::default();
        let verdicts: Vec<_> =
            (0..=MAX_RESTING_LOOKS).map(|_| watchdog.observe(observation(false, 9, Some(false)))).collect();
        // The first look has nothing to compare with.
        assert_eq!(verdicts[RESTING_LOOKS as usize - 1], Verdict::Unclear);
        assert_eq!(verdicts[RESTING_LOOKS as usize], Verdict::Unresponsive(Cause::Resting));
        assert_eq!(verdicts.last(), Some(&Verdict::Hung(Cause::Resting)));
    }

    #[test]
    fn an_idle_engine_that_is_not_checked_is_not_hung() {
        let mut watchdog = Watchdog::default();
        (0..10_000).for_each(|_| assert_eq!(watchdog.observe(observation(false, 9, None)), Verdict::Unclear));
    }

    #[test]
    fn an_engine_that_computes_but_does_not_decode_is_finally_hung() {
        let mut watchdog = Watchdog::default();
        let mut looks = (0..).map(|progress| watchdog.observe(observation(true, progress, Some(false))));
        let hung = looks.position(|verdict| verdict == Verdict::Hung(Cause::NotDecoding));
        assert_eq!(hung, Some(MAX_LOOKS_WITHOUT_DECODING as usize - 1));
    }

    proptest! {
        /// A loaded engine waits for a core at every look, or computes a little between looks, and decodes occasionally.
        /// It is never unresponsive, even if its health checks take long. Nor is an engine whose CPU time is limited by
        /// repeated suspension.
        #[test]
        fn a_slow_engine_is_never_called_hung(
            looks in proptest::collection::vec((any::<bool>(), any::<bool>(), 0..3u64, any::<bool>()), 1..500),
        ) {
            let (mut watchdog, mut progress, mut since_decoded) = (Watchdog::default(), 0, 0);
            for (suspended, runnable, computed, decodes) in looks {
                progress += if runnable && !suspended { computed } else { computed.max(1) };
                if suspended {
                    let process = Some(ProcessState { suspended, runnable: false, progress });
                    prop_assert_eq!(watchdog.observe(Observation { process, decodes: None }), Verdict::Unclear);
                    continue;
                }
                since_decoded = if decodes { 0 } else { since_decoded + 1 };
                let decodes = decodes || since_decoded >= MAX_LOOKS_WITHOUT_DECODING;
                let verdict = watchdog.observe(observation(runnable, progress, Some(decodes)));
                prop_assert!(matches!(verdict, Verdict::Responsive | Verdict::Unclear), "{verdict:?}");
            }
        }

        /// An engine that decodes is responsive, regardless of earlier looks.
        #[test]
        fn an_engine_that_decodes_is_responsive(
            looks in proptest::collection::vec((any::<bool>(), any::<bool>(), 0..3u64, any::<Option<bool>>()), 0..200),
        ) {
            let (mut watchdog, mut progress) = (Watchdog::default(), 0);
            for (suspended, runnable, computed, decodes) in looks {
                progress += computed;
                let process = (progress % 7 > 0).then_some(ProcessState { suspended, runnable, progress });
                watchdog.observe(Observation { process, decodes });
            }
            prop_assert_eq!(watchdog.observe(observation(false, progress, Some(true))), Verdict::Responsive);
            prop_assert_eq!(watchdog.observe(observation(false, progress, Some(false))), Verdict::Unclear);
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
