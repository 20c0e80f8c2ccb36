//! Plans the next step: one token for every request that generates, and prompts in bounded chunks, in turns by person and
//! key, so that a long prompt never stalls the others. A request is queued until it gets all the cells that it may need,
//! so that none can run out of them.
//!
//! Pure: time and sampled tokens come in, batches and cell operations come out.

mod in_flight;
mod pieces;

use std::time::Instant;

use chat::FinishReason;

use crate::cache::{CellOp, PrefixCache, Scope, Sequence, Token};
use crate::drafts::{DraftResults, Drafts, StepSeconds};
use crate::queue::{FairQueue, Tag};
use crate::turns::Charges;

use in_flight::InFlight;
pub(crate) use pieces::Pieces;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// The size of the KV cache.
    pub(crate) cells: usize,
    /// Sequences of the context, for running and finished requests.
    pub(crate) sequences: u16,
    pub(crate) max_running: usize,
    pub(crate) max_queued: usize,
    pub(crate) max_step_tokens: usize,
    pub(crate) pieces: Pieces,
    /// An initial estimate, corrected by measured steps.
    pub(crate) seconds_per_prompt_token: f64,
    /// The longest time that an unused prefix is kept, in tokens that are computed meanwhile.
    pub(crate) max_prefix_ttl: f64,
    /// The cost of a cell of another sequence for each token that skips it.
    pub(crate) seconds_per_hidden_cell: f64,
    pub(crate) sharing: Sharing,
    /// For steps in which requests generate.
    pub(crate) step_seconds: StepSeconds,
}

/// Which requests share the beginnings of prompts with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    Everyone,
    /// The requests of a person; of a key without an owner, those of the key.
    Person,
    Key,
}

impl Sharing {
    fn scope(self, tag: &Tag) -> Scope {
        match self {
            Self::Everyone => Scope::default(),
            Self::Person => tag.person.clone(),
            Self::Key => tag.key.clone(),
        }
    }
}

pub(crate) struct Request<R> {
    /// Never empty.
    pub(crate) prompt: Vec<Token>,
    pub(crate) max_tokens: usize,
    pub(crate) tag: Tag,
    /// It is dropped at this time if it is still queued.
    pub(crate) deadline: Instant,
    /// Data that the caller needs to respond.
    pub(crate) payload: R,
}

/// One token of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchEntry {
    pub(crate) token: Token,
    pub(crate) position: usize,
    pub(crate) sequence: Sequence,
    /// Whether its logits are needed.
    pub(crate) output: bool,
}

#[derive(Default)]
pub(crate) struct Step {
    /// To be applied before the batch is decoded.
    pub(crate) ops: Vec<CellOp>,
    /// Empty if there is nothing to compute.
    pub(crate) batch: Vec<BatchEntry>,
    /// Whether the batch has tokens of requests that generate.
    pub(crate) is_generating: bool,
    prompt_tokens: usize,
}

pub(crate) struct RunningRequest<R> {
    sequence: Sequence,
    pub(crate) payload: R,
    tag: Tag,
    /// In tokens, as the following.
    pub(crate) prompt: usize,
    pub(crate) shared: usize,
    max_tokens: usize,
    pub(crate) generated: usize,
    drafts: Drafts,
    /// Whether the last batch had a draft for this request.
    has_draft: bool,
}

/// How long the prompts of a step may take while no request generates. Bounded because a new request waits for the end of
/// the step.
pub(crate) const SECONDS_PER_STEP: f64 = 0.5;
/// How long they may take while others generate, which all wait for their next token meanwhile: this time, or as long as
/// the step takes without prompts. So prompts never take more than half of a slow machine's time, and on a fast machine
/// no gap between two tokens is long enough to be noticed.
const SECONDS_PER_GAP: f64 = 0.12;
/// With fewer prompt tokens, the duration of a step says little about prompts.
const MIN_SAMPLE_TOKENS: usize = 16;

/// The lower bound of the prefix TTL, as a fraction of the upper one.
const MIN_PREFIX_TTL_FRACTION: f64 = 1.0 / 32.0;
/// Factors of the prefix TTL, for a prefix that was evicted unused and for one that was reused.
const TTL_AFTER_EVICTION: f64 = 0.9;
const TTL_AFTER_REUSE: f64 = 1.5;
/// The assumed mean length of completions before any has ended, in tokens, and the weight of the latest one in the mean.
const FIRST_MEAN_COMPLETION: f64 = 128.0;
const NEWEST_COMPLETION: f64 = 1.0 / 16.0;

