//! Guesses how a completion continues from the conversation so far: grounded answers copy their sources, and turns
//! repeat themselves. Guesses are computed together with the token before them, as a draft. The sampled tokens are the
//! same as without a draft; only the time differs.

use std::collections::HashMap;

use crate::cache::Token;

/// The number of tokens that must match earlier ones before their successors become a guess.
const CONTEXT: usize = 3;
/// A sequence with its draft fills one tile of the products.
const MAX_DRAFT: usize = 7;
/// The weight of the latest guess in the accuracy.
const NEWEST: f64 = 0.25;

/// How long a step takes: with one token, and for each further one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StepSeconds {
    pub(crate) first: f64,
    pub(crate) further: f64,
}

/// The tokens of a request, and the position after the last occurrence of each group of `CONTEXT` tokens.
pub(crate) struct Drafts {
    tokens: Vec<Token>,
    successors: HashMap<[Token; CONTEXT], usize>,
    /// The fraction of recent guesses that were right, drafted or not. It starts at 0, so a request gets its first draft
    /// only after right guesses.
    accuracy: f64,
}

impl Drafts {
    pub(crate) fn new(prompt: &[Token]) -> Self {
        let mut drafts = Self {
            tokens: Vec::with_capacity(prompt.len()),
            successors: HashMap::with_capacity(prompt.len()),
            accuracy: 0.0,
        };
        prompt.iter().for_each(|token| drafts.add(*token));
        drafts
    }

    /// Adds a token that was generated.
    pub(crate) fn push(&mut self, token: Token) {
        if let Some(guess) = self.guess().first() {
            let right = if *guess == token { 1.0 } else { 0.0 };
            self.accuracy += (right - self.accuracy) * NEWEST;
        }
        self.add(token);
    }

    fn add(&mut self, token: Token) {
        if let Some(context) = self.tokens.last_chunk::<CONTEXT>() {
            self.successors.insert(*context, self.tokens.len());
        }
        self.tokens.push(token);
    }

    /// The tokens that followed the previous occurrence of the last `CONTEXT` tokens.
    fn guess(&self) -> &[Token] {
        let successor = self.tokens.last_chunk::<CONTEXT>().and_then(|context| self.successors.get(context));
        successor.map_or(&[], |at| &self.tokens[*at..])
    }

    /// The guessed tokens that are worth computing beside `others` tokens of a step: as many as give the most tokens per
    /// second at the accuracy so far.
    pub(crate) fn draft(&self, others: usize, seconds: StepSeconds, max: usize) -> &[Token] {
        let guess = self.guess();
        let guess = &guess[..guess.len().min(MAX_DRAFT).min(max)];
        let speed = |length: usize| {
            let expected: f64 = (1..=length).map(|token| self.accuracy.powi(token as i32)).sum();
            let step = seconds.first + (others + length) as f64 * seconds.further;
            ((others + 1) as f64 + expected) / step
        };
        let best = (0..=guess.len()).max_by(|a, b| speed(*a).total_cmp(&speed(*b)).then(b.cmp(a)));
        &guess[..best.unwrap_or(0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECONDS: StepSeconds = StepSeconds { first: 0.1, further: 0.01 };

    #[test]
    fn repeated_text_is_drafted_once_guesses_have_been_right() {
        let prompt: Vec<Token> = (0..50).collect();
        let mut drafts = Drafts::new(&prompt);
        for token in [10, 11, 12] {
            drafts.push(token);
        }
        assert_eq!(drafts.guess()[..3], [13, 14, 15]);
        assert!(drafts.draft(0, SECONDS, 9).is_empty(), "no guess has been right yet");
        for token in 13..20 {
            drafts.push(token);
        }
        assert_eq!(*drafts.draft(0, SECONDS, 9), (20..20 + MAX_DRAFT as Token).collect::<Vec<_>>());
        assert_eq!(*drafts.draft(0, SECONDS, 2), [20, 21], "at most `max` tokens");
        for token in [90, 20, 21, 91, 22, 23, 92] {
            drafts.push(token);
        }
        assert!(drafts.guess().is_empty(), "these tokens have not occurred together");
    }

    #[test]
    fn wrong_guesses_end_drafts_and_so_do_many_other_tokens() {
        let mut drafts = Drafts::new(&[]);
        for token in (0..60).map(|at| at % 5) {
            drafts.push(token);
        }
        assert!(!drafts.draft(0, SECONDS, 9).is_empty());
        let costly = StepSeconds { first: 0.01, further: 0.01 };
        assert!(drafts.draft(30, costly, 9).is_empty(), "a drafted token takes as long as any other");
        for at in 0..43 {
            drafts.push([0, 1, 2, 70 + at][at as usize % 4]);
        }
        assert_eq!(*drafts.guess().first().unwrap(), 70 + 39, "there is a guess");
        assert!(drafts.draft(0, SECONDS, 9).is_empty(), "but it is not worth a token");
    }
}
