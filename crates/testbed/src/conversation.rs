//! Conversations, as data.

use serde_json::{Value, json};

/// A conversation with its sampling: greedy and 16 tokens unless set.
#[derive(Debug, Clone)]
pub struct Conversation {
    messages: Vec<(&'static str, String)>,
    temperature: f64,
    max_tokens: u32,
}

impl Conversation {
    /// `max_tokens` of a completion that only this limit ends.
    pub const ENDLESS: u32 = 512;

    /// A conversation whose completion ends only at its limit of tokens.
    pub fn endless() -> Self {
        Self { messages: Vec::new(), temperature: 0.0, max_tokens: 0 }.then_endless()
    }

    /// Adds a question whose answer ends only at its limit of tokens.
    pub fn then_endless(self) -> Self {
        self.then_user("Count from 1 to 1000: 1, 2, 3, 4, 5,").max_tokens(Self::ENDLESS)
    }

    pub fn user(content: impl Into<String>) -> Self {
        Self { messages: vec![("user", content.into())], temperature: 0.0, max_tokens: 16 }
    }

    pub fn system(content: impl Into<String>) -> Self {
        Self { messages: vec![("system", content.into())], temperature: 0.0, max_tokens: 16 }
    }

    pub fn then_user(self, content: impl Into<String>) -> Self {
        self.then("user", content)
    }

    pub fn then_assistant(self, content: impl Into<String>) -> Self {
        self.then("assistant", content)
    }

    pub fn temperature(mut self, temperature: f64) -> Self {
        self.temperature = temperature;
        self
    }

    pub fn max_tokens(mut self, max_tokens: u32) -> Self {
        self.max_tokens = max_tokens;
        self
    }

    pub fn body(&self) -> String {
        let message = |(role, content): &(&str, String)| json!({ "role": role, "content": content });
        let messages: Vec<Value> = self.messages.iter().map(message).collect();
        json!({
            "model": "adriaticum",
            "messages": messages,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
        })
        .to_string()
    }

    fn then(mut self, role: &'static str, content: impl Into<String>) -> Self {
        self.messages.push((role, content.into()));
        self
    }
}

/// English words, about a token each; the seed decides which.
pub fn words(count: usize, seed: usize) -> String {
    const WORDS: [&str; 16] = [
        "river", "window", "yellow", "market", "winter", "garden", "simple", "number", "letter", "silver", "morning",
        "island", "doctor", "summer", "bridge", "forest",
    ];
    let mut state = seed as u64 + 1;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        WORDS[(state >> 60) as usize]
    };
    (0..count).map(next).collect::<Vec<_>>().join(" ")
}
