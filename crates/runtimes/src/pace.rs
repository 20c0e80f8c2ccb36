//! The slowness of a member compared with its peers. Pure: time comes in as milliseconds.
//!
//! Slowness is the time that a member took divided by the time that the median member would have taken for the same
//! completions. Both are sums, so that one request weighs little, and both decay, so that the last few seconds count
//! and a member without requests recovers. A member that does not respond at all is judged by its silence.

/// The fixed cost of a completion, expressed in tokens.
const FIXED_COST_TOKENS: f64 = 16.0;
/// Added to every request's time, so that scheduling delays of a busy machine do not make a member of a fast fleet look
/// slow.
const SLACK_MS: f64 = 100.0;
const HALF_LIFE_MS: f64 = 7_000.0;
/// If there are more requests than this, all are scaled down to this number.
const WINDOW_REQUESTS: f64 = 32.0;
/// Greater slowness of a request is clamped, because it would decay too slowly.
const MAX_SLOWNESS: f64 = 8.0;
/// A prior: requests at the median's pace that are added for every member, so that a few requests have little weight.
const PRIOR_REQUESTS: f64 = 2.0;
/// A member with fewer (decayed) requests is not part of the median.
const MIN_REQUESTS_FOR_MEDIAN: f64 = 0.5;

/// A member with less slowness has a full share.
const TOLERATED_SLOWNESS: f64 = 1.5;
/// Even the slowest member gets some requests, to show that it has recovered.
const MIN_SHARE: f64 = 1.0 / 64.0;
/// A silence that is shorter than this number of median requests does not reduce the share.
const TOLERATED_SILENCE: f64 = 3.0;
/// After this multiple of the tolerated silence, a member counts as hung.
const HUNG_FACTOR: f64 = 4.0;
/// How long a request may wait, as a multiple of the median member's time for the maximum of its tokens.
const TOLERATED_WAIT: f64 = 2.0;
/// In milliseconds. On a fast fleet, a busy machine can delay requests by more than they take.
const MIN_TOLERATED_WAIT: f64 = 1_000.0;

/// Decayed sums over a member's requests.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pace {
    requests: f64,
    /// In tokens, with the fixed cost of each completion.
    work: f64,
    time: f64,
    tokens: f64,
    decayed_at: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PeerMedian {
    time_per_work: f64,
    time_per_request: f64,
}

impl Pace {
    pub(crate) fn completed(&mut self, tokens: u32, took: u64, median: Option<PeerMedian>, now: u64) {
        self.decay(now);
        let work = FIXED_COST_TOKENS + f64::from(tokens);
        let worst = median.map_or(f64::INFINITY, |median| MAX_SLOWNESS * work * median.time_per_work);
        self.requests += 1.0;
        self.tokens += f64::from(tokens);
        self.work += work;
        self.time += (SLACK_MS + took as f64).min(worst);
        if self.requests > WINDOW_REQUESTS {
            self.scale(WINDOW_REQUESTS / self.requests);
        }
    }

    /// Records a request that was given up. Its number of tokens is unknown, so only the excessive part of its time counts.
    pub(crate) fn abandoned(&mut self, took: u64, median: Option<PeerMedian>, now: u64) {
        self.decay(now);
        let too_long = |median: PeerMedian| {
            let max = MAX_SLOWNESS * WINDOW_REQUESTS * median.time_per_request;
            (took as f64 - median.tolerated_silence()).clamp(0.0, max)
        };
        self.time += median.map_or(0.0, too_long);
    }

    /// The member's share, from 0 to 1, given the milliseconds since it last responded.
    pub(crate) fn share(&self, silence: u64, median: PeerMedian, now: u64) -> f64 {
        let decay = decay_factor(now.saturating_sub(self.decayed_at));
        let prior = PRIOR_REQUESTS * median.time_per_request;
        let slowness = (self.time * decay + prior) / (self.work * decay * median.time_per_work + prior);
        let by_pace = (TOLERATED_SLOWNESS / slowness.max(TOLERATED_SLOWNESS)).powi(2).max(MIN_SHARE);
        let overdue = silence as f64 / median.tolerated_silence();
        let by_silence = if overdue < HUNG_FACTOR { overdue.max(1.0).powi(-2) } else { 0.0 };
        by_pace.min(by_silence)
    }

    /// Mean milliseconds per request.
    pub(crate) fn per_request(&self) -> Option<f64> {
        (self.requests > 0.0).then(|| (self.time / self.requests - SLACK_MS).max(0.0))
    }

    /// Mean milliseconds per token.
    pub(crate) fn per_token(&self) -> Option<f64> {
        (self.tokens > 0.0).then(|| (self.time - self.requests * SLACK_MS).max(0.0) / self.tokens)
    }

    fn decay(&mut self, now: u64) {
        self.scale(decay_factor(now.saturating_sub(self.decayed_at)));
        self.decayed_at = now;
    }

    fn scale(&mut self, factor: f64) {
        for sum in [&mut self.requests, &mut self.work, &mut self.time, &mut self.tokens] {
            *sum *= factor;
        }
    }
}

