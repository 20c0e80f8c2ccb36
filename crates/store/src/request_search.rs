//! The bounds of a search for requests. A filter may match nothing among millions of rows, so each search scans a limited
//! number of rows and returns where it stopped. Pure.

use std::cmp::Reverse;
use std::ops::Range;

use chat::RequestId;

use crate::id::AccountId;
use crate::usage::{RequestQuery, StatusFilter};

/// Rows that one search scans, in some tens of milliseconds.
pub(crate) const MAX_SCANNED: usize = 80_000;

/// The keys that belong to person `$1`, or did before they were given away.
pub(crate) const KEYS_OF_PERSON: &str = "SELECT id FROM keys WHERE owner = $1
    UNION SELECT key_id FROM given_keys WHERE first_owner = $1
    UNION SELECT key_id FROM person_sums WHERE span = 691200 AND account = $1";

impl RequestQuery {
    /// The ids to search.
    pub(crate) fn ids(&self) -> Range<RequestId> {
        let end = self.until.map_or(RequestId::from_bytes([0xff; 16]), RequestId::first_at);
        RequestId::first_at(self.since)..self.before.map_or(end, |before| before.min(end))
    }

    /// Whether the scan may meet rows that do not match.
    pub(crate) fn is_filtered(&self) -> bool {
        self.person.is_some() || self.min_latency.is_some() || self.status.is_some()
    }

    pub(crate) fn min_micros(&self) -> Option<u64> {
        self.min_latency.map(|latency| latency.as_micros() as u64)
    }

    /// The number of rows to scan of each list.
    pub(crate) fn scan_limit(&self, lists: usize) -> usize {
        (MAX_SCANNED / lists.max(1)).max(self.limit as usize)
    }

    /// Whether a row within `ids` matches.
    pub(crate) fn matches(&self, status: u16, total_us: u64, account: Option<AccountId>) -> bool {
        let has_status = match self.status {
            None => true,
            Some(StatusFilter::Is(wanted)) => status == wanted,
            Some(StatusFilter::Failed) => status != 200,
        };
        has_status
            && self.min_micros().is_none_or(|least| total_us >= least)
            && self.person.is_none_or(|person| account == Some(person))
    }
}

/// The newest matches of several lists of requests, each searched from its newest row.
#[derive(Default)]
pub(crate) struct Matches {
    found: Vec<RequestId>,
    searched_to: Option<RequestId>,
}

impl Matches {
    pub(crate) fn add(&mut self, request: RequestId) {
        self.found.push(request);
    }

    /// A list was not searched beyond this row.
    pub(crate) fn stop_at(&mut self, last: RequestId) {
        self.searched_to = self.searched_to.max(Some(last));
    }

    /// The newest matches, without those older than an unsearched row; and where the search stopped if they are too few.
    pub(crate) fn finish(self, limit: usize) -> (Vec<RequestId>, Option<RequestId>) {
        let Self { mut found, searched_to } = self;
        found.retain(|request| searched_to.is_none_or(|end| *request >= end));
        found.sort_unstable_by_key(|request| Reverse(*request));
        found.truncate(limit);
        let stopped = searched_to.filter(|_| found.len() < limit);
        (found, stopped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(number: u64) -> RequestId {
        RequestId::at_micros(number << 12, 0)
    }

    /// One search over the newest rows below `before` of each list, of which every third matches.
    fn search(lists: &[Vec<u64>], before: u64, limit: usize, scanned: usize) -> (Vec<RequestId>, Option<RequestId>) {
        let mut matches = Matches::default();
        for list in lists {
            let (mut seen, mut found) = (0, 0);
            for &row in list.iter().rev().filter(|row| **row < before) {
                (seen, found) = (seen + 1, found + usize::from(row % 3 == 0));
                if row % 3 == 0 {
                    matches.add(id(row));
                }
                if found == limit {
                    break;
                }
                if seen == scanned {
                    matches.stop_at(id(row));
                    break;
                }
            }
        }
        matches.finish(limit)
    }

    proptest! {
        /// Repeated searches, each from where the previous one stopped, find every match once, newest first.
        #[test]
        fn repeated_searches_find_every_match(
            lists in proptest::collection::vec(proptest::collection::btree_set(0u64..300, 0..80), 1..4),
            limit in 1usize..10,
            scanned in 1usize..20,
        ) {
            let mut taken = std::collections::BTreeSet::new();
            let lists: Vec<Vec<u64>> = lists.into_iter().map(|list| list.into_iter().filter(|row| taken.insert(*row)).collect()).collect();
            let mut expected: Vec<u64> = taken.into_iter().filter(|row| row % 3 == 0).collect();
            expected.reverse();
            let (mut found, mut before) = (Vec::new(), 1000);
            for _ in 0..1000 {
                let (page, stopped) = search(&lists, before, limit, scanned.max(limit));
                let end = stopped.or(page.last().copied().filter(|_| page.len() == limit));
                found.extend(page);
                match end {
                    Some(end) => before = end.unix_micros() >> 12,
                    None => break,
                }
            }
            prop_assert_eq!(found, expected.into_iter().map(id).collect::<Vec<_>>());
        }
    }
}
