//! What is done in the next step: everyone who generates gets one token, and prompts are computed in bounded pieces, so
//! that a long one never holds up the others. Requests get their room before they start; until then they wait.
//!
//! Pure: time comes in as a parameter, what the model says comes in as tokens, and what the context must do comes out.

use std::collections::HashMap;
use std::time::Instant;

use chat::FinishReason;

use crate::cache::{CellOp, PrefixCache, Sequence, Token};
use crate::queue::{FairQueue, Tag};

/// The bounds that the scheduler keeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Cells of the KV cache.
    pub(crate) cells: usize,
    /// Sequences that the context can tell apart, running and finished.
    pub(crate) sequences: u16,
    pub(crate) max_running: usize,
    pub(crate) max_queued: usize,
    pub(crate) max_step_tokens: usize,
    /// For how long an unused prefix is kept at most, in generated tokens.
    pub(crate) max_prefix_ttl: f64,
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
    pub(crate) payload: R,
}

/// Why a request did not run to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DropReason {
    /// The waiting room is full.
    QueueFull,
    /// It waited for too long.
    DeadlinePassed,
    /// Nobody wants the answer any more.
    Disconnected,
}

/// A request that has ended.
pub(crate) struct Finished<R> {
    pub(crate) payload: R,
    pub(crate) reason: FinishReason,
    pub(crate) prompt_tokens: usize,
    pub(crate) shared_tokens: usize,
    pub(crate) completion_tokens: usize,
}

/// One token of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchEntry {
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
    pub(crate) batch: Vec<BatchEntry>,
}

