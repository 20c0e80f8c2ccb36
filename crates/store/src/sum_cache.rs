//! In-memory cache of the sums by key of past periods. A report over many keys reads mostly these.
//!
//! The cache is always consistent with the database. Late rows are added to the sums of their period and to everyone's
//! roll-ups in one transaction: while everyone's number of requests in a period is unchanged, so are its sums.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use chat::KeyId;
use parking_lot::Mutex;

use crate::rollup::{KeySum, Resolution};

/// About 20 MB.
const MAX_SUMS: usize = 200_000;

/// Sums of one period, in the order of keys.
pub(crate) type SumsByKey = Arc<[(KeyId, KeySum)]>;

/// A past block of eight days, a past day, or past hours of a day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClosedInterval {
    span: Resolution,
    /// Seconds since 1970.
    seconds: Range<u64>,
    /// Everyone's requests in this period.
    requests: u64,
}

impl ClosedInterval {
    /// Of each day, the cache keeps two ranges of hours, the last requested ones: one from midnight, and one that starts
    /// later. Reports will request other ranges an hour later.
    fn cache_key(&self) -> CacheKey {
        let day = Resolution::Day.start_of(self.seconds.start);
        match self.span {
            Resolution::Hour => (day, self.span, self.seconds.start == day),
            Resolution::Day | Resolution::EightDays => (self.seconds.start, self.span, true),
        }
    }
}

/// Start of the day or block, resolution, and for hours whether they begin at midnight.
type CacheKey = (u64, Resolution, bool);

#[derive(Default)]
pub(crate) struct SumCache(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    times: BTreeMap<CacheKey, (ClosedInterval, SumsByKey)>,
    sums: usize,
}

impl SumCache {
    pub(crate) fn get(&self, time: &ClosedInterval) -> Option<SumsByKey> {
        let kept = self.0.lock();
        let (_, sums) = kept.times.get(&time.cache_key()).filter(|(kept, _)| kept == time)?;
        Some(sums.clone())
    }

    /// Evicts the oldest periods, because reports move on to later ones.
    pub(crate) fn keep(&self, time: ClosedInterval, sums: SumsByKey) {
        let mut kept = self.0.lock();
        kept.sums += sums.len();
        let replaced = kept.times.insert(time.cache_key(), (time, sums));
        kept.sums -= replaced.map_or(0, |(_, sums)| sums.len());
        while kept.sums > MAX_SUMS {
            let Some((_, (_, oldest))) = kept.times.pop_first() else { break };
            kept.sums -= oldest.len();
        }
    }
}

/// Everyone's number of requests by hour (in seconds since 1970).
#[derive(Default)]
pub(crate) struct HourTotals(BTreeMap<u64, u64>);

impl FromIterator<(u64, u64)> for HourTotals {
    fn from_iter<T: IntoIterator<Item = (u64, u64)>>(hours: T) -> Self {
        Self(hours.into_iter().collect())
    }
}

impl HourTotals {
    /// The starts between the first and the last request, because a period may have no end.
    pub(crate) fn starts_within(&self, starts: &Range<u64>, span: Resolution) -> impl Iterator<Item = u64> + use<> {
        let first = self.0.first_key_value().map_or(u64::MAX, |(&hour, _)| span.start_of(hour)).max(starts.start);
        let end = self.0.last_key_value().map_or(0, |(&hour, _)| hour + 1).min(starts.end);
        (first..end).step_by(span.seconds() as usize)
    }

    /// Divides hours into those that are over and those that may not be; omits an empty part.
    pub(crate) fn divide(&self, hours: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
        let last = self.0.last_key_value().map_or(0, |(&hour, _)| hour).clamp(hours.start, hours.end);
        [hours.start..last, last..hours.end].into_iter().filter(|part| !part.is_empty())
    }

