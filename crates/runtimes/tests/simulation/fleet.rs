//! The runtimes. Each computes the part of a prompt that is not in its cache, one prompt after another, and decodes for
//! all its requests together: more requests slow down each token.

use std::collections::{HashMap, VecDeque};

use crate::simulation::{SECOND, Time};
use crate::traffic::Prompt;

const PROMPT_TOKENS_PER_SECOND: f64 = 60_000.0;
/// The time for a token of a single request, and the number of requests at which it doubles.
const TOKEN_TIME: f64 = 0.006 * SECOND as f64;
const DOUBLED_AT: f64 = 64.0;
const SLOW_FACTOR: f64 = 5.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Health {
    Well,
    /// Slower by `SLOW_FACTOR`.
    Slow,
    /// Accepts requests and responds to none.
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

    /// A member that dies or hangs loses its cache and its requests.
    pub(crate) fn change(&mut self, member: usize, health: Health, now: Time) {
        let member = &mut self.members[member];
        if matches!(health, Health::Dead | Health::Hung) {
            let capacity = member.cache.capacity;
            *member = Member { health, running: 0, computing_until: now, cache: Cache::new(capacity) };
        }
        member.health = health;
    }

    /// Starts a request. Returns the time of its end, and the number of cached tokens of its prompt.
    pub(crate) fn begin(&mut self, member: usize, prompt: &Prompt, now: Time) -> (Time, u32) {
        let member = &mut self.members[member];
        let slowness = if member.health == Health::Slow { SLOW_FACTOR } else { 1.0 };
        let found = member.cache.look_up(prompt);
        let compute = f64::from(prompt.tokens() - found) / PROMPT_TOKENS_PER_SECOND * SECOND as f64 * slowness;
        member.computing_until = member.computing_until.max(now) + compute as Time;
        member.running += 1;
        let token = TOKEN_TIME * slowness * (1.0 + f64::from(member.running) / DOUBLED_AT);
        (member.computing_until + (f64::from(prompt.completion) * token) as Time, found)
    }

    pub(crate) fn end(&mut self, member: usize, prompt: &Prompt) {
        self.drop_one(member);
        self.members[member].cache.insert(prompt);
    }

    /// Records that a request was given up.
    pub(crate) fn drop_one(&mut self, member: usize) {
        let running = &mut self.members[member].running;
        *running = running.saturating_sub(1);
    }
}

/// System prompts and conversations, evicted by least recent use.
struct Cache {
    capacity: u32,
    used: u32,
    /// Tokens and the time of the last use.
    entries: HashMap<Key, (u32, u64)>,
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
        Self { capacity, used: 0, entries: HashMap::new(), order: VecDeque::new(), clock: 0 }
    }

    /// The number of cached tokens of a prompt. Inserts its system prompt.
    fn look_up(&mut self, prompt: &Prompt) -> u32 {
        let system = Key::System(prompt.system);
        let conversation = Key::Conversation(prompt.conversation);
        let has_system = self.entries.contains_key(&system);
        let history = self.entries.get(&conversation).map_or(0, |(tokens, _)| (*tokens).min(prompt.history));
        self.put(system, prompt.system_tokens);
        if has_system { prompt.system_tokens + history } else { 0 }
    }

    fn insert(&mut self, prompt: &Prompt) {
        self.put(Key::System(prompt.system), prompt.system_tokens);
        let whole = prompt.history + prompt.message + prompt.completion;
        self.put(Key::Conversation(prompt.conversation), whole);
    }

    fn put(&mut self, key: Key, tokens: u32) {
        self.clock += 1;
        let before = self.entries.insert(key, (tokens, self.clock)).map_or(0, |(tokens, _)| tokens);
        self.used = self.used - before + tokens;
        self.order.push_back((key, self.clock));
        while self.used > self.capacity {
            let Some((oldest, stamp)) = self.order.pop_front() else { return };
            // An entry that was used since then is in the queue again, further back.
            if self.entries.get(&oldest).is_some_and(|(_, last)| *last == stamp)
                && let Some((tokens, _)) = self.entries.remove(&oldest)
            {
                self.used -= tokens;
            }
        }
    }
}
