//! Who asks what: conversations that grow, below system prompts of which a few are asked for most of the time.

use fastrand::Rng;
use runtimes::balance::Affinity;

/// System prompts, how uneven their use is, and how much of it is that of one application alone.
const SYSTEMS: usize = 3_000;
const UNEVEN: f64 = 1.05;
const HOT: f64 = 0.12;
/// How many requests carry on a conversation, and after how many seconds, about.
const CARRIES_ON: f64 = 0.7;
const THINKS_FOR: f64 = 12.0;
const MOST_TURNS: u32 = 10;

/// A prompt and what will come of it, in tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prompt {
    pub(crate) system: u32,
    pub(crate) system_tokens: u32,
    pub(crate) conversation: u64,
    /// What the conversation consists of so far.
    pub(crate) history: u32,
    pub(crate) message: u32,
    pub(crate) completion: u32,
    slot: usize,
}

impl Prompt {
    pub(crate) fn tokens(&self) -> u32 {
        self.system_tokens + self.history + self.message
    }

    pub(crate) fn affinity(&self) -> Affinity {
        Affinity::from_numbers(Some(u64::from(self.system)), self.conversation)
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Conversation {
    id: u64,
    system: u32,
    history: u32,
    leases: u32,
}

pub(crate) struct Traffic {
    rng: Rng,
    /// Sums of the probabilities of the system prompts.
    popularity: Vec<f64>,
    lengths: Vec<u32>,
    conversations: Vec<Conversation>,
    most: usize,
}

impl Traffic {
    pub(crate) fn new(per_second: f64, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut sum = 0.0;
        let popularity = (1..=SYSTEMS).map(|rank| {
            sum += (rank as f64).powf(-UNEVEN);
            sum
        });
        let popularity = popularity.collect();
        // From a sentence to a handbook.
        let lengths = (0..SYSTEMS).map(|_| (50.0 * 60f64.powf(rng.f64())) as u32).collect();
        let most = (per_second * CARRIES_ON * THINKS_FOR) as usize + 1;
        Self { rng, popularity, lengths, conversations: Vec::new(), most }
    }

    pub(crate) fn next(&mut self) -> Prompt {
        let carries_on = !self.conversations.is_empty() && self.rng.f64() < CARRIES_ON;
        let slot = match carries_on {
            true => self.rng.usize(..self.conversations.len()),
            false if self.conversations.len() < self.most => {
                self.conversations.push(Conversation::default());
                self.conversations.len() - 1
            }
            false => self.rng.usize(..self.most),
        };
        if !carries_on || self.conversations[slot].leases == MOST_TURNS {
            let system = self.system();
            self.conversations[slot] = Conversation { id: self.rng.u64(..), system, history: 0, leases: 0 };
        }
        let conversation = &mut self.conversations[slot];
        conversation.leases += 1;
        let Conversation { id, system, history, .. } = *conversation;
        let system_tokens = self.lengths[system as usize];
        let (message, completion) = (5 + self.about(60.0, 1_000), 1 + self.about(60.0, 511));
        Prompt { system, system_tokens, conversation: id, history, message, completion, slot }
    }

    /// The answer becomes part of its conversation.
    pub(crate) fn answered(&mut self, prompt: &Prompt) {
        let conversation = &mut self.conversations[prompt.slot];
        if conversation.id == prompt.conversation {
            conversation.history = conversation.history.max(prompt.history + prompt.message + prompt.completion);
        }
    }

    fn system(&mut self) -> u32 {
        if self.rng.f64() < HOT {
            return 0;
        }
        let drawn = self.rng.f64() * self.popularity.last().copied().unwrap_or_default();
        (self.popularity.partition_point(|sum| *sum < drawn) as u32).min(SYSTEMS as u32 - 1)
    }

    fn about(&mut self, mean: f64, most: u32) -> u32 {
        ((-(1.0 - self.rng.f64()).ln() * mean) as u32).min(most)
    }
}