pub(crate) struct Scheduler<R> {
    limits: Limits,
    cache: PrefixCache,
    queue: FairQueue<Request<R>>,
    running: Vec<RunningRequest<R>>,
    in_flight: InFlight,
    /// Prompt tokens that were computed for each person and key. The next chunk belongs to those with the fewest, so that a
    /// short prompt does not wait for all the long ones of others that started before it.
    prompt_charges: Charges,
    /// Cells that running requests may need. Shared cells are counted once for each request.
    reserved_cells: usize,
    /// In computed tokens. Adapts to how often kept prefixes are reused.
    prefix_ttl: f64,
    /// The mean number of tokens that are generated for a request.
    mean_completion: f64,
    seconds_per_prompt_token: f64,
    draft_results: DraftResults,
    /// The drafts of the last step.
    drafted: Option<Drafted>,
}

/// The drafts of a step.
struct Drafted {
    /// The number of drafted tokens that are expected to be right.
    expected: f64,
    /// Tokens of the step besides.
    plain: usize,
    /// Tokens that the step has generated.
    generated: usize,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Occupancy {
    pub(crate) waiting: usize,
    pub(crate) running: usize,
    pub(crate) cells_used: usize,
    pub(crate) cells_shared: usize,
    pub(crate) cells: usize,
}

impl<R> Scheduler<R> {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            cache: PrefixCache::new(limits.cells, limits.sequences),
            queue: FairQueue::new(limits.max_queued),
            running: Vec::new(),
            in_flight: InFlight::default(),
            prompt_charges: Charges::default(),
            reserved_cells: 0,
            prefix_ttl: limits.max_prefix_ttl / 4.0,
            mean_completion: FIRST_MEAN_COMPLETION,
            seconds_per_prompt_token: limits.seconds_per_prompt_token,
            draft_results: DraftResults::new(),
            drafted: None,
        }
    }

    /// Takes the duration of a step into account.
    pub(crate) fn observe(&mut self, step: &Step, seconds: f64) {
        let tokens = step.batch.len();
        if step.prompt_tokens == 0 {
            self.draft_results.observe_time(tokens, self.drafted.is_some(), self.limits.step_seconds, seconds);
            return;
        }
        self.draft_results.interrupted();
        if step.prompt_tokens >= MIN_SAMPLE_TOKENS.max(tokens / 2) {
            self.seconds_per_prompt_token += (seconds / tokens as f64 - self.seconds_per_prompt_token) / 4.0;
        }
    }

    /// The maximum of prompt tokens in the next step, beside requests that generate.
    fn piece(&self, generating: usize) -> usize {
        let StepSeconds { first, further } = self.limits.step_seconds;
        let seconds = match generating.checked_sub(1) {
            None => SECONDS_PER_STEP,
            Some(others) => SECONDS_PER_GAP.max(first + others as f64 * further),
        };
        let piece = self.limits.pieces.tokens(seconds, self.seconds_per_prompt_token);
        piece.min(self.limits.max_step_tokens.saturating_sub(generating))
    }

    /// Queues a request. If the queue is full, returns the payload of the request that was rejected: this one or
    /// another.
    pub(crate) fn enqueue(&mut self, request: Request<R>) -> Option<R> {
        self.queue.push(request.tag.clone(), request).map(|request| request.payload)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.queue.len() == 0
    }

    pub(crate) fn occupancy(&self) -> Occupancy {
        Occupancy {
            waiting: self.queue.len(),
            running: self.running.len(),
            cells_used: self.cache.used(),
            cells_shared: self.cache.shared(),
            cells: self.limits.cells,
        }
    }

    /// Drops requests whose client has disconnected, and queued ones whose deadline has passed.
    pub(crate) fn sweep(&mut self, now: Instant, is_disconnected: impl Fn(&R) -> bool) -> (Vec<CellOp>, Vec<R>) {
        let mut ops = Vec::new();
        let over = self.queue.remove_if(|request| is_disconnected(&request.payload) || request.deadline <= now);
        let mut dropped: Vec<_> = over.into_iter().map(|request| request.payload).collect();
        let mut at = 0;
        while let Some(running) = self.running.get(at) {
            if is_disconnected(&running.payload) {
                dropped.push(self.end(at, &mut ops).payload);
            } else {
                at += 1;
            }
        }
        (ops, dropped)
    }

    /// Starts the queued requests for which there are cells, and returns what to compute next.
    pub(crate) fn plan(&mut self) -> Step {
        let mut step = Step::default();
        if let Some(Drafted { expected, plain, generated }) = self.drafted.take() {
            self.draft_results.observe_right(generated.saturating_sub(plain), expected);
        }
        for running in self.running.iter_mut().filter(|running| running.has_draft) {
            running.has_draft = false;
            self.cache.release_rest(running.sequence, &mut step.ops);
        }
        while self.admit_one(&mut step.ops) {}

        let generating = self.running.iter().filter(|running| running.generated > 0).count();
        let mut left = self.piece(generating);
        let mut prompts: Vec<_> = self.running.iter().filter(|running| running.generated == 0).collect();
        prompts.sort_by_key(|running| self.prompt_charges.charged(&running.tag)); // stable: in their order within a key
        let mut charges = Vec::new();
        // Prompts come first in a batch: attention computes neighbouring tokens together, and tokens of a prompt see more
        // common cells than generated ones.
        for running in prompts {
            if left == 0 {
                break;
            }
            let added = self.add_pending(running.sequence, left, &mut step.batch);
            charges.push((running.tag.clone(), added));
            left -= added;
        }
        for (tag, tokens) in charges {
            self.prompt_charges.charge(&tag, tokens);
        }
        let people = &self.in_flight.people;
        self.prompt_charges.forget_others(people.len(), |person| people.contains_key(person));
        step.prompt_tokens = step.batch.len();
        for running in self.running.iter().filter(|running| running.generated > 0) {
            self.add_pending(running.sequence, 1, &mut step.batch);
        }
        step.is_generating = generating > 0;
        if step.prompt_tokens == 0 {
            self.drafted = self.add_drafts(&mut step.batch);
        }
        step
    }

    /// Adds drafts to the tokens of a batch, if they save time.
    fn add_drafts(&mut self, batch: &mut Vec<BatchEntry>) -> Option<Drafted> {
        let (seconds, max_tokens) = (self.limits.step_seconds, self.limits.max_step_tokens);
        let (mut tokens, mut expected, mut drafts) = (batch.len(), 0.0, Vec::new());
        for running in self.running.iter().filter(|running| running.generated > 0) {
            // The last generated token is not computed.
            let useful = running.max_tokens.saturating_sub(running.generated + 1);
            let draft = running.drafts.draft(tokens - 1, seconds, useful.min(max_tokens.saturating_sub(tokens)));
            let (sequence, start) = (running.sequence, self.cache.length(running.sequence));
            let entry =
                |(position, token): (usize, &Token)| BatchEntry { token: *token, position, sequence, output: true };
            drafts.extend((start..).zip(draft).map(entry));
            expected += running.drafts.expected(draft.len());
            tokens += draft.len();
        }
        let plain = batch.len();
        if drafts.is_empty() || !self.draft_results.are_worth(plain, drafts.len(), expected, seconds) {
            return None;
        }
        for running in &mut self.running {
            running.has_draft = drafts.iter().any(|entry| entry.sequence == running.sequence);
        }
        batch.append(&mut drafts);
        // Makes the tokens of a sequence adjacent.
        batch.sort_by_key(|entry| entry.sequence);
        Some(Drafted { expected, plain, generated: 0 })
    }

    /// Whether an output of the last batch gives the next token of its sequence. That of a drafted token does if the draft
    /// was right up to it.
    pub(crate) fn counts(&self, entry: &BatchEntry) -> bool {
        self.cache.ends_with(entry.sequence, entry.position, entry.token)
    }

    /// Records that a planned batch was decoded. The operations must be applied before the next step.
    pub(crate) fn computed(&mut self, batch: &[BatchEntry]) -> Vec<CellOp> {
        let mut ops = Vec::new();
        for part in batch.chunk_by(|a, b| a.sequence == b.sequence) {
            let length = self.cache.length(part[0].sequence);
            let own = part.iter().filter(|entry| entry.position < length).count(); // without its draft
            self.cache.computed(part[0].sequence, own, &mut ops);
        }
        // Every token of the batch has skipped every kept cell, which slows down every step. A prefix that was evicted unused
        // shortens the TTL, a reused one lengthens it.
        let evicted = self.cache.age(batch.len() as u64, self.prefix_ttl as u64, &mut ops);
        let min = self.limits.max_prefix_ttl * MIN_PREFIX_TTL_FRACTION;
        self.prefix_ttl = (self.prefix_ttl * TTL_AFTER_EVICTION.powi(evicted as i32)).max(min);
        ops
    }

    /// Adds the sampled token to a sequence; `end` if it is an end-of-generation token. Returns the request if it has
    /// finished, and why.
    pub(crate) fn generated(
        &mut self,
        sequence: Sequence,
        token: Token,
        end: bool,
    ) -> (Vec<CellOp>, Option<(RunningRequest<R>, FinishReason)>) {
        let mut ops = Vec::new();
        let Some(at) = self.running.iter().position(|running| running.sequence == sequence) else { return (ops, None) };
        let running = &mut self.running[at];
        running.generated += 1;
        running.drafts.push(token);
        self.drafted.iter_mut().for_each(|drafted| drafted.generated += 1);
        self.cache.computed_to_the_end(sequence);
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
        self.mean_completion += (running.generated as f64 - self.mean_completion) * NEWEST_COMPLETION;
        (ops, Some((running, reason)))
    }

    /// Ends a sequence without a completion.
    pub(crate) fn remove(&mut self, sequence: Sequence) -> (Vec<CellOp>, Option<R>) {
        let mut ops = Vec::new();
        let at = self.running.iter().position(|running| running.sequence == sequence);
        let payload = at.map(|at| self.end(at, &mut ops).payload);
        (ops, payload)
    }

    pub(crate) fn payload_mut(&mut self, sequence: Sequence) -> Option<&mut R> {
        self.running.iter_mut().find(|running| running.sequence == sequence).map(|running| &mut running.payload)
    }

    fn admit_one(&mut self, ops: &mut Vec<CellOp>) -> bool {
        if self.running.len() >= self.limits.max_running {
            return false;
        }
        let Some((tag, request)) = self.queue.peek(|tag| self.in_flight.count(tag)) else { return false };
        if !self.may_start(tag, request) {
            return false;
        }
        let scope = self.limits.sharing.scope(tag);
        let Some(started) = self.cache.start(&scope, &request.prompt, request.max_tokens, ops) else { return false };
        let tag = tag.clone();
        let Some(request) = self.queue.pop(&tag) else { return false };
        if started.revived > request.prompt.len() / 4 {
            self.prefix_ttl = (self.prefix_ttl * TTL_AFTER_REUSE).min(self.limits.max_prefix_ttl);
        }
        self.reserved_cells += request.prompt.len() + request.max_tokens;
        self.in_flight.add(&tag);
        self.running.push(RunningRequest {
            sequence: started.sequence,
            payload: request.payload,
            tag,
            prompt: request.prompt.len(),
            shared: started.shared,
            max_tokens: request.max_tokens,
            generated: 0,
            drafts: Drafts::new(&request.prompt),
            has_draft: false,
        });
        true
    }

    /// Whether a request may start in a free slot. No person alone gets the last quarter of slots and cells, so that another
    /// person can start immediately, and no person alone crowds the cache. But everyone may have one running request.
    fn may_start(&self, tag: &Tag, request: &Request<R>) -> bool {
        let (own, _) = self.in_flight.count(tag);
        let needed = self.reserved_cells + request.prompt.len() + request.max_tokens;
        let (slots, cells) = (self.limits.max_running, self.limits.cells);
        let has_room = || own < slots - slots / 4 && needed <= cells - cells / 4 && !self.is_crowded();
        own == 0 || has_room()
    }

    /// Whether a further request in parallel would cost more time than it saves.
    ///
    /// With n cells in use, a request whose prompt has p tokens takes p/n of each step's fixed time for each token that it
    /// generates, and its p tokens skip n cells: p (generated * step / n + hidden * n). The minimum is at the root below. It
    /// does not matter while n cells cost less than half as much as a token.
    fn is_crowded(&self) -> bool {
        let Limits { step_seconds, seconds_per_hidden_cell, max_prefix_ttl, .. } = self.limits;
        let best = (self.mean_completion * step_seconds.first / seconds_per_hidden_cell).sqrt();
        self.cache.visible() as f64 > best.max(max_prefix_ttl / 2.0)
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
        self.in_flight.remove(&running.tag);
        running
    }
}

#[cfg(test)]
mod tests;
