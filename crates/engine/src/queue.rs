//! A bounded queue that is fair between people, and between the keys of each person. The service sends both with each
//! request.
//!
//! Each key has a separate queue. The next request comes from the person who uses least, and of theirs from the key
//! that uses least; among equals from the one that was served longest ago. So a hundred queued requests of one person,
//! with any number of keys, do not delay another person's first. If the queue is full, the person with the most queued
//! requests loses the newest one of their key with the most.

use std::collections::VecDeque;
use std::sync::Arc;

/// What requests are counted by: a person and one of their keys. Opaque.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Tag {
    pub(crate) person: Arc<str>,
    pub(crate) key: Arc<str>,
}

impl Tag {
    /// A key without a person counts as a separate person.
    pub(crate) fn new(person: Option<&str>, key: &str) -> Self {
        Self { person: person.unwrap_or(key).into(), key: key.into() }
    }
}

struct KeyQueue<J> {
    tag: Tag,
    jobs: VecDeque<J>,
    /// The value of `pops` when this key was last served.
    last_pop: u64,
}

/// The queues of one person's keys; at least one, and none is empty.
struct PersonQueue<J> {
    keys: Vec<KeyQueue<J>>,
    last_pop: u64,
}

impl<J> PersonQueue<J> {
    fn tag(&self) -> &Tag {
        &self.keys[0].tag
    }

    fn len(&self) -> usize {
        self.keys.iter().map(|key| key.jobs.len()).sum()
    }

    fn longest(&mut self) -> Option<&mut KeyQueue<J>> {
        self.keys.iter_mut().max_by_key(|key| key.jobs.len())
    }
}

pub(crate) struct FairQueue<J> {
    people: Vec<PersonQueue<J>>,
    limit: usize,
    pops: u64,
}

