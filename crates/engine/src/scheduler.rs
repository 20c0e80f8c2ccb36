//! What is done in the next step: everyone who generates gets one token, and prompts are computed in bounded pieces, so
//! that a long one never holds up the others. Requests get their room before they start; until then they wait.
//!
//! Pure: time comes in as a parameter, what the model says comes in as tokens, and what the context must do comes out.

use std::collections::HashMap;
use std::time::Instant;

use chat::FinishReason;

use crate::cache::{CellOp, PrefixCache, Sequence, Token};
use crate::waiting::{Tag, WaitingRoom};

/// The bounds that the scheduler keeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Cells of the KV cache.
    pub(crate) cells: usize,
    /// Sequences that the context can tell apart, running and finished.
    pub(crate) sequences: u16,
    /// Requests that run at the same time.
    pub(crate) running: usize,
    /// Requests that may wait.
    pub(crate) waiting: usize,
    /// Tokens in a step at the most.
    pub(crate) step: usize,
    /// For how many generated tokens an unused prefix is kept at the most.
    pub(crate) patience: f64,
}

/// A request for the model.
pub(crate) struct Request<R> {
    /// Never empty.
    pub(crate) prompt: Vec<Token>,
    pub(crate) max_tokens: usize,
    /// Who it is counted for.
    pub(crate) tag: Tag,
    /// When it has waited for long enough.
    pub(crate) deadline: Instant,
    /// Whatever the caller needs to answer it.
    pub(crate) rest: R,
}

/// Why a request did not run to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// The waiting room is full.
    Full,
    /// It waited for too long.
    Late,
    /// Nobody wants the answer any more.
    Gone,
}

/// A request that has ended.
pub(crate) struct Finished<R> {
    pub(crate) rest: R,
    pub(crate) reason: FinishReason,
    pub(crate) prompt_tokens: usize,
    pub(crate) shared_tokens: usize,
    pub(crate) completion_tokens: usize,
}

/// One token of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) token: Token,
    pub(crate) position: usize,
    pub(crate) sequence: Sequence,
    /// Whether one wants to know what follows it.
    pub(crate) output: bool,
}

/// What to do next.
#[derive(Default)]
pub(crate) struct Step {
    /// First this,
    pub(crate) ops: Vec<CellOp>,
    /// then compute these together; none if there is nothing to do.
    pub(crate) batch: Vec<Entry>,
}

struct Runner<R> {
    sequence: Sequence,
    rest: R,
    tag: Tag,
    prompt: usize,
    shared: usize,
    max_tokens: usize,
    generated: usize,
}

/// For how long, about, a step with prompts may take while others generate, and while nobody does.
const SECONDS_PER_CHUNK: f64 = 0.12;
const SECONDS_PER_STEP: f64 = 0.5;
/// Prompts are computed in whole tiles: matrix units like them, and below 64 tokens llama.cpp computes flash attention
/// token by token.
const TILE: usize = 64;

/// The least patience with unused prefixes, as a part of the most.
const LEAST_PATIENCE: f64 = 1.0 / 32.0;

/// Everything that waits, runs or is kept.
pub(crate) struct Scheduler<R> {
    limits: Limits,
    cache: PrefixCache,
    waiting: WaitingRoom<Request<R>>,
    running: Vec<Runner<R>>,
    under_way: HashMap<Tag, usize>,
    /// Cells that running requests may come to need, shared ones counted once for each.
    promised: usize,
    patience: f64,
    /// Prompt tokens in a step, while others generate and while nobody does.
    chunk: usize,
    whole: usize,
}

/// How much there is of everything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Occupancy {
    pub(crate) waiting: usize,
    pub(crate) running: usize,
    pub(crate) cells_used: usize,
    pub(crate) cells_shared: usize,
    pub(crate) cells: usize,
}

