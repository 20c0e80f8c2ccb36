//! A bounded queue that is fair between tags. The service sends the key's public id as the tag.
//!
//! Each tag has a queue of its own. The next request comes from the tag that uses least, and among equals from the one
//! that was served longest ago. So a hundred queued requests of one tag do not delay another tag's
//! first. If the queue is full, the longest tag queue loses its newest request.

use std::collections::VecDeque;

/// What requests are counted by. Opaque.
pub(crate) type Tag = std::sync::Arc<str>;

struct TagQueue<J> {
    tag: Tag,
    jobs: VecDeque<J>,
    /// The value of `pops` when this tag was last served.
    last_pop: u64,
}

pub(crate) struct FairQueue<J> {
    queues: Vec<TagQueue<J>>,
    limit: usize,
    pops: u64,
}

impl<J> FairQueue<J> {
    pub(crate) fn new(limit: usize) -> Self {
        Self { queues: Vec::new(), limit, pops: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.queues.iter().map(|queue| queue.jobs.len()).sum()
    }

    /// Adds a job. If the queue is full, a job is rejected and returned: the newest of the longest tag queue, or the
    /// added job if no other tag's queue is longer than its own.
    pub(crate) fn push(&mut self, tag: Tag, job: J) -> Option<J> {
        let own = self.queue(&tag).map_or(0, |queue| queue.jobs.len());
        let mut rejected = None;
        if self.len() >= self.limit {
            let longest = self.queues.iter_mut().max_by_key(|queue| queue.jobs.len());
            let Some(longest) = longest.filter(|queue| queue.jobs.len() > own + 1) else { return Some(job) };
            rejected = longest.jobs.pop_back();
        }
        match self.queue(&tag) {
            Some(queue) => queue.jobs.push_back(job),
            None => self.queues.push(TagQueue { tag, jobs: VecDeque::from([job]), last_pop: self.pops }),
        }
        rejected
    }

    /// The next job, given what each tag uses: requests in flight, or work done for it.
    pub(crate) fn peek(&self, used: impl Fn(&Tag) -> usize) -> Option<(&Tag, &J)> {
        let queue = self.queues.iter().min_by_key(|queue| (used(&queue.tag), queue.last_pop))?;
        Some((&queue.tag, queue.jobs.front()?))
    }

    /// Removes a tag's first job.
    pub(crate) fn pop(&mut self, tag: &Tag) -> Option<J> {
        self.pops += 1;
        let pops = self.pops;
        let queue = self.queue(tag)?;
        queue.last_pop = pops;
        let job = queue.jobs.pop_front();
        self.queues.retain(|queue| !queue.jobs.is_empty());
        job
    }

    /// Returns a job that was popped to the front of its tag's queue, whatever the limit.
    pub(crate) fn put_back(&mut self, tag: Tag, job: J) {
        match self.queue(&tag) {
            Some(queue) => queue.jobs.push_front(job),
            None => self.queues.push(TagQueue { tag, jobs: VecDeque::from([job]), last_pop: self.pops }),
        }
    }

    /// Removes and returns all jobs for which the predicate holds.
    pub(crate) fn remove_if(&mut self, predicate: impl Fn(&J) -> bool) -> Vec<J> {
        let mut removed = Vec::new();
        for queue in &mut self.queues {
            let (matching, others): (VecDeque<J>, _) =
                std::mem::take(&mut queue.jobs).into_iter().partition(&predicate);
            queue.jobs = others;
            removed.extend(matching);
        }
        self.queues.retain(|queue| !queue.jobs.is_empty());
        removed
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
    fn a_hundred_jobs_of_one_tag_do_not_delay_another_tags_first() {
        let mut queue = FairQueue::new(200);
        for at in 0..100 {
            assert_eq!(queue.push(tag("greedy"), at), None);
        }
        assert_eq!(queue.push(tag("modest"), 1000), None);
        // Only the greedy tag has a request in flight.
        let (next, job) = queue.peek(|tag| usize::from(&**tag == "greedy")).unwrap();
        assert_eq!((&**next, *job), ("modest", 1000));
    }

    #[test]
    fn equal_tags_alternate_and_each_keeps_its_order() {
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
    fn a_full_queue_rejects_the_newest_job_of_the_longest_tag_queue() {
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
    fn matching_jobs_are_removed_and_the_others_stay() {
        let mut queue = FairQueue::new(10);
        for at in 0..6 {
            queue.push(tag(if at < 3 { "a" } else { "b" }), at);
        }
        assert_eq!(queue.remove_if(|job| job % 2 == 0), [0, 2, 4]);
        assert_eq!(queue.len(), 3);
    }
}
