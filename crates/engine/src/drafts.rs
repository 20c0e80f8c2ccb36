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

impl StepSeconds {
    fn of(self, tokens: usize) -> f64 {
        self.first + tokens.saturating_sub(1) as f64 * self.further
    }
}

/// What drafts bring, measured: the time of their steps and the number of right tokens, relative to what is expected. On a
/// GPU, a step of another size than the step before takes longer to start, which can cost more than right guesses save.
pub(crate) struct DraftResults {
    /// The time of steps without drafts.
    plain_time: f64,
    /// Steps of one token per sequence since the last other step.
    plain_steps: u32,
    /// The time of steps with drafts, relative to `plain_time`.
    time: f64,
    /// The number of right tokens, relative to the expected one.
    right: f64,
}

impl DraftResults {
    /// The weight of the latest step.
    const NEWEST: f64 = 0.125;
    /// Without drafts, the results approach what is expected by this part in each step, so that drafts are tried again.
    const FORGOTTEN: f64 = 0.001;
    /// One lucky guess must not outweigh many wrong ones.
    const MAX_RIGHT: f64 = 2.0;
    /// Nor may a step during which the machine stood still.
    const MAX_TIME: f64 = 2.0;
    /// After a step of another size, this number of steps take longer, too, and say nothing about steps without drafts.
    const UNSTEADY_STEPS: u32 = 2;

    pub(crate) fn new() -> Self {
        Self { plain_time: 1.0, plain_steps: 0, time: 1.0, right: 1.0 }
    }

    /// A step had prompts.
    pub(crate) fn interrupted(&mut self) {
        self.plain_steps = 0;
    }

    /// Takes the duration of a step without prompts into account.
    pub(crate) fn observe_time(&mut self, tokens: usize, has_drafts: bool, seconds: StepSeconds, took: f64) {
        let time = (took / seconds.of(tokens) / self.plain_time).min(Self::MAX_TIME);
        if has_drafts {
            self.plain_steps = 0;
            self.time += (time - self.time) * Self::NEWEST;
            return;
        }
        self.plain_steps += 1;
        if self.plain_steps > Self::UNSTEADY_STEPS {
            self.plain_time *= 1.0 + (time - 1.0) * Self::NEWEST;
            self.time += (1.0 - self.time) * Self::FORGOTTEN;
            self.right += (1.0 - self.right) * Self::FORGOTTEN;
        }
    }

    /// Takes the right tokens of a step's drafts into account.
    pub(crate) fn observe_right(&mut self, right: usize, expected: f64) {
        let right = (right as f64 / expected).min(Self::MAX_RIGHT);
        self.right += (right - self.right) * Self::NEWEST;
    }

    /// Whether a step gives more tokens per second with drafts than without.
    pub(crate) fn are_worth(&self, plain: usize, drafted: usize, expected: f64, seconds: StepSeconds) -> bool {
        let with_drafts = (plain as f64 + expected * self.right) / (seconds.of(plain + drafted) * self.time);
        with_drafts > plain as f64 / seconds.of(plain)
    }
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
        let speed = |length: usize| ((others + 1) as f64 + self.expected(length)) / seconds.of(others + 1 + length);
        let best = (0..=guess.len()).max_by(|a, b| speed(*a).total_cmp(&speed(*b)).then(b.cmp(a)));
        &guess[..best.unwrap_or(0)]
    }

    /// How many tokens of a draft of this length are right, at the accuracy so far.
    pub(crate) fn expected(&self, length: usize) -> f64 {
        (1..=length).map(|token| self.accuracy.powi(token as i32)).sum()
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

    #[test]
    fn drafts_end_where_they_bring_less_than_expected_and_are_tried_again() {
        let are_worth = |results: &DraftResults| results.are_worth(16, 8, 6.0, SECONDS);
        let plain_step = |results: &mut DraftResults| {
            results.observe_time(16, false, SECONDS, SECONDS.of(16) * 1.3);
        };
        for (time, right) in [(1.6, 6), (1.0, 1)] {
            let mut results = DraftResults::new();
            assert!(are_worth(&results), "6 tokens more are expected, for a third more time");
            (0..50).for_each(|_| plain_step(&mut results));
            assert!(are_worth(&results), "all steps take longer than expected");
            for _ in 0..10 {
                results.observe_time(24, true, SECONDS, SECONDS.of(24) * 1.3 * time);
                results.observe_right(right, 6.0);
            }
            assert!(!are_worth(&results), "{right} tokens in {time} of the time");
            let untried = (0..100_000).take_while(|_| {
                plain_step(&mut results);
                !are_worth(&results)
            });
            assert!((100..10_000).contains(&untried.count()));
        }
        let mut results = DraftResults::new();
        results.observe_time(24, true, SECONDS, SECONDS.of(24) * 1000.0);
        (0..1_500).for_each(|_| plain_step(&mut results));
        assert!(are_worth(&results), "one step that stood still is soon forgotten");
    }
}
