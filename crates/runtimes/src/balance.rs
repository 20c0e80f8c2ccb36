//! Which member takes the next request, pure: least outstanding requests, with affinity by the prompt's beginning so
//! that a conversation finds its cache. A member keeps its prefixes only up to its share of the load; the rest spills.

use std::hash::{DefaultHasher, Hash, Hasher};

use breaker::{Breaker, Verdict};
use chat::{ChatRequest, Role};

/// How much more than the mean a preferred member may carry: a quarter.
const SHARE_NUMERATOR: usize = 5;
const SHARE_DENOMINATOR: usize = 4;

/// How much of each message takes part in an affinity.
const PREFIX_BYTES: usize = 2_048;

/// The beginning of a prompt, hashed: everything up to the first user message, which a conversation repeats every turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Affinity(u64);

impl Affinity {
    /// The affinity of a request.
    pub fn of(request: &ChatRequest) -> Self {
        let mut hasher = DefaultHasher::new();
        for message in request.messages() {
            let text = message.content().as_bytes();
            hasher.write(&text[..text.len().min(PREFIX_BYTES)]);
            if message.role() == Role::User {
                break;
            }
        }
        Self(hasher.finish())
    }

    /// An affinity of that number, for simulations.
    pub fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// How much this prefix belongs to a member: the highest of all members wins (rendezvous hashing), so that adding
    /// or losing a member moves no other member's prefixes.
    fn weight(self, identity: u64) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.0, identity).hash(&mut hasher);
        hasher.finish()
    }
}

/// The load and state of every member.
#[derive(Debug, Default)]
pub struct Balance {
    members: Vec<Load>,
}

/// The load and state of one member.
#[derive(Debug, Clone, Default)]
pub struct Load {
    identity: u64,
    outstanding: usize,
    breaker: Breaker,
}

impl Load {
    /// Requests under way.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Whether it counts as working.
    pub fn is_working(&self) -> bool {
        self.breaker.is_closed()
    }

    /// Whether a request would be sent to it: it works, or one may try whether it does again.
    pub fn is_askable(&self, now: u64) -> bool {
        self.breaker.allows(now)
    }
}

impl Balance {
    /// Members with these names, all idle and working. The same name keeps the same prefixes.
    pub fn new<Name: AsRef<str>>(names: impl IntoIterator<Item = Name>) -> Self {
        let member = |name: Name| {
            let mut hasher = DefaultHasher::new();
            name.as_ref().hash(&mut hasher);
            Load { identity: hasher.finish(), ..Load::default() }
        };
        Self { members: names.into_iter().map(member).collect() }
    }

    /// The members, in the order of their names.
    pub fn members(&self) -> &[Load] {
        &self.members
    }

    /// Takes the member for a request and counts the request as under way; `release` must follow. `None` if nobody is
    /// left to ask. A request that failed on one member excludes it when it tries again.
    pub fn choose(&mut self, affinity: Affinity, excluded: Option<usize>, now: u64) -> Option<usize> {
        let working = self.candidates(excluded, |breaker| breaker.allows(now));
        let chosen = match self.prefer(&working, affinity) {
            Some(member) => member,
            None => {
                let resort = self.candidates(excluded, Breaker::allows_as_last_resort);
                resort.into_iter().min_by_key(|&at| self.members[at].breaker.retry_at())?
            }
        };
        let load = &mut self.members[chosen];
        load.outstanding += 1;
        load.breaker.begin();
        Some(chosen)
    }

    /// A request has ended, and taught something about its member or not.
    pub fn release(&mut self, member: usize, verdict: Verdict, now: u64) {
        let load = &mut self.members[member];
        load.outstanding -= 1;
        load.breaker.end(verdict, now);
    }

    /// A health check has ended.
    pub fn checked(&mut self, member: usize, alive: bool, now: u64) {
        let breaker = &mut self.members[member].breaker;
        if alive {
            breaker.looks_alive();
        } else if breaker.allows_as_last_resort() {
            breaker.end(Verdict::Bad, now);
        }
    }

    /// A member has shown that it completes requests again.
    pub fn proven(&mut self, member: usize) {
        self.members[member].breaker = Breaker::default();
    }

    fn candidates(&self, excluded: Option<usize>, allowed: impl Fn(&Breaker) -> bool) -> Vec<usize> {
        (0..self.members.len()).filter(|&at| excluded != Some(at) && allowed(&self.members[at].breaker)).collect()
    }

