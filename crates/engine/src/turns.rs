//! Turns for work that is done in pieces. The next turn goes to the person with the least work done, and to the key with
//! the least among theirs.
//!
//! Each piece is charged to its person and key, so a large job costs them more turns than a small one. A person who
//! returns after a pause starts level with the one served last: a pause neither saves turns nor adds debts. So a person's
//! piece waits for at most one piece of every other person, and for the piece in progress. The same holds between the
//! keys of a person.
//!
//! Pure: the caller defines pieces and their costs.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use crate::queue::{FairQueue, Tag};

/// The work done for each of several parties.
struct Level<Party> {
    /// Only for parties ahead of the level.
    ahead: HashMap<Party, usize>,
    /// The work that had been done for the party served last, before that turn.
    level: usize,
}

impl<Party> Default for Level<Party> {
    fn default() -> Self {
        Self { ahead: HashMap::new(), level: 0 }
    }
}

impl<Party: Clone + Eq + Hash> Level<Party> {
    fn charged(&self, party: &Party) -> usize {
        self.ahead.get(party).copied().unwrap_or(0).max(self.level)
    }

    fn charge(&mut self, party: &Party, cost: usize) {
        let charged = self.charged(party);
        self.level = charged;
        self.ahead.insert(party.clone(), charged + cost);
        self.ahead.retain(|_, ahead| *ahead > charged);
    }
}

/// The work done for each person, and for each of their keys.
#[derive(Default)]
pub(crate) struct Charges {
    people: Level<Arc<str>>,
    keys: HashMap<Arc<str>, Level<Tag>>,
}

impl Charges {
    /// The work done for the tag's person, and for its key.
    pub(crate) fn charged(&self, tag: &Tag) -> (usize, usize) {
        let key = self.keys.get(&tag.person).map_or(0, |keys| keys.charged(tag));
        (self.people.charged(&tag.person), key)
    }

    /// Charges a tag for the piece of work in its turn.
    pub(crate) fn charge(&mut self, tag: &Tag, cost: usize) {
        self.people.charge(&tag.person, cost);
        self.keys.entry(tag.person.clone()).or_default().charge(tag, cost);
    }

    /// Forgets the keys of people without work. `count` people have some.
    pub(crate) fn forget_others(&mut self, count: usize, has_work: impl Fn(&Arc<str>) -> bool) {
        // Only if there may be others, because the search is linear.
        if self.keys.len() > count + 1 {
            self.keys.retain(|person, _| has_work(person));
        }
    }
}

pub(crate) struct Turns<J> {
    pub(crate) queue: FairQueue<J>,
    charges: Charges,
}

impl<J> Turns<J> {
    pub(crate) fn new(limit: usize) -> Self {
        Self { queue: FairQueue::new(limit), charges: Charges::default() }
    }

    /// Removes the job whose turn it is.
    pub(crate) fn take(&mut self) -> Option<(Tag, J)> {
        let (tag, _) = self.queue.peek(|tag| self.charges.charged(tag))?;
        let tag = tag.clone();
        let job = self.queue.pop(&tag)?;
        Some((tag, job))
    }

