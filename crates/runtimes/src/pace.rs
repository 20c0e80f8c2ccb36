//! How quickly a member works compared with its peers, pure: time comes in as milliseconds.
//!
//! What counts is the time a member took over the time that its median peer would have taken for the same completions:
//! sums, so that one odd request weighs little, and both fade, so that a member is judged by its last few seconds and
//! thought of well again if nothing more is heard. A member from which nothing comes back at all is judged by its silence.

/// A completion costs something besides its tokens: as much as so many of them.
const FIXED_WORK: f64 = 16.0;
/// Added to every request's time: what a busy machine's scheduler may cost is no sign of a slow runtime, however quick its peers
/// are.
const SLACK: f64 = 100.0;
/// Half of what is known is forgotten after that time,
const HALF_LIFE: f64 = 7_000.0;
/// and of more requests than that, the oldest are.
const WINDOW: f64 = 32.0;
/// Slower than so many times the median is as bad as that, or else it would take for ever to be forgotten.
const WORST: f64 = 8.0;
/// Everyone is credited with that many requests at the median's pace, so that a few alone say little.
const CREDIT: f64 = 2.0;
/// Below that many requests one is no yardstick for others.
const EVIDENCE: f64 = 0.5;

/// Up to so many times slower than the median peer costs nothing.
const TOLERATED: f64 = 1.5;
/// However slow, a member gets that part of a full share, to show that it has recovered.
const LEAST: f64 = 1.0 / 64.0;
/// A silence of so many times a median request is not held against anyone,
const PATIENCE: f64 = 3.0;
/// and one of so many times that is the end.
const HUNG: f64 = 4.0;

/// What is known of one member's pace.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pace {
    requests: f64,
    work: f64,
    time: f64,
    tokens: f64,
    faded_at: u64,
}

/// The median member.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Yardstick {
    time_per_work: f64,
    time_per_request: f64,
}

impl Pace {
    /// A completion of that many tokens came after that time.
    pub(crate) fn completed(&mut self, tokens: u32, took: u64, yardstick: Option<Yardstick>, now: u64) {
        self.fade(now);
        let work = FIXED_WORK + f64::from(tokens);
        let worst = yardstick.map_or(f64::INFINITY, |yardstick| WORST * work * yardstick.time_per_work);
        self.requests += 1.0;
        self.tokens += f64::from(tokens);
        self.work += work;
        self.time += (SLACK + took as f64).min(worst);
        if self.requests > WINDOW {
            self.scale(WINDOW / self.requests);
        }
    }

    /// Somebody gave up after that time. How much would have come is not known, so only what was too long counts.
    pub(crate) fn given_up(&mut self, took: u64, yardstick: Option<Yardstick>, now: u64) {
        self.fade(now);
        let too_long = |yardstick: Yardstick| {
            let most = WORST * WINDOW * yardstick.time_per_request;
            (took as f64 - yardstick.patience()).clamp(0.0, most)
        };
        self.time += yardstick.map_or(0.0, too_long);
    }

    /// The part of a full share that a member deserves whose oldest news are that old: 1 unless it is slow or silent.
    pub(crate) fn deserves(&self, silence: u64, yardstick: Yardstick, now: u64) -> f64 {
        let left = fading(now.saturating_sub(self.faded_at));
        let credit = CREDIT * yardstick.time_per_request;
        let slowness = (self.time * left + credit) / (self.work * left * yardstick.time_per_work + credit);
        let for_pace = (TOLERATED / slowness.max(TOLERATED)).powi(2).max(LEAST);
        let overdue = silence as f64 / yardstick.patience();
        let for_silence = if overdue < HUNG { overdue.max(1.0).powi(-2) } else { 0.0 };
        for_pace.min(for_silence)
    }

    /// Milliseconds for a request, of late.
    pub(crate) fn per_request(&self) -> Option<f64> {
        (self.requests > 0.0).then(|| (self.time / self.requests - SLACK).max(0.0))
    }

    /// Milliseconds for a token, of late.
    pub(crate) fn per_token(&self) -> Option<f64> {
        (self.tokens > 0.0).then(|| (self.time - self.requests * SLACK).max(0.0) / self.tokens)
    }

    fn fade(&mut self, now: u64) {
        self.scale(fading(now.saturating_sub(self.faded_at)));
        self.faded_at = now;
    }

    fn scale(&mut self, factor: f64) {
        for sum in [&mut self.requests, &mut self.work, &mut self.time, &mut self.tokens] {
            *sum *= factor;
        }
    }
}