impl PeerMedian {
    /// For an even number of members, the faster of the two in the middle. `buffer` saves an allocation.
    pub(crate) fn from_paces<'a>(
        paces: impl Iterator<Item = &'a Pace>,
        now: u64,
        buffer: &mut Vec<(f64, f64)>,
    ) -> Option<Self> {
        buffer.clear();
        buffer.extend(paces.filter_map(|pace| {
            let known = pace.requests * decay_factor(now.saturating_sub(pace.decayed_at)) >= MIN_REQUESTS_FOR_MEDIAN;
            known.then(|| (pace.time / pace.work, pace.time / pace.requests))
        }));
        let middle = buffer.len().checked_sub(1)? / 2;
        let (_, median, _) = buffer.select_nth_unstable_by(middle, |a, b| a.0.total_cmp(&b.0));
        let time_per_work = median.0;
        let (_, median, _) = buffer.select_nth_unstable_by(middle, |a, b| a.1.total_cmp(&b.1));
        Some(Self { time_per_work, time_per_request: median.1 })
    }

    /// The milliseconds after which a request of at most `max_tokens` tokens should long have been completed.
    pub(crate) fn tolerated_wait(self, max_tokens: u32) -> f64 {
        let longest = (FIXED_COST_TOKENS + f64::from(max_tokens)) * self.time_per_work;
        (TOLERATED_WAIT * longest).max(self.min_tolerated_wait())
    }

    /// The same for a request about which nothing is known.
    pub(crate) fn min_tolerated_wait(self) -> f64 {
        self.tolerated_silence().max(MIN_TOLERATED_WAIT)
    }

    fn tolerated_silence(self) -> f64 {
        TOLERATED_SILENCE * self.time_per_request
    }
}

fn decay_factor(passed: u64) -> f64 {
    (-(passed as f64) / HALF_LIFE_MS).exp2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn median(paces: &[Pace], now: u64) -> PeerMedian {
        PeerMedian::from_paces(paces.iter(), now, &mut Vec::new()).unwrap()
    }

    fn after(requests: usize, tokens: u32, took: u64) -> Pace {
        let mut pace = Pace::default();
        (0..requests).for_each(|_| pace.completed(tokens, took, None, 0));
        pace
    }

    #[test]
    fn a_slow_member_gets_a_small_share_and_recovers() {
        let mut paces = vec![after(20, 100, 1000), after(20, 100, 1000), after(20, 100, 5000)];
        let median = median(&paces, 0);
        assert_eq!(paces[0].share(0, median, 0), 1.0);
        let slow = paces[2].share(0, median, 0);
        assert!((0.05..0.2).contains(&slow), "{slow}");
        // Once it is fast again, its next requests show it.
        (0..64).for_each(|at| paces[2].completed(100, 1000, Some(median), at));
        let recovered = paces[2].share(0, median, 64);
        assert!(recovered > 0.5, "{recovered}");
        // Without requests, slowness is forgotten.
        assert!(after(20, 100, 5000).share(0, median, 60_000) > 0.9);
    }

    #[test]
    fn long_completions_are_not_slow_ones() {
        let paces = [after(20, 20, 400), after(20, 20, 400), after(20, 500, 6000)];
        assert_eq!(paces[2].share(0, median(&paces, 0), 0), 1.0);
    }

    #[test]
    fn one_slow_request_has_little_weight() {
        let paces = [after(20, 100, 1000), after(20, 100, 1000), after(1, 100, 3000)];
        assert!(paces[2].share(0, median(&paces, 0), 0) > 0.7);
    }

    #[test]
    fn silence_sheds_long_before_any_timeout() {
        let paces = [after(20, 100, 1000), Pace::default()];
        let median = median(&paces, 0);
        let share = |silence| paces[1].share(silence, median, 0);
        assert_eq!(share(2_000), 1.0);
        assert!(share(6_000) < 0.5);
        assert_eq!(share(14_000), 0.0);
    }

    #[test]
    fn an_early_disconnect_does_not_reduce_the_share() {
        let mut paces = [after(20, 100, 1000), Pace::default()];
        let median = median(&paces, 0);
        (0..50).for_each(|_| paces[1].abandoned(500, Some(median), 0));
        assert_eq!(paces[1].share(0, median, 0), 1.0);
        paces[1].abandoned(60_000, Some(median), 0);
        assert!(paces[1].share(0, median, 0) < 0.2);
    }

    proptest! {
        /// For any history, shares are between 0 and 1, more slowness or silence never increases a share, and a member that
        /// responds always gets a share.
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
            let median = median(&[peer.clone(), peer], 0);
            let (quick_share, slow_share) = (quick.share(0, median, now), slow.share(0, median, now));
            prop_assert!(slow_share <= quick_share && slow_share >= MIN_SHARE && quick_share <= 1.0);
            prop_assert!(quick.share(silence + 1, median, now) <= quick.share(silence, median, now));
            prop_assert!(slow.share(0, median, now + 150_000) > 0.9, "slowness decays");
        }
    }
}