    /// The member that the prefix belongs to, unless it carries more than its share: then the least loaded.
    fn prefer(&self, candidates: &[usize], affinity: Affinity) -> Option<usize> {
        if let [only] = candidates {
            return Some(*only);
        }
        let weight = |at: &usize| affinity.weight(self.members[*at].identity);
        let home = *candidates.iter().max_by_key(|at| weight(at))?;
        let outstanding = |at: &usize| self.members[*at].outstanding;
        let total: usize = candidates.iter().map(outstanding).sum();
        let share = ((total + 1) * SHARE_NUMERATOR).div_ceil(candidates.len() * SHARE_DENOMINATOR);
        if outstanding(&home) < share {
            return Some(home);
        }
        candidates.iter().copied().min_by_key(|at| (outstanding(at), std::cmp::Reverse(weight(at))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("http://runtime-{n}:8000/v1")).collect()
    }

    #[test]
    fn a_conversation_keeps_its_affinity_as_it_grows() {
        let request = |messages: &[(Role, &str)]| {
            let messages = messages.iter().map(|(role, text)| chat::Message::new(*role, (*text).into()).unwrap());
            ChatRequest::new(messages.collect(), Default::default(), Default::default()).unwrap()
        };
        let first = request(&[(Role::System, "be brief"), (Role::User, "hello")]);
        let second = request(&[
            (Role::System, "be brief"),
            (Role::User, "hello"),
            (Role::Assistant, "hi"),
            (Role::User, "how are you?"),
        ]);
        let other = request(&[(Role::System, "be brief"), (Role::User, "good bye")]);
        assert_eq!(Affinity::of(&first), Affinity::of(&second));
        assert_ne!(Affinity::of(&first), Affinity::of(&other));
    }

    #[test]
    fn losing_a_member_moves_only_its_own_prefixes() {
        let mut five = Balance::new(names(5));
        let mut four = Balance::new(&names(5)[..4]);
        for number in 0..1000 {
            let affinity = Affinity::from_number(number);
            let before = five.choose(affinity, None, 0).unwrap();
            five.release(before, Verdict::Good, 0);
            let after = four.choose(affinity, None, 0).unwrap();
            four.release(after, Verdict::Good, 0);
            assert!(before == after || before == 4, "prefix {number} moved from {before} to {after}");
        }
    }

    #[test]
    fn with_every_member_broken_one_request_at_a_time_still_tries() {
        let mut balance = Balance::new(names(2));
        for member in [0, 1, 0, 1, 0, 1] {
            balance.members[member].outstanding += 1;
            balance.release(member, Verdict::Bad, 0);
        }
        let affinity = Affinity::from_number(1);
        let (a, b) = (balance.choose(affinity, None, 1).unwrap(), balance.choose(affinity, None, 1).unwrap());
        assert_ne!(a, b);
        assert_eq!(balance.choose(affinity, None, 1), None);
        balance.release(a, Verdict::Good, 1);
        assert_eq!(balance.choose(affinity, None, 1), Some(a));
    }

    proptest! {
        /// Whatever comes and goes: loads are counted exactly, nobody carries more than a quarter above its share, the
        /// excluded member is never chosen, and somebody always is while somebody works.
        #[test]
        fn loads_stay_bounded(count in 1..8usize, steps in proptest::collection::vec((0..4u64, 0..10u8), 1..300)) {
            let mut balance = Balance::new(names(count));
            let mut under_way = Vec::new();
            for (prefix, step) in steps {
                if step < 6 {
                    let member = balance.choose(Affinity::from_number(prefix), None, 0).unwrap();
                    under_way.push(member);
                    let share = (under_way.len() * SHARE_NUMERATOR).div_ceil(count * SHARE_DENOMINATOR);
                    prop_assert!(balance.members[member].outstanding <= share.max(under_way.len().div_ceil(count)));
                } else if let Some(member) = under_way.pop() {
                    balance.release(member, Verdict::Good, 0);
                }
                let total: usize = balance.members.iter().map(Load::outstanding).sum();
                prop_assert_eq!(total, under_way.len());
                let elsewhere = balance.choose(Affinity::from_number(prefix), Some(0), 0);
                prop_assert_ne!(elsewhere, Some(0));
                prop_assert_eq!(elsewhere.is_none(), count == 1);
                elsewhere.iter().for_each(|&member| balance.release(member, Verdict::Unclear, 0));
            }
        }
    }
}