impl Yardstick {
    /// The median of those about whom enough is known; the quicker one of two. `room` is for the sorting.
    pub(crate) fn of<'a>(paces: impl Iterator<Item = &'a Pace>, now: u64, room: &mut Vec<(f64, f64)>) -> Option<Self> {
        room.clear();
        room.extend(paces.filter_map(|pace| {
            let known = pace.requests * fading(now.saturating_sub(pace.faded_at)) >= EVIDENCE;
            known.then(|| (pace.time / pace.work, pace.time / pace.requests))
        }));
        let middle = room.len().checked_sub(1)? / 2;
        let (_, median, _) = room.select_nth_unstable_by(middle, |a, b| a.0.total_cmp(&b.0));
        let time_per_work = median.0;
        let (_, median, _) = room.select_nth_unstable_by(middle, |a, b| a.1.total_cmp(&b.1));
        Some(Self { time_per_work, time_per_request: median.1 })
    }

    fn patience(self) -> f64 {
        PATIENCE * self.time_per_request
    }
}

fn fading(passed: u64) -> f64 {
    (-(passed as f64) / HALF_LIFE).exp2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn yardstick(paces: &[Pace], now: u64) -> Yardstick {
        Yardstick::of(paces.iter(), now, &mut Vec::new()).unwrap()
    }

    fn after(requests: usize, tokens: u32, took: u64) -> Pace {
        let mut pace = Pace::default();
        (0..requests).for_each(|_| pace.completed(tokens, took, None, 0));
        pace
    }

    #[test]
    fn five_times_slower_is_a_small_share_and_back_again() {
        let mut paces = vec![after(20, 100, 1000), after(20, 100, 1000), after(20, 100, 5000)];
        let yard = yardstick(&paces, 0);
        assert_eq!(paces[0].deserves(0, yard, 0), 1.0);
        let slow = paces[2].deserves(0, yard, 0);
        assert!((0.05..0.2).contains(&slow), "{slow}");
        // Once it is quick again, its next requests show it.
        (0..64).for_each(|at| paces[2].completed(100, 1000, Some(yard), at));
        let recovered = paces[2].deserves(0, yard, 64);
        assert!(recovered > 0.5, "{recovered}");
        // And without any, it is forgotten.
        assert!(after(20, 100, 5000).deserves(0, yard, 60_000) > 0.9);
    }

    #[test]
    fn long_completions_are_not_slow_ones() {
        let paces = [after(20, 20, 400), after(20, 20, 400), after(20, 500, 6000)];
        assert_eq!(paces[2].deserves(0, yardstick(&paces, 0), 0), 1.0);
    }

    #[test]
    fn one_slow_request_says_little() {
        let paces = [after(20, 100, 1000), after(20, 100, 1000), after(1, 100, 3000)];
        assert!(paces[2].deserves(0, yardstick(&paces, 0), 0) > 0.7);
    }

    #[test]
    fn silence_sheds_long_before_any_timeout() {
        let paces = [after(20, 100, 1000), Pace::default()];
        let yard = yardstick(&paces, 0);
        let deserved = |silence| paces[1].deserves(silence, yard, 0);
        assert_eq!(deserved(2_000), 1.0);
        assert!(deserved(6_000) < 0.5);
        assert_eq!(deserved(14_000), 0.0);
    }

    #[test]
    fn giving_up_early_is_nobodys_fault() {
        let mut paces = [after(20, 100, 1000), Pace::default()];
        let yard = yardstick(&paces, 0);
        (0..50).for_each(|_| paces[1].given_up(500, Some(yard), 0));
        assert_eq!(paces[1].deserves(0, yard, 0), 1.0);
        paces[1].given_up(60_000, Some(yard), 0);
        assert!(paces[1].deserves(0, yard, 0) < 0.2);
    }

    proptest! {
        /// Whatever happened: a share is a part of the whole, slower or more silent never means more, and nobody who is
        /// heard of gets nothing.
        #[test]
        fn slower_never_gets_more(
            history in proptest::collection::vec((0..600u32, 0..20_000u64, 0..3_000u64), 1..80),
            extra in 1..20_000u64,
            silence in 0..200_000u64,
        ) {
            let (mut quick, mut slow, peer) = (Pace::default(), Pace::default(), after(20, 100, 1000));
            let mut now = 0;
            for (tokens, took, pause) in history {
                now += pause;
                quick.completed(tokens, took, None, now);
                slow.completed(tokens, took + extra, None, now);
            }
            let yard = yardstick(&[peer.clone(), peer], 0);
            let (quick_share, slow_share) = (quick.deserves(0, yard, now), slow.deserves(0, yard, now));
            prop_assert!(slow_share <= quick_share && slow_share >= LEAST && quick_share <= 1.0);
            prop_assert!(quick.deserves(silence + 1, yard, now) <= quick.deserves(silence, yard, now));
            prop_assert!(slow.deserves(0, yard, now + 150_000) > 0.9, "nobody is slow for ever");
        }
    }
}