    /// Charges a tag for the turn that it had.
    pub(crate) fn charge(&mut self, tag: &Tag, cost: usize) {
        self.charges.charge(tag, cost);
        self.charges.forget_others(self.queue.people(), |person| self.queue.has_person(person));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tag(name: &str) -> Tag {
        Tag::new(None, name)
    }

    /// Does all work in pieces of at most `piece`. Jobs are their sizes. Returns the person of each piece, in order.
    fn work(turns: &mut Turns<usize>, piece: usize) -> Vec<String> {
        let mut order = Vec::new();
        while let Some((tag, left)) = turns.take() {
            turns.charge(&tag, left.min(piece));
            order.push(tag.person.to_string());
            if left > piece {
                turns.queue.put_back(tag, left - piece);
            }
        }
        order
    }

    #[test]
    fn a_large_job_goes_on_only_after_the_small_one_of_another_tag() {
        let mut turns = Turns::new(10);
        turns.queue.push(tag("large"), 40);
        turns.queue.push(tag("large"), 40);
        turns.queue.push(tag("small"), 5);
        let order = work(&mut turns, 10);
        assert_eq!(order.iter().position(|tag| tag == "small"), Some(1), "{order:?}");
        assert_eq!(order.len(), 9);
    }

    #[test]
    fn a_job_is_finished_before_the_next_of_its_tag_is_begun() {
        let mut turns = Turns::new(10);
        for job in [(1, 25), (2, 5)] {
            turns.queue.push(tag("a"), job);
        }
        let mut finished = Vec::new();
        while let Some((tag, (name, left))) = turns.take() {
            turns.charge(&tag, 10);
            match left > 10 {
                true => turns.queue.put_back(tag, (name, left - 10)),
                false => finished.push(name),
            }
        }
        assert_eq!(finished, [1, 2]);
    }

    #[test]
    fn a_pause_saves_no_turns() {
        let mut turns = Turns::new(100);
        let push = |turns: &mut Turns<usize>, name: &str, jobs| {
            (0..jobs).for_each(|_| assert_eq!(turns.queue.push(tag(name), 10), None));
        };
        push(&mut turns, "busy", 20);
        work(&mut turns, 10);
        push(&mut turns, "late", 5);
        push(&mut turns, "busy", 5);
        let order = work(&mut turns, 10);
        let first_six = order.iter().take(6).filter(|tag| *tag == "late").count();
        assert!((2..=4).contains(&first_six), "{order:?}");
    }

    #[test]
    fn many_keys_give_a_person_no_more_turns_and_a_greedy_key_leaves_turns_to_the_others() {
        let mut turns = Turns::new(1_000);
        for number in 0..10 {
            for _ in 0..10 {
                turns.queue.push(Tag::new(Some("greedy"), &number.to_string()), 40);
            }
        }
        turns.queue.push(Tag::new(Some("greedy"), "patient"), 40);
        turns.queue.push(tag("alone"), 100);
        let mut done: HashMap<Tag, usize> = HashMap::new();
        while let Some((tag, left)) = turns.take() {
            turns.charge(&tag, 10);
            *done.entry(tag.clone()).or_default() += 10;
            if left > 10 {
                turns.queue.put_back(tag, left - 10);
            } else if &*tag.person == "alone" {
                break;
            }
        }
        let of_greedy: Vec<_> =
            done.iter().filter(|(tag, _)| &*tag.person == "greedy").map(|(_, done)| *done).collect();
        assert!((90..=110).contains(&of_greedy.iter().sum::<usize>()), "{done:?}");
        assert!(of_greedy.len() >= 9 && of_greedy.iter().all(|done| *done <= 20), "{done:?}");
    }

    #[test]
    fn keys_of_people_without_work_are_forgotten() {
        let mut turns = Turns::new(10);
        for number in 0..1_000 {
            turns.queue.push(tag(&number.to_string()), 5);
            work(&mut turns, 10);
        }
        assert!(turns.charges.keys.len() <= 2);
    }

    proptest! {
        /// While a job waits, no other tag gets more than one piece ahead of its tag.
        #[test]
        fn a_tag_that_waits_falls_behind_by_one_piece_at_most(
            jobs in proptest::collection::vec((0..4_usize, 1..200_usize), 1..60),
            piece in 1..50_usize,
        ) {
            let mut turns = Turns::new(usize::MAX);
            let mut left = [0_usize; 4];
            for (tag, size) in &jobs {
                prop_assert!(turns.queue.push(self::tag(&tag.to_string()), *size).is_none());
                left[*tag] += size;
            }
            let mut done = [0_usize; 4];
            while let Some((tag, size)) = turns.take() {
                let at: usize = tag.person.parse().unwrap();
                let part = size.min(piece);
                for other in (0..4).filter(|other| left[*other] > 0) {
                    prop_assert!(done[at] <= done[other], "{done:?} {left:?} {at}");
                }
                turns.charge(&tag, part);
                (done[at], left[at]) = (done[at] + part, left[at] - part);
                if size > part {
                    turns.queue.put_back(tag, size - part);
                }
            }
            prop_assert_eq!(left, [0; 4]);
            prop_assert!(turns.charges.people.ahead.len() <= 4);
        }
    }
}