struct RunningRequest<R> {
    sequence: Sequence,
    payload: R,
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

/// The least patience with free_sequences prefixes, as a part of the most.
const MIN_PREFIX_TTL_FRACTION: f64 = 1.0 / 32.0;

/// Everything that waits, runs or is kept.
pub(crate) struct Scheduler<R> {
    limits: Limits,
    cache: PrefixCache,
    queue: FairQueue<Request<R>>,
    running: Vec<RunningRequest<R>>,
    in_flight: HashMap<Tag, usize>,
    /// Cells that running requests may come to need, shared ones counted once for each.
    reserved_cells: usize,
    /// In generated tokens.
    prefix_ttl: f64,
    /// Prompt tokens per step while other requests generate, and while none does.
    chunk_while_decoding: usize,
    chunk_alone: usize,
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
            queue: FairQueue::new(limits.max_queued),
            running: Vec::new(),
            in_flight: HashMap::new(),
            reserved_cells: 0,
            prefix_ttl: limits.max_prefix_ttl / 4.0,
            chunk_while_decoding: TILE.min(limits.max_step_tokens),
            chunk_alone: limits.max_step_tokens,
        }
    }

    /// How long a token of a prompt takes, as measured: the pieces of prompts are cut accordingly.
    pub(crate) fn set_pace(&mut self, seconds_per_token: f64) {
        let within = |seconds: f64| {
            ((seconds / seconds_per_token) as usize / TILE * TILE).max(TILE).min(self.limits.max_step_tokens)
        };
        (self.chunk_while_decoding, self.chunk_alone) = (within(SECONDS_PER_CHUNK), within(SECONDS_PER_STEP));
    }

    /// A request comes in and waits for its room. Somebody may have to be turned away for it, or it itself.
    pub(crate) fn enqueue(&mut self, request: Request<R>) -> Option<R> {
        self.queue.push(request.tag.clone(), request).map(|request| request.payload)
    }

    /// Whether there is anything to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.queue.len() == 0
    }

    /// How much there is of everything.
    pub(crate) fn occupancy(&self) -> Occupancy {
        Occupancy {
            waiting: self.queue.len(),
            running: self.running.len(),
            cells_used: self.cache.used(),
            cells_shared: self.cache.shared(),
            cells: self.cache.capacity(),
        }
    }

    /// Takes out whoever has gone or waited for too long, and frees their room.
    pub(crate) fn sweep(
        &mut self,
        now: Instant,
        is_disconnected: impl Fn(&R) -> bool,
    ) -> (Vec<CellOp>, Vec<(R, DropReason)>) {
        let mut ops = Vec::new();
        let over = self.queue.remove_if(|request| is_disconnected(&request.payload) || request.deadline <= now);
        let mut dropped: Vec<_> = over
            .into_iter()
            .map(|request| {
                let why = if is_disconnected(&request.payload) {
                    DropReason::Disconnected
                } else {
                    DropReason::DeadlinePassed
                };
                (request.payload, why)
            })
            .collect();
        let mut at = 0;
        while let Some(running) = self.running.get(at) {
            if is_disconnected(&running.payload) {
                dropped.push((self.end(at, &mut ops).payload, DropReason::Disconnected));
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

        let generating = self.running.iter().filter(|running| running.generated > 0).count();
        for running in self.running.iter().filter(|running| running.generated > 0) {
            self.add_pending(running.sequence, 1, &mut step.batch);
        }
        let room = if generating == 0 { self.chunk_alone } else { self.chunk_while_decoding };
        let mut left = room.min(self.limits.max_step_tokens.saturating_sub(generating));
        for running in self.running.iter().filter(|running| running.generated == 0) {
            if left == 0 {
                break;
            }
            left -= self.add_pending(running.sequence, left, &mut step.batch);
        }
        step
    }

    /// What was planned is computed; says what the context must do before the next step.
    pub(crate) fn computed(&mut self, batch: &[BatchEntry]) -> Vec<CellOp> {
        let mut ops = Vec::new();
        for part in batch.chunk_by(|a, b| a.sequence == b.sequence) {
            self.cache.computed(part[0].sequence, part.len(), &mut ops);
        }
        let tokens = batch.iter().filter(|entry| entry.output).count() as u64;
        let dropped = self.cache.age(tokens, self.prefix_ttl as u64, &mut ops);
        // Keeping cells costs everyone a little in every step. What is kept in vain makes us less patient, …
        let least = self.limits.max_prefix_ttl * MIN_PREFIX_TTL_FRACTION;
        self.prefix_ttl = (self.prefix_ttl * 0.95_f64.powi(dropped as i32)).max(least);
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
        let Some(at) = self.running.iter().position(|running| running.sequence == sequence) else { return (ops, None) };
        let running = &mut self.running[at];
        running.generated += 1;
        let reason = match (end, running.generated == running.max_tokens) {
            (true, _) => Some(FinishReason::Stop),
            (false, true) => Some(FinishReason::Length),
            (false, false) => None,
        };
        let Some(reason) = reason else {
            self.cache.push(sequence, token);
            return (ops, None);
        };
        let running = self.end(at, &mut ops);
        let finished = Finished {
            payload: running.payload,
            reason,
            prompt_tokens: running.prompt,
            shared_tokens: running.shared,
            completion_tokens: running.generated,
        };
        (ops, Some(finished))
    }

    /// What belongs to a running sequence.
    pub(crate) fn payload_mut(&mut self, sequence: Sequence) -> Option<&mut R> {
        self.running.iter_mut().find(|running| running.sequence == sequence).map(|running| &mut running.payload)
    }

    fn admit_one(&mut self, ops: &mut Vec<CellOp>) -> bool {
        let in_flight = &self.in_flight;
        let Some((tag, request)) = self.queue.peek(|tag| in_flight.get(tag).copied().unwrap_or(0)) else {
            return false;
        };
        if !self.may_start(tag, request) {
            return false;
        }
        let Some(started) = self.cache.start(&request.prompt, request.max_tokens, ops) else { return false };
        let tag = tag.clone();
        let Some(request) = self.queue.pop(&tag) else { return false };
        if started.revived > request.prompt.len() / 4 {
            // … and what was kept for a good reason more so.
            self.prefix_ttl = (self.prefix_ttl * 1.25).min(self.limits.max_prefix_ttl);
        }
        self.reserved_cells += request.prompt.len() + request.max_tokens;
        *self.in_flight.entry(tag.clone()).or_default() += 1;
        self.running.push(RunningRequest {
            sequence: started.sequence,
            payload: request.payload,
            tag,
            prompt: request.prompt.len(),
            shared: started.shared,
            max_tokens: request.max_tokens,
            generated: 0,
        });
        true
    }

    /// One tag alone does not get the last quarter of the slots and of the cells, so that another one finds some at
    /// once; but everyone may have one request under way.
    fn may_start(&self, tag: &Tag, request: &Request<R>) -> bool {
        let own = self.in_flight.get(tag).copied().unwrap_or(0);
        let needed = self.reserved_cells + request.prompt.len() + request.max_tokens;
        let (slots, cells) = (self.limits.max_running, self.limits.cells);
        self.running.len() < slots && (own == 0 || (own < slots - slots / 4 && needed <= cells - cells / 4))
    }

    fn add_pending(&self, sequence: Sequence, limit: usize, batch: &mut Vec<BatchEntry>) -> usize {
        let (start, tokens) = self.cache.pending(sequence, limit);
        let last = self.cache.length(sequence);
        let entries = (start..).zip(&tokens).map(|(position, token)| BatchEntry {
            token: *token,
            position,
            sequence,
            output: position + 1 == last,
        });
        batch.extend(entries);
        tokens.len()
    }

    fn end(&mut self, at: usize, ops: &mut Vec<CellOp>) -> RunningRequest<R> {
        let running = self.running.remove(at);
        self.reserved_cells -= running.prompt + running.max_tokens;
        self.cache.finish(running.sequence, ops);
        if let Some(count) = self.in_flight.get_mut(&running.tag) {
            *count -= 1;
            if *count == 0 {
                self.in_flight.remove(&running.tag);
            }
        }
        running
    }
}

#[cfg(test)]
mod tests;
