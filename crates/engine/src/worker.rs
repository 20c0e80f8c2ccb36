//! The worker that owns the context. It receives requests, computes the steps that the scheduler plans, samples tokens
//! and responds.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use chat::{Completion, FinishReason, TokenUsage};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::cache::{CellOp, Sequence, Token};
use crate::clock::{CpuClock, MachineTime};
use crate::model::{DecodeError, Decoder, Model};
use crate::reasoning::Reasoning;
use crate::sampler::{Row, Sampler};
use crate::scheduler::{BatchEntry, Limits, Request, RunningRequest, Scheduler};
use crate::template::TemplateError;
use crate::text::text_of;
use crate::threads::{MachineSample, Sample, Threads};
use crate::tuning::cpus;

pub(crate) enum Message {
    Complete(Request<PendingCompletion>),
    /// Requests a notification after the next decoded token.
    CheckDecode(oneshot::Sender<()>),
}

/// The data of a request besides its prompt.
pub(crate) struct PendingCompletion {
    pub(crate) temperature: f32,
    pub(crate) reasoning: Reasoning,
    pub(crate) respond_to: Respond,
    /// The text so far. A token may end within a character.
    pub(crate) bytes: Vec<u8>,
}

pub(crate) struct EngineCompletion {
    pub(crate) completion: Completion,
    /// Tokens of the prompt that were found in the cache.
    pub(crate) cached_tokens: usize,
}

/// The response channel of a request. It is closed when the client is gone.
pub(crate) type Respond = oneshot::Sender<Result<EngineCompletion, RefusalError>>;

/// Why there is no completion.
#[derive(Debug)]
pub(crate) enum RefusalError {
    /// It could not start in time.
    NoCapacity,
    /// The prompt is empty, or does not fit the context.
    TooLong {
        tokens: usize,
        /// If false, there are at least `tokens`.
        is_exact: bool,
    },
    Template(TemplateError),
    /// The model has computed logits that are not finite.
    Overflow,
}

/// The response to `GET /status`, kept up to date by the worker and the tokenizer.
pub(crate) type SharedStatus = Arc<Mutex<wire::engine::Status>>;

pub(crate) struct Worker<'a> {
    model: &'a Model,
    decoder: Decoder<'a>,
    scheduler: Scheduler<PendingCompletion>,
    sampler: Sampler,
    inbox: Receiver<Message>,
    status: SharedStatus,
    /// A sequence that the scheduler does not use, for decode checks.
    spare: Sequence,
    decode_checks: Vec<oneshot::Sender<()>>,
    threads: Threads,
    window: Window,
}

/// A generating step that takes longer counts as slow: it delays the next token of every request.
const SLOW_STEP_SECONDS: f64 = 0.25;

/// Steps that are measured together.
struct Window {
    clock: CpuClock,
    machine: Option<MachineTime>,
}

impl Window {
    /// Long enough to distinguish a busy process from an interrupt (the system counts in hundredths of a second), and
    /// too short for a person to notice.
    const MIN: Duration = Duration::from_millis(80);

    fn start() -> Self {
        Self { clock: CpuClock::start(), machine: MachineTime::now() }
    }

    /// The measurements of this window, if it was long enough. Then the next window begins.
    fn next(&mut self) -> Option<Sample> {
        let (passed, cpu) = self.clock.elapsed();
        if passed < Self::MIN {
            return None;
        }
        let before = std::mem::replace(self, Self::start());
        let machine = before.machine.zip(self.machine).map(|(before, now)| MachineSample {
            cpus: now.cpus,
            idle: now.idle.saturating_sub(before.idle),
            others: now.busy.saturating_sub(before.busy).saturating_sub(cpu),
        });
        Some(Sample { passed, cpu, machine })
    }
}

pub(crate) type Inbox = Sender<Message>;

impl<'a> Worker<'a> {
    pub(crate) fn new(
        model: &'a Model,
        decoder: Decoder<'a>,
        threads: Threads,
        limits: Limits,
        inbox: Receiver<Message>,
        status: SharedStatus,
    ) -> Self {
        status.lock().threads = threads.now;
        Self {
            model,
            decoder,
            spare: Sequence(limits.sequences),
            scheduler: Scheduler::new(limits),
            sampler: Sampler::new(fastrand::Rng::new()).with_threads(sampling_threads(model)),
            inbox,
            status,
            decode_checks: Vec::new(),
            threads,
            window: Window::start(),
        }
    }

    /// Runs until every sender is dropped.
    pub(crate) fn run(mut self) -> Result<(), DecodeError> {
        while self.receive_messages() {
            self.sweep()?;
            if !self.decode_checks.is_empty() && self.scheduler.is_idle() {
                self.check_decode()?;
            }
            self.step()?;
            let now = self.scheduler.occupancy();
            let mut status = self.status.lock();
            (status.running, status.waiting) = (now.running, now.waiting);
            (status.cells_used, status.cells_shared) = (now.cells_used, now.cells_shared);
        }
        Ok(())
    }

    /// Receives all queued messages; blocks only if there is nothing to compute. False if there is no sender and nothing
    /// to compute.
    fn receive_messages(&mut self) -> bool {
        if self.scheduler.is_idle() {
            let Ok(message) = self.inbox.recv() else { return false };
            self.receive(message);
            self.window = Window::start();
        }
        while let Ok(message) = self.inbox.try_recv() {
            self.receive(message);
        }
        true
    }

    fn receive(&mut self, message: Message) {
        match message {
            Message::CheckDecode(sender) => self.decode_checks.push(sender),
            Message::Complete(request) => {
                if let Some(rejected) = self.scheduler.enqueue(request) {
                    refuse(rejected, RefusalError::NoCapacity);
                }
            }
        }
    }

