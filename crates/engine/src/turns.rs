//! Turns between tags for work that is done in pieces: first the tag for which least was done.
//!
//! Each piece is charged to its tag, so a large job costs its tag more turns than a small one. A tag that comes back
//! after a pause starts level with the one served last: it has neither saved turns nor debts that others had meanwhile.
//! So a tag's piece waits for at most one piece of every other tag, and for the one that is being worked on.
//!
//! Pure: what a piece is and what it costs is the caller's to say.

use std::collections::HashMap;

use crate::queue::{FairQueue, Tag};

/// What was done for each tag.
#[derive(Default)]
pub(crate) struct Charges {
    /// Only of tags that are ahead of the level.
    ahead: HashMap<Tag, usize>,
    /// What had been done for the tag that was served last.
    level: usize,
}

impl Charges {
    /// The tag with the least is next.
    pub(crate) fn of(&self, tag: &Tag) -> usize {
        self.ahead.get(tag).copied().unwrap_or(0).max(self.level)
    }

    /// Charges a tag, whose turn it is, for a piece of work.
    pub(crate) fn charge(&mut self, tag: &Tag, cost: usize) {
        let charged = self.of(tag);
        self.level = charged;
        self.ahead.insert(tag.clone(), charged + cost);
        self.ahead.retain(|_, ahead| *ahead > charged);
    }
}

pub(crate) struct Turns<J> {
    queue: FairQueue<J>,
    charges: Charges,
}

impl<J> Turns<J> {
    pub(crate) fn new(limit: usize) -> Self {
        Self { queue: FairQueue::new(limit), charges: Charges::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Adds a job. If there are too many, returns the one that was rejected, as `FairQueue::push` does.
    pub(crate) fn push(&mut self, tag: Tag, job: J) -> Option<J> {
        self.queue.push(tag, job)
    }

    /// Removes the job whose turn it is.
    pub(crate) fn take(&mut self) -> Option<(Tag, J)> {
        let (tag, _) = self.queue.peek(|tag| self.charges.of(tag))?;
        let tag = tag.clone();
        let job = self.queue.pop(&tag)?;
        Some((tag, job))
    }

    /// Charges a tag for the turn that it had.
    pub(crate) fn charge(&mut self, tag: &Tag, cost: usize) {
        self.charges.charge(tag, cost);
    }

    /// Returns a job of which there is more to do. It goes on in its tag's next turn.
    pub(crate) fn put_back(&mut self, tag: Tag, job: J) {
        self.queue.put_back(tag, job);
    }

    /// Removes and returns all jobs for which the predicate holds.
    pub(crate) fn remove_if(&mut self, predicate: impl Fn(&J) -> bool) -> Vec<J> {
        self.queue.remove_if(predicate)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Works on everything, a piece of at most `piece` at a time. Jobs are their sizes; returns whose pieces were done.
    fn work(turns: &mut Turns<usize>, piece: usize) -> Vec<String> {
        let mut order = Vec::new();
        while let Some((tag, left)) = turns.take() {
            turns.charge(&tag, left.min(piece));
            order.push(tag.to_string());
            if left > piece {
                turns.put_back(tag, left - piece);
            }
        }
        order
    }

    #[test]
    fn a_large_job_goes_on_only_after_the_small_one_of_another_tag() {
        let mut turns = Turns::new(10);
        turns.push("large".into(), 40);
        turns.push("large".into(), 40);
        turns.push("small".into(), 5);
        let order = work(&mut turns, 10);
        assert_eq!(order.iter().position(|tag| tag == "small"), Some(1), "{order:?}");
        assert_eq!(order.len(), 9);
    }

    #[test]
    fn a_job_is_finished_before_the_next_of_its_tag_is_begun() {
        let mut turns = Turns::new(10);
        for job in [(1, 25), (2, 5)] {
            turns.push("a".into(), job);
        }
        let mut finished = Vec::new();
        while let Some((tag, (name, left))) = turns.take() {
            turns.charge(&tag, 10);
            match left > 10 {
                true => turns.put_back(tag, (name, left - 10)),
                false => finished.push(name),
            }
        }
        assert_eq!(finished, [1, 2]);
    }

    #[test]
    fn a_pause_saves_no_turns() {
        let mut turns = Turns::new(100);
        let push = |turns: &mut Turns<usize>, tag: &str, jobs| {
            (0..jobs).for_each(|_| assert_eq!(turns.push(tag.into(), 10), None));
        };
        push(&mut turns, "busy", 20);
        work(&mut turns, 10);
        push(&mut turns, "late", 5);
        push(&mut turns, "busy", 5);
        let order = work(&mut turns, 10);
        let first_six = order.iter().take(6).filter(|tag| *tag == "late").count();
        assert!((2..=4).contains(&first_six), "{order:?}");
    }

    proptest! {
        /// While a job waits, no other tag gets more than one piece ahead of what is done for its tag.
        #[test]
        fn a_tag_that_waits_falls_behind_by_one_piece_at_most(
            jobs in proptest::collection::vec((0..4_usize, 1..200_usize), 1..60),
            piece in 1..50_usize,
        ) {
            let mut turns = Turns::new(usize::MAX);
            let mut left = [0_usize; 4];
            for (tag, size) in &jobs {
                prop_assert!(turns.push(tag.to_string().into(), *size).is_none());
                left[*tag] += size;
            }
            let mut done = [0_usize; 4];
            while let Some((tag, size)) = turns.take() {
                let at: usize = tag.parse().unwrap();
                let part = size.min(piece);
                for other in (0..4).filter(|other| left[*other] > 0) {
                    prop_assert!(done[at] <= done[other], "{done:?} {left:?} {at}");
                }
                turns.charge(&tag, part);
                (done[at], left[at]) = (done[at] + part, left[at] - part);
                if size > part {
                    turns.put_back(tag, size - part);
                }
            }
            prop_assert_eq!(left, [0; 4]);
            prop_assert!(turns.charges.ahead.len() <= 4);
        }
    }
}