    /// `None` if the period may not be over.
    pub(crate) fn past(&self, span: Resolution, seconds: &Range<u64>) -> Option<ClosedInterval> {
        let (&last, _) = self.0.last_key_value()?;
        if last < seconds.end {
            return None;
        }
        let requests = self.0.range(seconds.clone()).map(|(_, requests)| requests).sum();
        Some(ClosedInterval { span, seconds: seconds.clone(), requests })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600;
    const DAY: u64 = 86_400;

    fn sums(count: usize) -> SumsByKey {
        let key: KeyId = "000000000001".parse().unwrap();
        vec![(key, KeySum::default()); count].into()
    }

    fn day(number: u64, requests: u64) -> ClosedInterval {
        ClosedInterval { span: Resolution::Day, seconds: number * DAY..(number + 1) * DAY, requests }
    }

    #[test]
    fn sums_are_cached_until_rows_are_added_to_their_period() {
        let cache = SumCache::default();
        cache.keep(day(0, 7), sums(3));
        assert_eq!(cache.get(&day(0, 7)).unwrap().len(), 3);
        assert!(cache.get(&day(0, 8)).is_none());
        assert!(cache.get(&ClosedInterval { span: Resolution::EightDays, ..day(0, 7) }).is_none());
        cache.keep(day(0, 8), sums(4));
        assert_eq!(cache.get(&day(0, 8)).unwrap().len(), 4);
        assert_eq!(cache.0.lock().sums, 4);
    }

    #[test]
    fn the_last_requested_hours_of_a_day_are_cached() {
        let cache = SumCache::default();
        let hours = |hours: Range<u64>| ClosedInterval {
            span: Resolution::Hour,
            seconds: hours.start * HOUR..hours.end * HOUR,
            requests: 7,
        };
        cache.keep(day(0, 7), sums(3));
        cache.keep(hours(0..8), sums(2));
        cache.keep(hours(8..24), sums(2));
        assert!([hours(0..8), hours(8..24), day(0, 7)].iter().all(|time| cache.get(time).is_some()));
        cache.keep(hours(0..9), sums(1));
        cache.keep(hours(30..31), sums(1));
        assert!(cache.get(&hours(0..8)).is_none());
        assert!([hours(0..9), hours(8..24), hours(30..31)].iter().all(|time| cache.get(time).is_some()));
        assert_eq!(cache.0.lock().sums, 7);
    }

    #[test]
    fn the_oldest_periods_are_evicted() {
        let cache = SumCache::default();
        for number in 0..5 {
            cache.keep(day(number, 1), sums(MAX_SUMS / 4));
        }
        assert!(cache.get(&day(0, 1)).is_none());
        assert!((1..5).all(|number| cache.get(&day(number, 1)).is_some()));
        cache.keep(day(9, 1), sums(MAX_SUMS + 1));
        let kept = cache.0.lock();
        assert_eq!((kept.sums, kept.times.len()), (0, 0));
    }

    #[test]
    fn a_period_is_over_when_a_later_hour_has_requests() {
        let totals: HourTotals = [(0, 5), (HOUR, 2), (2 * HOUR, 1)].into_iter().collect();
        let past = |totals: &HourTotals, hours: u64| {
            totals.past(Resolution::Hour, &(0..hours * HOUR)).map(|time| time.requests)
        };
        assert_eq!([1, 2, 3].map(|hours| past(&totals, hours)), [Some(5), Some(7), None]);
        assert_eq!(past(&HourTotals::default(), 1), None);
        let divided = |from: u64, to: u64| {
            let parts = totals.divide(&(from * HOUR..to * HOUR));
            parts.map(|part| (part.start / HOUR, part.end / HOUR)).collect::<Vec<_>>()
        };
        assert_eq!(divided(0, 5), [(0, 2), (2, 5)]);
        assert_eq!(divided(0, 1), [(0, 1)]);
        assert_eq!(divided(4, 5), [(4, 5)]);
    }

    #[test]
    fn only_starts_between_the_first_and_last_request_are_visited() {
        let totals: HourTotals = [(2 * DAY + HOUR, 5), (4 * DAY, 2)].into_iter().collect();
        let starts = |within: Range<u64>| totals.starts_within(&within, Resolution::Day).collect::<Vec<_>>();
        assert_eq!(starts(0..u64::MAX), [2 * DAY, 3 * DAY, 4 * DAY]);
        assert_eq!(starts(3 * DAY..4 * DAY), [3 * DAY]);
        assert_eq!(starts(5 * DAY..u64::MAX), [0; 0]);
        assert_eq!(HourTotals::default().starts_within(&(0..u64::MAX), Resolution::Day).count(), 0);
    }
}
