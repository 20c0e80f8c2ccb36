//! The decoding thread. It runs one `worker` after another, because a tuning from a busy machine is repeated once the
//! machine is quiet.

use std::cell::RefCell;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::model::Model;
use crate::scheduler::Limits;
use crate::threads::Threads;
use crate::tuning::{self, Trial, Tuning, TuningFile};
use crate::worker::{Ended, IdleLimit, Message, Stats, Worker};
use crate::{EngineError, Progress, Settings};

/// Computes all requests, on the thread that calls `run`.
pub struct DecodeLoop {
    pub(crate) settings: Settings,
    pub(crate) model: Arc<Model>,
    pub(crate) tuning: Tuning,
    pub(crate) limits: Limits,
    pub(crate) requests: mpsc::Receiver<Message>,
    pub(crate) stats: Arc<Stats>,
}

impl DecodeLoop {
    /// Runs until the frontend is dropped.
    ///
    /// Must be called on the thread that loaded the model. libgomp starts worker threads for every thread that
    /// computes, and puts all of them to sleep between steps once there are more of them than CPUs. Decoding one
    /// sequence then takes twice as long.
    pub fn run(mut self) -> Result<(), EngineError> {
        let (mut requests, mut waiting) = (self.requests, None);
        let mut idle_limit = if self.tuning.quiet { IdleLimit::Unlimited } else { IdleLimit::Quiet(MIN_QUIET) };
        loop {
            let choice = self.tuning.choice;
            let decoder = self.model.decoder(self.limits.shape(), choice)?;
            let threads = Threads::new(choice.threads);
            let mut worker = Worker::new(&self.model, decoder, threads, self.limits, requests, self.stats.clone());
            waiting.into_iter().for_each(|message| worker.receive(message));
            requests = match worker.run(idle_limit).map_err(|error| EngineError::Decode(error.to_string()))? {
                Ended::EverySenderIsDropped => return Ok(()),
                Ended::MachineIsQuiet(requests) => requests,
            };
            let mut progress = UntilRequested { requests: &requests, first: RefCell::new(None) };
            let tuned = tuning::tune(&self.model, self.tuning.key().clone(), &mut progress);
            idle_limit = match (&tuned, idle_limit) {
                // The request that interrupted it had to wait. The next attempt comes later, so that this stays rare.
                (None, IdleLimit::Quiet(time)) => IdleLimit::Quiet((2 * time).min(MAX_QUIET)),
                // Not repeated again even if the figures are no better: on some virtual machines they never are.
                _ => IdleLimit::Unlimited,
            };
            if let Some(tuning) = tuned {
                tracing::info!(settings = %tuning.choice, "tuned again, because the machine was busy the first time");
                self.limits.pieces = tuning.pieces;
                self.limits.seconds_per_prompt_token = 1.0 / tuning.speed.prompt;
                self.tuning = tuning.with_copy(self.tuning.copy.take());
                if let Err(error) = TuningFile::read(&self.settings.data_dir).store(self.tuning.clone()) {
                    tracing::warn!(%error, "the tuning was not stored");
                }
            }
            waiting = progress.first.into_inner();
        }
    }
}

/// How long the machine must be quiet before a tuning from a busy machine is repeated.
const MIN_QUIET: Duration = Duration::from_secs(5);
const MAX_QUIET: Duration = Duration::from_secs(600);

/// Reports no progress, and interrupts the tuning when a request arrives.
struct UntilRequested<'a> {
    requests: &'a mpsc::Receiver<Message>,
    first: RefCell<Option<Message>>,
}

impl Progress for UntilRequested<'_> {
    fn loading(&mut self, _done: f32) {}

    fn trying(&mut self, _done: usize, _all: usize) {}

    fn tried(&mut self, _trial: &Trial) {}

    fn is_interrupted(&self) -> bool {
        let mut first = self.first.borrow_mut();
        while first.is_none() {
            match self.requests.try_recv() {
                // A trial decodes, too.
                Ok(Message::CheckDecode(sender)) => drop(sender.send(())),
                Ok(message) => *first = Some(message),
                Err(_) => return false,
            }
        }
        true
    }
}
