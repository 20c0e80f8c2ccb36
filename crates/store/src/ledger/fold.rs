//! Folding: a commit of the ledger appends rows and lists their ids in `unfolded`. Later one transaction adds these rows to
//! the sums and removes their ids from the list, so that every row is counted once, even after a crash. Until then readers
//! add the listed rows to the sums themselves, so that figures are never late. Pure; the databases' parts are
//! `sqlite_fold` and `postgres_fold`.

use std::time::Duration;

use crate::usage::commit_id::CommitId;
use crate::usage::unfolded::UnfoldedCommit;

/// When a commit became durable. This is known only afterwards, so it is written later, in batches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CommitTime {
    pub(crate) commit: CommitId,
    pub(crate) persisted_at_micros: u64,
}

/// The commits that remain after folding.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Backlog {
    pub(crate) rows: u64,
    /// The oldest commit that is not folded.
    pub(crate) oldest: Option<CommitId>,
    /// Whether some of them could have been folded, but did not fit into the transaction.
    pub(crate) is_ready: bool,
    /// Commits that could not be read and were set aside.
    pub(crate) unreadable: u64,
}

impl Backlog {
    pub(crate) fn add(&mut self, commit: &UnfoldedCommit) {
        self.rows += commit.requests.len() as u64;
        self.oldest = Some(self.oldest.map_or(commit.id, |oldest| oldest.min(commit.id)));
    }

    /// How long the oldest of its commits has waited.
    pub(crate) fn lag(&self, now_micros: u64) -> Duration {
        Duration::from_micros(self.oldest.map_or(0, |oldest| now_micros.saturating_sub(oldest.micros())))
    }
}

/// Counts commits that were set aside because they cannot be read.
pub(crate) const COUNT_UNREADABLE: &str = "SELECT count(*) FROM unreadable_commits";

/// For `check`: the number of commits that were set aside, if any.
pub(crate) fn describe_unreadable(commits: i64) -> Option<String> {
    (commits > 0).then(|| format!("commits of the ledger that cannot be read: {commits}; their rows are in no sum"))
}

/// Logs commits that were set aside so that the others can be folded.
pub(crate) fn log_unreadable(commits: &[CommitId]) {
    for commit in commits {
        let commit = commit.number();
        tracing::error!(commit, "a commit of the ledger cannot be read: it is set aside, and its rows are in no sum");
    }
}

/// Takes the commits that are ready and fit into one transaction, the oldest first; the rest is the backlog.
pub(crate) fn take_ready(
    unfolded: Vec<UnfoldedCommit>,
    now_micros: u64,
    max_rows: usize,
) -> (Vec<UnfoldedCommit>, Backlog) {
    let (mut taken, mut backlog, mut rows) = (Vec::new(), Backlog::default(), 0);
    for commit in unfolded {
        let is_ready = commit.is_ready(now_micros);
        if is_ready && (rows == 0 || rows + commit.requests.len() <= max_rows) {
            rows += commit.requests.len();
            taken.push(commit);
        } else {
            backlog.is_ready |= is_ready;
            backlog.add(&commit);
        }
    }
    (taken, backlog)
}

#[cfg(test)]
mod tests {
    use chat::RequestId;

    use super::*;

    const NOW: u64 = 1_700_000_000_000_000;

    fn commit(age_micros: i64, timed: bool, rows: usize) -> UnfoldedCommit {
        let at = NOW.saturating_add_signed(-age_micros);
        let requests = (0..rows as u64).map(|row| RequestId::at_micros(at, row << 16)).collect();
        UnfoldedCommit { id: CommitId::first_at(at), persisted_at_micros: timed.then_some(at), requests }
    }

    #[test]
    fn a_commit_waits_for_its_timings_for_a_limited_time_and_not_with_a_wrong_clock() {
        for (age, timed, ready) in [
            (1_000, true, true),
            (1_000, false, false),
            (4_900_000, false, false),
            (5_100_000, false, true),
            (-5_100_000, false, true),
            (-1_000, false, false),
        ] {
            assert_eq!(commit(age, timed, 1).is_ready(NOW), ready, "{age} {timed}");
        }
    }

    #[test]
    fn a_fold_takes_the_commits_that_fit_and_at_least_one() {
        let take = |commits, max_rows| {
            let (taken, backlog) = take_ready(commits, NOW, max_rows);
            (taken.iter().map(|commit| commit.requests.len()).collect::<Vec<_>>(), backlog.rows, backlog.is_ready)
        };
        assert_eq!(take(vec![], 10), (vec![], 0, false));
        assert_eq!(take(vec![commit(9, true, 20), commit(8, true, 1)], 10), (vec![20], 1, true));
        assert_eq!(take(vec![commit(9, true, 5), commit(8, false, 1), commit(7, true, 5)], 10), (vec![5, 5], 1, false));
    }

    #[test]
    fn the_lag_is_that_of_the_oldest_commit() {
        let (_, backlog) = take_ready(vec![commit(3_000_000, false, 1), commit(1_000_000, false, 1)], NOW, 10);
        assert_eq!(backlog.lag(NOW), Duration::from_secs(3));
        assert_eq!(Backlog::default().lag(NOW), Duration::ZERO);
    }
}
