//! The waiting room: bounded, and fair between those who wait.
//!
//! Everyone who waits stands in the queue of a tag (the server passes the key's public id along). Turns go to the tag
//! that has the least under way, and among equals to the one whose last turn is longest ago; so a tag with a hundred
//! waiting does not delay another one's first. When the room is full, the longest queue gives way.

use std::collections::VecDeque;

/// Who a request is counted for; opaque.
pub(crate) type Tag = std::sync::Arc<str>;

struct TagQueue<J> {
    tag: Tag,
    jobs: VecDeque<J>,
    last_pop: u64,
}

/// Everyone who waits.
pub(crate) struct FairQueue<J> {
    queues: Vec<TagQueue<J>>,
    limit: usize,
    pops: u64,
}

impl<J> FairQueue<J> {
    /// An empty room for so many.
    pub(crate) fn new(limit: usize) -> Self {
        Self { queues: Vec::new(), limit, pops: 0 }
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.queues.iter().map(|queue| queue.jobs.len()).sum()
    }

    /// Somebody comes in. If there is no room, somebody is turned away, and returned: the last of the longest queue, or
    /// the newcomer if there is no longer queue than its own.
    pub(crate) fn push(&mut self, tag: Tag, job: J) -> Option<J> {
        let own = self.queue(&tag).map_or(0, |queue| queue.jobs.len());
        let mut turned_away = None;
        if self.len() >= self.limit {
            let longest = self.queues.iter_mut().max_by_key(|queue| queue.jobs.len());
            let Some(longest) = longest.filter(|queue| queue.jobs.len() > own + 1) else { return Some(job) };
            turned_away = longest.jobs.pop_back();
        }
        match self.queue(&tag) {
            Some(queue) => queue.jobs.push_back(job),
            None => self.queues.push(TagQueue { tag, jobs: VecDeque::from([job]), last_pop: self.pops }),
        }
        turned_away
    }

    /// Whose turn it is, given how much each tag has under way.
    pub(crate) fn peek(&self, in_flight: impl Fn(&Tag) -> usize) -> Option<(&Tag, &J)> {
        let queue = self.queues.iter().min_by_key(|queue| (in_flight(&queue.tag), queue.last_pop))?;
        Some((&queue.tag, queue.jobs.front()?))
    }

    /// Lets the first of a queue go.
    pub(crate) fn pop(&mut self, tag: &Tag) -> Option<J> {
        self.pops += 1;
        let pops = self.pops;
        let queue = self.queue(tag)?;
        queue.last_pop = pops;
        let job = queue.jobs.pop_front();
        self.queues.retain(|queue| !queue.jobs.is_empty());
        job
    }

    /// Takes everyone out who is not to wait any longer.
    pub(crate) fn remove_if(&mut self, is_over: impl Fn(&J) -> bool) -> Vec<J> {
        let mut over = Vec::new();
        for queue in &mut self.queues {
            let (gone, stay): (VecDeque<J>, _) = std::mem::take(&mut queue.jobs).into_iter().partition(&is_over);
            queue.jobs = stay;
            over.extend(gone);
        }
        self.queues.retain(|queue| !queue.jobs.is_empty());
        over
    }

    fn queue(&mut self, tag: &Tag) -> Option<&mut TagQueue<J>> {
        self.queues.iter_mut().find(|queue| queue.tag == *tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(name: &str) -> Tag {
        name.into()
    }

    #[test]
    fn a_hundred_waiting_of_one_tag_do_not_delay_the_one_of_another() {
        let mut queue = FairQueue::new(200);
        for at in 0..100 {
            assert_eq!(queue.push(tag("greedy"), at), None);
        }
        assert_eq!(queue.push(tag("modest"), 1000), None);
        // The greedy one has something under way, the modest one has not.
        let (next, job) = queue.peek(|tag| usize::from(&**tag == "greedy")).unwrap();
        assert_eq!((&**next, *job), ("modest", 1000));
    }

    #[test]
    fn equals_take_turns_and_each_line_keeps_its_order() {
        let mut queue = FairQueue::new(10);
        for at in 0..3 {
            queue.push(tag("a"), at);
            queue.push(tag("b"), 10 + at);
        }
        let mut order = Vec::new();
        while let Some((next, _)) = queue.peek(|_| 0) {
            let next = next.clone();
            order.extend(queue.pop(&next));
        }
        assert_eq!(order, [0, 10, 1, 11, 2, 12]);
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn a_full_room_turns_the_last_of_the_longest_line_away() {
        let mut queue = FairQueue::new(3);
        for at in 0..3 {
            queue.push(tag("greedy"), at);
        }
        assert_eq!(queue.push(tag("greedy"), 3), Some(3), "its own queue is the longest");
        assert_eq!(queue.push(tag("modest"), 10), Some(2), "the newest of the longest queue gives way");
        assert_eq!(queue.push(tag("modest"), 11), Some(11), "both have their share now");
        assert_eq!(queue.len(), 3);
    }

    #[test]
    fn whoever_is_over_is_taken_out_and_the_others_stay() {
        let mut queue = FairQueue::new(10);
        for at in 0..6 {
            queue.push(tag(if at < 3 { "a" } else { "b" }), at);
        }
        assert_eq!(queue.remove_if(|job| job % 2 == 0), [0, 2, 4]);
        assert_eq!(queue.len(), 3);
    }
}
