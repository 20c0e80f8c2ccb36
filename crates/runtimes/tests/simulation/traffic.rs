//! The requests: growing conversations with system prompts, a few of which are used most of the time.

use fastrand::Rng;
use runtimes::balance::Affinity;

/// The popularity of system prompts is Zipf-distributed. One of them gets an additional `HOT_FRACTION` of all
/// conversations.
const SYSTEM_PROMPTS: usize = 3_000;
const ZIPF_EXPONENT: f64 = 1.05;
const HOT_FRACTION: f64 = 0.12;
/// The fraction of requests that continue a conversation, and the mean time until they do.
const CONTINUED_FRACTION: f64 = 0.7;
const MEAN_THINK_SECONDS: f64 = 12.0;
const MAX_TURNS: u32 = 10;

/// The token limit of every request.
pub(crate) const MAX_TOKENS: u32 = 512;

/// A prompt and its completion, in tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prompt {
    pub(crate) system: u32,
    pub(crate) system_tokens: u32,
    pub(crate) conversation: u64,
    /// The conversation so far, without the system prompt.
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
    turns: u32,
}

pub(crate) struct Traffic {
    rng: Rng,
    /// Cumulative weights of the system prompts.
    popularity: Vec<f64>,
    lengths: Vec<u32>,
    conversations: Vec<Conversation>,
    max_conversations: usize,
}

impl Traffic {
    pub(crate) fn new(per_second: f64, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut sum = 0.0;
        let popularity = (1..=SYSTEM_PROMPTS).map(|rank| {
            sum += (rank as f64).powf(-ZIPF_EXPONENT);
            sum
        });
        let popularity = popularity.collect();
        // Log-uniform between 50 and 3,000 tokens.
        let lengths = (0..SYSTEM_PROMPTS).map(|_| (50.0 * 60f64.powf(rng.f64())) as u32).collect();
        let max_conversations = (per_second * CONTINUED_FRACTION * MEAN_THINK_SECONDS) as usize + 1;
        Self { rng, popularity, lengths, conversations: Vec::new(), max_conversations }
    }

    pub(crate) fn next(&mut self) -> Prompt {
        let continues = !self.conversations.is_empty() && self.rng.f64() < CONTINUED_FRACTION;
        let slot = match continues {
            true => self.rng.usize(..self.conversations.len()),
            false if self.conversations.len() < self.max_conversations => {
                self.conversations.push(Conversation::default());
                self.conversations.len() - 1
            }
            false => self.rng.usize(..self.max_conversations),
        };
        if !continues || self.conversations[slot].turns == MAX_TURNS {
            let system = self.system();
            self.conversations[slot] = Conversation { id: self.rng.u64(..), system, history: 0, turns: 0 };
        }
        let conversation = &mut self.conversations[slot];
        conversation.turns += 1;
        let Conversation { id, system, history, .. } = *conversation;
        let system_tokens = self.lengths[system as usize];
        let (message, completion) = (5 + self.exponential(60.0, 1_000), 1 + self.exponential(60.0, MAX_TOKENS - 1));
        Prompt { system, system_tokens, conversation: id, history, message, completion, slot }
    }

    /// Appends the completion to its conversation.
    pub(crate) fn append_completion(&mut self, prompt: &Prompt) {
        let conversation = &mut self.conversations[prompt.slot];
        if conversation.id == prompt.conversation {
            conversation.history = conversation.history.max(prompt.history + prompt.message + prompt.completion);
        }
    }

    fn system(&mut self) -> u32 {
        if self.rng.f64() < HOT_FRACTION {
            return 0;
        }
        let drawn = self.rng.f64() * self.popularity.last().copied().unwrap_or_default();
        (self.popularity.partition_point(|sum| *sum < drawn) as u32).min(SYSTEM_PROMPTS as u32 - 1)
    }

    fn exponential(&mut self, mean: f64, max: u32) -> u32 {
        ((-(1.0 - self.rng.f64()).ln() * mean) as u32).min(max)
    }
}
