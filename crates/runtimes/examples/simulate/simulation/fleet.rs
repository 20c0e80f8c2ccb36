//! The runtimes: each computes prompts one after the other, as far as its cache does not hold them, and generates for all
//! together, the slower the more they are.

use std::collections::{HashMap, VecDeque};

use super::traffic::Prompt;
use super::{SECOND, Time};

/// Prompt tokens computed in a second.
const PROMPT_PACE: f64 = 60_000.0;
/// A token's time for one alone, and how many together make it twice that.
const TOKEN: f64 = 0.006 * SECOND as f64;
const TWICE_AT: f64 = 64.0;
const SLOW: f64 = 5.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Health {
    Well,
    /// Five times slower.
    Slow,
    /// Takes requests and answers none.
    Hung,
    /// Refuses connections.
    Dead,
}

pub(crate) struct Fleet {
    members: Vec<Member>,
}

struct Member {
    health: Health,
    running: u32,
    computing_until: Time,
    cache: Cache,
}

impl Fleet {
    pub(crate) fn new(count: usize, cache: u32) -> Self {
        let member = || Member { health: Health::Well, running: 0, computing_until: 0, cache: Cache::new(cache) };
        Self { members: (0..count).map(|_| member()).collect() }
    }

    pub(crate) fn health(&self, member: usize) -> Health {
        self.members[member].health
    }

    pub(crate) fn running(&self) -> impl Iterator<Item = u32> {
        self.members.iter().map(|member| member.running)
    }

    /// Who dies or hangs has nothing when it returns.
    pub(crate) fn change(&mut self, member: usize, health: Health, now: Time) {
        let member = &mut self.members[member];
        if matches!(health, Health::Dead | Health::Hung) {
            let capacity = member.cache.capacity;
            *member = Member { health, running: 0, computing_until: now, cache: Cache::new(capacity) };
        }
        member.health = health;
    }

    /// Takes a request; says when it will be done and how many tokens of its prompt were there already.
    pub(crate) fn begin(&mut self, member: usize, prompt: &Prompt, now: Time) -> (Time, u32) {
        let member = &mut self.members[member];
        let slowness = if member.health == Health::Slow { SLOW } else { 1.0 };
        let found = member.cache.look_up(prompt);
        let compute = f64::from(prompt.tokens() - found) / PROMPT_PACE * SECOND as f64 * slowness;
        member.computing_until = member.computing_until.max(now) + compute as Time;
        member.running += 1;
        let token = TOKEN * slowness * (1.0 + f64::from(member.running) / TWICE_AT);
        (member.computing_until + (f64::from(prompt.completion) * token) as Time, found)
    }

    pub(crate) fn end(&mut self, member: usize, prompt: &Prompt) {
        self.drop_one(member);
        self.members[member].cache.keep(prompt);
    }

    /// Somebody has hung up.
    pub(crate) fn drop_one(&mut self, member: usize) {
        let running = &mut self.members[member].running;
        *running = running.saturating_sub(1);
    }
}

/// System prompts and conversations, of which the least recently used go first.
struct Cache {
    capacity: u32,
    used: u32,
    kept: HashMap<Key, (u32, u64)>,
    order: VecDeque<(Key, u64)>,
    clock: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    System(u32),
    Conversation(u64),
}

impl Cache {
    fn new(capacity: u32) -> Self {
        Self { capacity, used: 0, kept: HashMap::new(), order: VecDeque::new(), clock: 0 }
    }

    /// Tokens of a prompt that need not be computed. Its system prompt is kept from now on.
    fn look_up(&mut self, prompt: &Prompt) -> u32 {
        let system = Key::System(prompt.system);
        let conversation = Key::Conversation(prompt.conversation);
        let has_system = self.kept.contains_key(&system);
        let history = self.kept.get(&conversation).map_or(0, |(tokens, _)| (*tokens).min(prompt.history));
        self.put(system, prompt.system_tokens);
        if has_system { prompt.system_tokens + history } else { 0 }
    }

    fn keep(&mut self, prompt: &Prompt) {
        self.put(Key::System(prompt.system), prompt.system_tokens);
        let whole = prompt.history + prompt.message + prompt.completion;
        self.put(Key::Conversation(prompt.conversation), whole);
    }

    fn put(&mut self, key: Key, tokens: u32) {
        self.clock += 1;
        let before = self.kept.insert(key, (tokens, self.clock)).map_or(0, |(tokens, _)| tokens);
        self.used = self.used - before + tokens;
        self.order.push_back((key, self.clock));
        while self.used > self.capacity {
            let Some((oldest, stamp)) = self.order.pop_front() else { return };
            // Whoever was used since stands further back once more.
            if self.kept.get(&oldest).is_some_and(|(_, last)| *last == stamp)
                && let Some((tokens, _)) = self.kept.remove(&oldest)
            {
                self.used -= tokens;
            }
        }
    }
}
