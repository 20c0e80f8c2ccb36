//! The one thread that owns the context. It takes requests from its inbox, asks the scheduler what to do, does it, and
//! answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::Instant;

use chat::{Completion, TokenUsage};
use tokio::sync::oneshot;

use crate::cache::{CellOp, Sequence, Token};
use crate::model::{DecodeFailed, Decoder, Model};
use crate::sampler::Sampler;
use crate::scheduler::{Dropped, Entry, Finished, Limits, Request, Scheduler};
use crate::text::text_of;

/// What comes into the inbox.
pub(crate) enum Message {
    /// A request for a completion.
    Ask(Request<Ask>),
    /// Somebody wants to see that the model still decodes.
    Prove(oneshot::Sender<()>),
}

/// What belongs to a request besides its prompt.
pub(crate) struct Ask {
    pub(crate) temperature: f32,
    pub(crate) answer: oneshot::Sender<Result<Answer, NoRoom>>,
    pub(crate) bytes: Vec<u8>,
}

/// A completion, and how many tokens of its prompt were found in the cache.
pub(crate) struct Answer {
    pub(crate) completion: Completion,
    pub(crate) cached: usize,
}

/// The request found no room in time; nothing was done for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoRoom;

/// What the engine is doing, for whoever looks.
#[derive(Default)]
pub(crate) struct Vitals {
    pub(crate) running: AtomicUsize,
    pub(crate) waiting: AtomicUsize,
    pub(crate) cells_used: AtomicUsize,
    pub(crate) cells_shared: AtomicUsize,
    pub(crate) steps: AtomicU64,
    pub(crate) step_tokens: AtomicU64,
    pub(crate) prompt_tokens: AtomicU64,
    pub(crate) shared_tokens: AtomicU64,
    pub(crate) generated_tokens: AtomicU64,
    pub(crate) cancelled: AtomicU64,
}

/// The thread's state.
pub(crate) struct Worker<'a> {
    model: &'a Model,
    decoder: Decoder<'a>,
    scheduler: Scheduler<Ask>,
    sampler: Sampler,
    inbox: Receiver<Message>,
    vitals: Arc<Vitals>,
    /// A sequence beyond the scheduler's, to prove a decode with.
    spare: Sequence,
    proofs: Vec<oneshot::Sender<()>>,
    seconds_per_token: f64,
}

/// Where requests for the worker go.
pub(crate) type Inbox = Sender<Message>;

impl<'a> Worker<'a> {
    pub(crate) fn new(
        model: &'a Model,
        decoder: Decoder<'a>,
        limits: Limits,
        inbox: Receiver<Message>,
        vitals: Arc<Vitals>,
        seconds_per_token: f64,
    ) -> Self {
        let mut scheduler = Scheduler::new(limits);
        scheduler.set_pace(seconds_per_token);
        Self {
            model,
            decoder,
            spare: Sequence(limits.sequences),
            scheduler,
            seconds_per_token,
            sampler: Sampler::new(fastrand::Rng::new()),
            inbox,
            vitals,
            proofs: Vec::new(),
        }
    }

    /// Works until nobody can ask any more.
    pub(crate) fn run(mut self) -> Result<(), DecodeFailed> {
        while self.take_in() {
            self.sweep()?;
            if !self.proofs.is_empty() && self.scheduler.is_idle() {
                self.prove()?;
            }
            self.step()?;
            let now = self.scheduler.occupancy();
            self.vitals.running.store(now.running, Relaxed);
            self.vitals.waiting.store(now.waiting, Relaxed);
            self.vitals.cells_used.store(now.cells_used, Relaxed);
            self.vitals.cells_shared.store(now.cells_shared, Relaxed);
        }
        Ok(())
    }

    /// Takes in what has come; waits only if there is nothing else to do. False if nobody can ask any more.
    fn take_in(&mut self) -> bool {
        if self.scheduler.is_idle() {
            match self.inbox.recv() {
                Ok(message) => self.receive(message),
                Err(_) => return false,
            }
        }
        loop {
            match self.inbox.try_recv() {
                Ok(message) => self.receive(message),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return !self.scheduler.is_idle(),
            }
        }
    }