    /// Drops requests whose client has disconnected or whose deadline has passed.
    fn sweep(&mut self) -> Result<(), DecodeError> {
        let (ops, dropped) = self.scheduler.sweep(Instant::now(), |pending| pending.respond_to.is_closed());
        for pending in dropped {
            if pending.respond_to.is_closed() {
                self.status.lock().cancelled += 1;
            }
            refuse(pending, RefusalError::NoCapacity);
        }
        self.decoder.apply(&ops)
    }

    fn step(&mut self) -> Result<(), DecodeError> {
        let step = self.scheduler.plan();
        self.decoder.apply(&step.ops)?;
        if step.batch.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        self.decoder.decode(&step.batch)?;
        let seconds = began.elapsed().as_secs_f64();
        self.scheduler.observe(&step, seconds);
        self.set_threads();
        self.report_decoded();
        {
            let mut status = self.status.lock();
            status.steps += 1;
            status.step_tokens += step.batch.len() as u64;
            status.decoding_seconds += seconds;
            status.generating_steps += u64::from(step.is_generating);
            status.slow_generating_steps += u64::from(step.is_generating && seconds > SLOW_STEP_SECONDS);
        }
        let ops = self.scheduler.computed(&step.batch);
        self.decoder.apply(&ops)?;
        self.sample(&step.batch)
    }

    /// Uses fewer threads while other processes need the CPUs.
    fn set_threads(&mut self) {
        let Some(sample) = self.window.next() else { return };
        let before = self.threads.now;
        if self.threads.observe(&sample) != before {
            self.decoder.limit_threads(self.threads.now);
            self.status.lock().threads = self.threads.now;
            tracing::debug!(threads = self.threads.now, ?sample, "the number of threads has changed");
        }
    }

    /// Samples the next tokens of all sequences whose logits the batch has.
    fn sample(&mut self, batch: &[BatchEntry]) -> Result<(), DecodeError> {
        let (mut rows, mut outputs) = (Vec::new(), Vec::new());
        for (at, entry) in batch.iter().enumerate().filter(|(_, entry)| entry.output) {
            if let Some(pending) = self.scheduler.payload_mut(entry.sequence) {
                rows.push(Row { logits: self.decoder.logits(at), temperature: pending.temperature });
                outputs.push(entry);
            }
        }
        let began = Instant::now();
        let tokens = self.sampler.sample(&rows);
        self.status.lock().sampling_seconds += began.elapsed().as_secs_f64();
        outputs.into_iter().zip(tokens).try_for_each(|(entry, token)| match token {
            _ if !self.scheduler.counts(entry) => Ok(()),
            Some(token) => self.add(entry.sequence, token),
            None => self.give_up(entry.sequence),
        })
    }

    /// Ends a request whose next logits are not finite.
    fn give_up(&mut self, sequence: Sequence) -> Result<(), DecodeError> {
        let (ops, pending) = self.scheduler.remove(sequence);
        if let Some(pending) = pending {
            tracing::warn!("the model computed logits that are not finite; the request fails");
            refuse(pending, RefusalError::Overflow);
        }
        self.decoder.apply(&ops)
    }

    /// Adds a token to a sequence, which may be its last.
    fn add(&mut self, sequence: Sequence, token: Token) -> Result<(), DecodeError> {
        let Some(pending) = self.scheduler.payload_mut(sequence) else { return Ok(()) };
        let end = self.model.is_end(token);
        if !end {
            self.model.add_bytes(token, pending.reasoning == Reasoning::Channels, &mut pending.bytes);
        }
        self.status.lock().generated_tokens += 1;
        let (ops, finished) = self.scheduler.generated(sequence, token, end);
        self.decoder.apply(&ops)?;
        if let Some((finished, reason)) = finished {
            let mut status = self.status.lock();
            status.prompt_tokens += finished.prompt as u64;
            status.shared_tokens += finished.shared as u64;
            drop(status);
            respond(finished, reason);
        }
        Ok(())
    }

    fn report_decoded(&mut self) {
        for sender in self.decode_checks.drain(..) {
            let _ = sender.send(()); // the receiver may be gone
        }
    }

    /// Decodes one token on the spare sequence.
    fn check_decode(&mut self) -> Result<(), DecodeError> {
        let entry = BatchEntry { token: 0, position: 0, sequence: self.spare, output: true };
        self.decoder.decode(&[entry])?;
        self.decoder.apply(&[CellOp::Release { sequence: self.spare, positions: 0..usize::MAX }])?;
        self.report_decoded();
        Ok(())
    }
}

/// One while the CPUs compute the model, because more threads would slow it down.
fn sampling_threads(model: &Model) -> usize {
    const MAX: usize = 16;
    if model.is_on_gpu { cpus().saturating_sub(1).clamp(1, MAX) } else { 1 }
}

fn refuse(pending: PendingCompletion, refusal: RefusalError) {
    let _ = pending.respond_to.send(Err(refusal)); // the client may be gone
}

fn respond(finished: RunningRequest<PendingCompletion>, finish_reason: FinishReason) {
    let RunningRequest { payload: pending, prompt, shared, generated, .. } = finished;
    let count = |tokens: usize| u32::try_from(tokens).ok();
    let usage = TokenUsage { prompt: count(prompt), completion: count(generated), total: count(prompt + generated) };
    let text = pending.reasoning.answer(text_of(pending.bytes));
    let completion = Completion { text, finish_reason, usage };
    let _ = pending.respond_to.send(Ok(EngineCompletion { completion, cached_tokens: shared }));
}