impl<J> FairQueue<J> {
    pub(crate) fn new(limit: usize) -> Self {
        Self { people: Vec::new(), limit, pops: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.people.iter().map(PersonQueue::len).sum()
    }

    /// The number of people with a job in the queue.
    pub(crate) fn people(&self) -> usize {
        self.people.len()
    }

    pub(crate) fn has_person(&self, person: &Arc<str>) -> bool {
        self.people.iter().any(|queue| queue.tag().person == *person)
    }

    /// Adds a job. If the queue is full, rejects and returns a job: the newest of the person with the most, or of the same
    /// person's key with the most, or the added job if no other person and no other key of theirs has more.
    pub(crate) fn push(&mut self, tag: Tag, job: J) -> Option<J> {
        let mut rejected = None;
        if self.len() >= self.limit {
            let own_key = self.key(&tag).map_or(0, |key| key.jobs.len());
            let own = self.people.iter().find(|queue| queue.tag().person == tag.person).map_or(0, PersonQueue::len);
            let most = self.people.iter_mut().max_by_key(|queue| queue.len()).filter(|queue| queue.len() > own + 1);
            let longest = match most {
                Some(most) => most.longest(),
                None => self.person(&tag).and_then(PersonQueue::longest).filter(|key| key.jobs.len() > own_key + 1),
            };
            let Some(longest) = longest else { return Some(job) };
            rejected = longest.jobs.pop_back();
        }
        self.queue(tag).push_back(job);
        rejected
    }

    /// The next job, given what each person and each key uses: requests in flight, or work done.
    pub(crate) fn peek(&self, used: impl Fn(&Tag) -> (usize, usize)) -> Option<(&Tag, &J)> {
        let person = self.people.iter().min_by_key(|queue| (used(queue.tag()).0, queue.last_pop))?;
        let key = person.keys.iter().min_by_key(|key| (used(&key.tag).1, key.last_pop))?;
        Some((&key.tag, key.jobs.front()?))
    }

    /// Removes a key's first job.
    pub(crate) fn pop(&mut self, tag: &Tag) -> Option<J> {
        self.pops += 1;
        let pops = self.pops;
        self.person(tag)?.last_pop = pops;
        let key = self.key(tag)?;
        key.last_pop = pops;
        let job = key.jobs.pop_front();
        self.remove_empty();
        job
    }

    /// Puts a popped job back at the front of its key's queue, even if the queue is full.
    pub(crate) fn put_back(&mut self, tag: Tag, job: J) {
        self.queue(tag).push_front(job);
    }

    /// Removes and returns all jobs for which the predicate holds.
    pub(crate) fn remove_if(&mut self, predicate: impl Fn(&J) -> bool) -> Vec<J> {
        let mut removed = Vec::new();
        for key in self.people.iter_mut().flat_map(|queue| &mut queue.keys) {
            let (matching, others): (VecDeque<J>, _) = std::mem::take(&mut key.jobs).into_iter().partition(&predicate);
            key.jobs = others;
            removed.extend(matching);
        }
        self.remove_empty();
        removed
    }

    fn remove_empty(&mut self) {
        self.people.iter_mut().for_each(|queue| queue.keys.retain(|key| !key.jobs.is_empty()));
        self.people.retain(|queue| !queue.keys.is_empty());
    }

    fn person(&mut self, tag: &Tag) -> Option<&mut PersonQueue<J>> {
        self.people.iter_mut().find(|queue| queue.tag().person == tag.person)
    }

    fn key(&mut self, tag: &Tag) -> Option<&mut KeyQueue<J>> {
        self.person(tag)?.keys.iter_mut().find(|key| key.tag == *tag)
    }

    /// A key's queue, created if there is none. The caller must add a job to it immediately, as no queue may be empty.
    fn queue(&mut self, tag: Tag) -> &mut VecDeque<J> {
        let last_pop = self.pops;
        let new = |tag| KeyQueue { tag, jobs: VecDeque::new(), last_pop };
        let at = self.people.iter().position(|queue| queue.tag().person == tag.person).unwrap_or_else(|| {
            self.people.push(PersonQueue { keys: vec![new(tag.clone())], last_pop });
            self.people.len() - 1
        });
        let keys = &mut self.people[at].keys;
        let at = keys.iter().position(|key| key.tag == tag).unwrap_or_else(|| {
            keys.push(new(tag));
            keys.len() - 1
        });
        &mut keys[at].jobs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(name: &str) -> Tag {
        Tag::new(None, name)
    }

    fn key(person: &str, key: &str) -> Tag {
        Tag::new(Some(person), key)
    }

    #[test]
    fn a_person_with_many_keys_gets_the_turns_of_one_person_shared_between_the_keys() {
        let mut queue = FairQueue::new(200);
        for at in 0..10 {
            for number in 0..10 {
                queue.push(key("greedy", &format!("key {number}")), (number, at));
            }
        }
        queue.push(key("greedy", "patient"), (100, 0));
        (0..3).for_each(|at| assert_eq!(queue.push(tag("alone"), (200, at)), None));
        let mut served = Vec::new();
        while let Some((next, _)) = queue.peek(|_| (0, 0)) {
            let next = next.clone();
            served.extend(queue.pop(&next));
        }
        let alone: Vec<_> = (0..served.len()).filter(|at| served[*at].0 == 200).collect();
        assert_eq!(alone, [1, 3, 5], "every second turn");
        let patient = served.iter().position(|(number, _)| *number == 100).unwrap();
        assert!(patient < 15, "{patient}: it waits for one of each other key");
    }

    #[test]
    fn a_full_queue_rejects_the_newest_of_the_person_with_the_most_over_all_their_keys() {
        let mut queue = FairQueue::new(6);
        for at in 0..4 {
            assert_eq!(queue.push(key("greedy", "first"), at), None);
        }
        assert_eq!(queue.push(key("greedy", "second"), 10), None);
        assert_eq!(queue.push(key("greedy", "third"), 20), None);
        assert_eq!(queue.push(tag("alone"), 100), Some(3), "of the key with the most");
        assert_eq!(queue.push(tag("alone"), 101), Some(2));
        assert_eq!(queue.push(key("greedy", "first"), 4), Some(4));
        assert_eq!(queue.push(key("greedy", "fourth"), 30), Some(1), "keys of one person displace each other, too");
        assert_eq!(queue.push(key("greedy", "fifth"), 40), Some(40), "every key has one");
    }

    #[test]
    fn a_hundred_jobs_of_one_tag_do_not_delay_another_tags_first() {
        let mut queue = FairQueue::new(200);
        for at in 0..100 {
            assert_eq!(queue.push(tag("greedy"), at), None);
        }
        assert_eq!(queue.push(tag("modest"), 1000), None);
        // Only the greedy tag has a request in flight.
        let (next, job) = queue.peek(|tag| (usize::from(&*tag.person == "greedy"), 0)).unwrap();
        assert_eq!((&*next.person, *job), ("modest", 1000));
    }

    #[test]
    fn equal_tags_alternate_and_each_keeps_its_order() {
        let mut queue = FairQueue::new(10);
        for at in 0..3 {
            queue.push(tag("a"), at);
            queue.push(tag("b"), 10 + at);
        }
        let mut order = Vec::new();
        while let Some((next, _)) = queue.peek(|_| (0, 0)) {
            let next = next.clone();
            order.extend(queue.pop(&next));
        }
        assert_eq!(order, [0, 10, 1, 11, 2, 12]);
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn a_full_queue_rejects_the_newest_job_of_the_longest_tag_queue() {
        let mut queue = FairQueue::new(3);
        for at in 0..3 {
            queue.push(tag("greedy"), at);
        }
        assert_eq!(queue.push(tag("greedy"), 3), Some(3), "its own queue is the longest");
        assert_eq!(queue.push(tag("modest"), 10), Some(2), "the newest of the longest queue is rejected");
        assert_eq!(queue.push(tag("modest"), 11), Some(11), "both have an equal share now");
        assert_eq!(queue.len(), 3);
    }

    #[test]
    fn matching_jobs_are_removed_and_the_others_stay() {
        let mut queue = FairQueue::new(10);
        for at in 0..6 {
            queue.push(tag(if at < 3 { "a" } else { "b" }), at);
        }
        assert_eq!(queue.remove_if(|job| job % 2 == 0), [0, 2, 4]);
        assert_eq!(queue.len(), 3);
    }
}