    fn receive(&mut self, message: Message) {
        match message {
            Message::Prove(proof) => self.proofs.push(proof),
            Message::Ask(request) => {
                if let Some(turned_away) = self.scheduler.enter(request) {
                    refuse(turned_away, Dropped::Full);
                }
            }
        }
    }

    /// Frees the room of those who have hung up, and tells those who waited for too long.
    fn sweep(&mut self) -> Result<(), DecodeFailed> {
        let (ops, dropped) = self.scheduler.sweep(Instant::now(), |ask| ask.answer.is_closed());
        for (ask, why) in dropped {
            if why == Dropped::Gone {
                self.vitals.cancelled.fetch_add(1, Relaxed);
            }
            refuse(ask, why);
        }
        self.decoder.apply(&ops)
    }

    fn step(&mut self) -> Result<(), DecodeFailed> {
        let step = self.scheduler.plan();
        self.decoder.apply(&step.ops)?;
        if step.batch.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        self.decoder.decode(&step.batch)?;
        self.set_pace(&step.batch, began.elapsed().as_secs_f64());
        self.proven();
        self.vitals.steps.fetch_add(1, Relaxed);
        self.vitals.step_tokens.fetch_add(step.batch.len() as u64, Relaxed);
        let ops = self.scheduler.computed(&step.batch);
        self.decoder.apply(&ops)?;
        for (at, entry) in step.batch.iter().enumerate().filter(|(_, entry)| entry.output) {
            self.go_on(at, entry.sequence)?;
        }
        Ok(())
    }

    /// Learns from a step that was mostly prompt how long a prompt's token takes.
    fn set_pace(&mut self, batch: &[Entry], seconds: f64) {
        const WORTH_COUNTING: usize = 32;
        if batch.len() >= WORTH_COUNTING && batch.iter().filter(|entry| entry.output).count() < batch.len() / 2 {
            self.seconds_per_token += (seconds / batch.len() as f64 - self.seconds_per_token) / 4.0;
            self.scheduler.set_pace(self.seconds_per_token);
        }
    }

    /// Draws a sequence's next token.
    fn go_on(&mut self, at: usize, sequence: Sequence) -> Result<(), DecodeFailed> {
        let Some(ask) = self.scheduler.rest_mut(sequence) else { return Ok(()) };
        let token: Token = self.sampler.pick(self.decoder.scores(at), ask.temperature);
        let end = self.model.is_end(token);
        if !end {
            self.model.add_bytes(token, &mut ask.bytes);
        }
        self.vitals.generated_tokens.fetch_add(1, Relaxed);
        let (ops, finished) = self.scheduler.generated(sequence, token, end);
        self.decoder.apply(&ops)?;
        if let Some(finished) = finished {
            self.vitals.prompt_tokens.fetch_add(finished.prompt_tokens as u64, Relaxed);
            self.vitals.shared_tokens.fetch_add(finished.shared_tokens as u64, Relaxed);
            answer(finished);
        }
        Ok(())
    }

    fn proven(&mut self) {
        for proof in self.proofs.drain(..) {
            let _ = proof.send(()); // whoever has gone needs no proof
        }
    }

    /// Decodes one token apart from everything else.
    fn prove(&mut self) -> Result<(), DecodeFailed> {
        let entry = Entry { token: 0, position: 0, sequence: self.spare, output: true };
        self.decoder.decode(&[entry])?;
        self.decoder.apply(&[CellOp::Release { sequence: self.spare, positions: 0..usize::MAX }])?;
        self.proven();
        Ok(())
    }
}

/// Whoever has gone does not hear it.
fn refuse(ask: Ask, why: Dropped) {
    if why != Dropped::Gone {
        let _ = ask.answer.send(Err(NoRoom));
    }
}

fn answer(finished: Finished<Ask>) {
    let Finished { rest: ask, reason, prompt_tokens, shared_tokens, completion_tokens } = finished;
    let count = |tokens: usize| u32::try_from(tokens).ok();
    let usage = TokenUsage {
        prompt: count(prompt_tokens),
        completion: count(completion_tokens),
        total: count(prompt_tokens + completion_tokens),
    };
    let completion = Completion { text: text_of(ask.bytes), finish_reason: reason, usage };
    let _ = ask.answer.send(Ok(Answer { completion, cached: shared_tokens }));
}
