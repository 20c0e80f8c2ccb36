//! A round-robin queue: every waiting visitor is served once before any visitor is served twice.
//!
//! It has no clock, lock or limit: `throttle` limits the number of waiting attempts.

use std::collections::VecDeque;

#[derive(Debug)]
pub(crate) struct RoundRobin<Visitor, Job> {
    /// Visitors with at least one job; the front is next.
    waiting: VecDeque<(Visitor, VecDeque<Job>)>,
}

impl<Visitor, Job> Default for RoundRobin<Visitor, Job> {
    fn default() -> Self {
        Self { waiting: VecDeque::new() }
    }
}

impl<Visitor: Eq, Job> RoundRobin<Visitor, Job> {
    pub(crate) fn push(&mut self, visitor: Visitor, job: Job) {
        match self.waiting.iter_mut().find(|(waiting, _)| *waiting == visitor) {
            Some((_, jobs)) => jobs.push_back(job),
            None => self.waiting.push_back((visitor, VecDeque::from([job]))),
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Job> {
        let (visitor, mut jobs) = self.waiting.pop_front()?;
        let job = jobs.pop_front();
        if !jobs.is_empty() {
            self.waiting.push_back((visitor, jobs));
        }
        job
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_visitor_with_one_job_does_not_wait_for_all_of_anothers() {
        let mut queue = RoundRobin::default();
        (0..100).for_each(|number| queue.push("many", number));
        queue.push("person", 1000);
        assert_eq!([queue.pop(), queue.pop(), queue.pop()], [Some(0), Some(1000), Some(1)]);
    }

    proptest! {
        /// In any order of arrival: no job is lost, each visitor's jobs keep their order, and a job waits for at most one
        /// job of each other visitor per job of its own visitor.
        #[test]
        fn a_job_waits_for_one_job_of_each_other_visitor(
            steps in proptest::collection::vec(proptest::option::of(0..6usize), 0..300),
        ) {
            let mut queue = RoundRobin::default();
            let (mut pushed, mut served) = ([0; 6], Vec::<(usize, usize)>::new());
            // For each waiting job: the number of jobs served before it arrived, and of its visitor's jobs ahead of it.
            let mut arrivals = std::collections::HashMap::new();
            let drain = std::iter::repeat_n(None, steps.len());
            for step in steps.iter().copied().chain(drain) {
                match step {
                    Some(visitor) => {
                        let number = pushed[visitor];
                        pushed[visitor] += 1;
                        let done = served.iter().filter(|(by, _)| *by == visitor).count();
                        arrivals.insert((visitor, number), (served.len(), number - done));
                        queue.push(visitor, (visitor, number));
                    }
                    None => {
                        let Some((visitor, number)) = queue.pop() else { continue };
                        let (since, ahead) = arrivals[&(visitor, number)];
                        prop_assert!(served[since..].iter().filter(|(by, _)| *by == visitor).count() == ahead);
                        for other in (0..6).filter(|other| *other != visitor) {
                            let waited_for = served[since..].iter().filter(|(by, _)| *by == other).count();
                            prop_assert!(waited_for <= ahead + 1, "{waited_for} of {other} before {visitor}");
                        }
                        served.push((visitor, number));
                    }
                }
            }
            prop_assert_eq!(served.len(), pushed.iter().sum::<usize>());
        }
    }
}