impl<R> Scheduler<R> {
    /// A scheduler without anything to do.
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            cache: PrefixCache::new(limits.cells, limits.sequences),
            waiting: WaitingRoom::new(limits.waiting),
            running: Vec::new(),
            under_way: HashMap::new(),
            promised: 0,
            patience: limits.patience / 4.0,
            chunk: TILE.min(limits.step),
            whole: limits.step,
        }
    }

    /// How long a token of a prompt takes, as measured: the pieces of prompts are cut accordingly.
    pub(crate) fn set_pace(&mut self, seconds_per_token: f64) {
        let within =
            |seconds: f64| ((seconds / seconds_per_token) as usize / TILE * TILE).max(TILE).min(self.limits.step);
        (self.chunk, self.whole) = (within(SECONDS_PER_CHUNK), within(SECONDS_PER_STEP));
    }

    /// A request comes in and waits for its room. Somebody may have to be turned away for it, or it itself.
    pub(crate) fn enter(&mut self, request: Request<R>) -> Option<R> {
        self.waiting.enter(request.tag.clone(), request).map(|request| request.rest)
    }

    /// Whether there is anything to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.len() == 0
    }

    /// How much there is of everything.
    pub(crate) fn occupancy(&self) -> Occupancy {
        Occupancy {
            waiting: self.waiting.len(),
            running: self.running.len(),
            cells_used: self.cache.used(),
            cells_shared: self.cache.shared(),
            cells: self.cache.capacity(),
        }
    }

    /// Takes out whoever has gone or waited for too long, and frees their room.
    pub(crate) fn sweep(&mut self, now: Instant, is_gone: impl Fn(&R) -> bool) -> (Vec<CellOp>, Vec<(R, Dropped)>) {
        let mut ops = Vec::new();
        let over = self.waiting.take_out(|request| is_gone(&request.rest) || request.deadline <= now);
        let mut dropped: Vec<_> = over
            .into_iter()
            .map(|request| {
                let why = if is_gone(&request.rest) { Dropped::Gone } else { Dropped::Late };
                (request.rest, why)
            })
            .collect();
        let mut at = 0;
        while let Some(runner) = self.running.get(at) {
            if is_gone(&runner.rest) {
                dropped.push((self.end(at, &mut ops).rest, Dropped::Gone));
            } else {
                at += 1;
            }
        }
        (ops, dropped)
    }

    /// Lets in whoever has room, and says what to compute next.
    pub(crate) fn plan(&mut self) -> Step {
        let mut step = Step::default();
        while self.admit_one(&mut step.ops) {}

        let generating = self.running.iter().filter(|runner| runner.generated > 0).count();
        for runner in self.running.iter().filter(|runner| runner.generated > 0) {
            self.add_pending(runner.sequence, 1, &mut step.batch);
        }
        let room = if generating == 0 { self.whole } else { self.chunk };
        let mut left = room.min(self.limits.step.saturating_sub(generating));
        for runner in self.running.iter().filter(|runner| runner.generated == 0) {
            if left == 0 {
                break;
            }
            left -= self.add_pending(runner.sequence, left, &mut step.batch);
        }
        step
    }

    /// What was planned is computed; says what the context must do before the next step.
    pub(crate) fn computed(&mut self, batch: &[Entry]) -> Vec<CellOp> {
        let mut ops = Vec::new();
        for part in batch.chunk_by(|a, b| a.sequence == b.sequence) {
            self.cache.computed(part[0].sequence, part.len(), &mut ops);
        }
        let tokens = batch.iter().filter(|entry| entry.output).count() as u64;
        let dropped = self.cache.age(tokens, self.patience as u64, &mut ops);
        // Keeping cells costs everyone a little in every step. What is kept in vain makes us less patient, …
        let least = self.limits.patience * LEAST_PATIENCE;
        self.patience = (self.patience * 0.95_f64.powi(dropped as i32)).max(least);
        ops
    }

    /// The model's next token for a sequence; `end` if it is one that ends the text. Says if the request has ended.
    pub(crate) fn generated(
        &mut self,
        sequence: Sequence,
        token: Token,
        end: bool,
    ) -> (Vec<CellOp>, Option<Finished<R>>) {
        let mut ops = Vec::new();
        let Some(at) = self.running.iter().position(|runner| runner.sequence == sequence) else { return (ops, None) };
        let runner = &mut self.running[at];
        runner.generated += 1;
        let reason = match (end, runner.generated == runner.max_tokens) {
            (true, _) => Some(FinishReason::Stop),
            (false, true) => Some(FinishReason::Length),
            (false, false) => None,
        };
        let Some(reason) = reason else {
            self.cache.push(sequence, token);
            return (ops, None);
        };
        let runner = self.end(at, &mut ops);
        let finished = Finished {
            rest: runner.rest,
            reason,
            prompt_tokens: runner.prompt,
            shared_tokens: runner.shared,
            completion_tokens: runner.generated,
        };
        (ops, Some(finished))
    }

    /// What belongs to a running sequence.
    pub(crate) fn rest_mut(&mut self, sequence: Sequence) -> Option<&mut R> {
        self.running.iter_mut().find(|runner| runner.sequence == sequence).map(|runner| &mut runner.rest)
    }

    fn admit_one(&mut self, ops: &mut Vec<CellOp>) -> bool {
        let under_way = &self.under_way;
        let Some((tag, request)) = self.waiting.next(|tag| under_way.get(tag).copied().unwrap_or(0)) else {
            return false;
        };
        if !self.has_turn(tag, request) {
            return false;
        }
        let Some(started) = self.cache.start(&request.prompt, request.max_tokens, ops) else { return false };
        let tag = tag.clone();
        let Some(request) = self.waiting.leave(&tag) else { return false };
        if started.revived > request.prompt.len() / 4 {
            // … and what was kept for a good reason more so.
            self.patience = (self.patience * 1.25).min(self.limits.patience);
        }
        self.promised += request.prompt.len() + request.max_tokens;
        *self.under_way.entry(tag.clone()).or_default() += 1;
        self.running.push(Runner {
            sequence: started.sequence,
            rest: request.rest,
            tag,
            prompt: request.prompt.len(),
            shared: started.shared,
            max_tokens: request.max_tokens,
            generated: 0,
        });
        true
    }

    /// One tag alone does not get the last quarter of the places and of the cells, so that another one finds some at
    /// once; but everyone may have one request under way.
    fn has_turn(&self, tag: &Tag, request: &Request<R>) -> bool {
        let own = self.under_way.get(tag).copied().unwrap_or(0);
        let needed = self.promised + request.prompt.len() + request.max_tokens;
        let (places, cells) = (self.limits.running, self.limits.cells);
        self.running.len() < places && (own == 0 || (own < places - places / 4 && needed <= cells - cells / 4))
    }

    fn add_pending(&self, sequence: Sequence, limit: usize, batch: &mut Vec<Entry>) -> usize {
        let (start, tokens) = self.cache.pending(sequence, limit);
        let last = self.cache.length(sequence);
        let entries = (start..).zip(&tokens).map(|(position, token)| Entry {
            token: *token,
            position,
            sequence,
            output: position + 1 == last,
        });
        batch.extend(entries);
        tokens.len()
    }

    fn end(&mut self, at: usize, ops: &mut Vec<CellOp>) -> Runner<R> {
        let runner = self.running.remove(at);
        self.promised -= runner.prompt + runner.max_tokens;
        self.cache.finish(runner.sequence, ops);
        if let Some(count) = self.under_way.get_mut(&runner.tag) {
            *count -= 1;
            if *count == 0 {
                self.under_way.remove(&runner.tag);
            }
        }
        runner
    }
}

#[cfg(test)]
mod tests;
