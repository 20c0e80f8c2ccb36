//! The embedded runtime on llama.cpp.
//!
//! `api` speaks HTTP, `template` and `markup` turn conversations into tokens, `worker` is the one thread that owns the
//! context. What it does is decided elsewhere, purely: `scheduler` says who gets a token in the next step, `queue` who
//! is next, and `cache` who holds which cells; `sampler` picks tokens. `tuning` finds the fastest settings for a machine,
//! and `model` is the only place that knows llama.cpp.

mod cache;
#[cfg(test)]
mod cells;
mod http_api;
mod listen;
mod markup;
mod model;
mod queue;
mod sampler;
mod scheduler;
mod template;
mod text;
mod tuning;
mod worker;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use crate::http_api::HttpApi;
pub use crate::listen::{Address, Listener};
pub use crate::model::ModelError;
use crate::model::{Model, Shape};
use crate::scheduler::Limits;
use crate::template::ChatTemplate;
pub use crate::tuning::{DecoderSettings, KvType, Speed, Trial, Tuning};
use crate::worker::{Message, Stats, Worker};

/// What one may set about the engine.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The model's file.
    pub model: PathBuf,
    /// Where the tuning is kept.
    pub data_dir: PathBuf,
    /// Cells of the KV cache; as many as are useful and fit unless told otherwise.
    pub cells: Option<usize>,
    pub max_running: usize,
    pub max_queued: usize,
    /// How long a request may be queued.
    pub queue_timeout: Duration,
}

/// What a person waits for while the engine starts.
pub trait Progress {
    /// So much of the model is loaded, from 0 to 1.
    fn loading(&mut self, done: f32);
    /// A choice is about to be timed: how many were, and how many there are.
    fn trying(&mut self, done: usize, all: usize);
    /// It was.
    fn tried(&mut self, trial: &Trial);
}

/// Told from wherever there is something to tell.
pub type SharedProgress = Arc<Mutex<dyn Progress + Send>>;

/// Why the engine stopped.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The model cannot be served.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The tuning could not be kept.
    #[error("the tuning cannot be kept in {0}: {1}")]
    Tuning(String, #[source] std::io::Error),
    /// The thread that decodes has ended.
    #[error("the model has stopped: {0}")]
    Decode(String),
}

/// Sequences that the context tells apart, running and finished; one more proves that it decodes.
const MAX_SEQUENCES: u16 = 127;
/// Tokens that are computed in one step at the most.
const MAX_STEP_TOKENS: usize = 512;
/// Cells beyond which more are of no use by default.
const DEFAULT_MAX_CELLS: usize = 16_384;
/// Seconds that it takes to pass by a cell that one must not look at, as measured on a current x86-64 core.
const SECONDS_PER_MASKED_CELL: f64 = 2.5e-9;

/// A model that is loaded and tuned.
pub struct Engine {
    settings: Settings,
    model: Arc<Model>,
    template: ChatTemplate,
    tuning: Tuning,
    /// Whether the tuning is a new one.
    pub tuned_now: bool,
}

impl Engine {
    /// Loads a model, and tunes it if this machine has not seen it yet, or `again`.
    pub fn load(settings: Settings, again: bool, progress: SharedProgress) -> Result<Self, EngineError> {
        let report = progress.clone();
        let loading = move |done| lock(&report).loading(done);
        let model = Arc::new(Model::load(&settings.model, loading)?);
        let template = ChatTemplate::new(model.clone())?;
        let tuned = tuning::tuning(&model, &settings.model, &settings.data_dir, again, &mut *lock(&progress));
        let (tuning, tuned_now) =
            tuned.map_err(|error| EngineError::Tuning(settings.data_dir.display().to_string(), error))?;
        Ok(Self { settings, model, template, tuning, tuned_now })
    }

    /// The settings that are in force.
    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// What the model's makers call it.
    pub fn name(&self) -> String {
        self.model.name()
    }

    /// Tokens that a conversation may have.
    pub fn context(&self) -> usize {
        self.model.context().min(self.cells())
    }

    /// Cells of the KV cache.
    pub fn cells(&self) -> usize {
        let wanted = self.settings.cells.unwrap_or_else(|| {
            let context = self.model.context();
            // A quarter of the memory that is free, but room for one whole conversation in any case that can be.
            let affordable = free_memory() / 4 / self.model.cell_bytes().max(1);
            affordable.clamp(context.min(4096), DEFAULT_MAX_CELLS.max(context))
        });
        wanted.next_multiple_of(256)
    }

    /// The two halves that make it serve: a door for requests, and the work behind it.
    pub fn split(self) -> (Frontend, DecodeLoop) {
        let (inbox, requests) = mpsc::channel();
        let stats = Arc::new(Stats::default());
        let limits = self.limits();
        let api = HttpApi {
            name: self.name(),
            inbox,
            stats: stats.clone(),
            context: self.context(),
            cells: limits.cells,
            queue_timeout: self.settings.queue_timeout,
            completed: 0.into(),
            template: self.template,
        };
        (Frontend(Arc::new(api)), DecodeLoop { model: self.model, tuning: self.tuning, limits, requests, stats })
    }

    fn limits(&self) -> Limits {
        let seconds_per_token = 1.0 / self.tuning.speed.prompt;
        let seconds_per_cell = self.model.heads_per_cell() as f64 * SECONDS_PER_MASKED_CELL;
        Limits {
            cells: self.cells(),
            sequences: MAX_SEQUENCES,
            max_running: self.settings.max_running.clamp(1, usize::from(MAX_SEQUENCES)),
            max_queued: self.settings.max_queued,
            max_step_tokens: MAX_STEP_TOKENS,
            // Keeping a cell for so many tokens costs as much as computing it again.
            max_prefix_ttl: (seconds_per_token / seconds_per_cell).clamp(64.0, 1e6),
        }
    }
}

/// Where requests come in.
pub struct Frontend(Arc<HttpApi>);

impl Frontend {
    /// Takes requests until it is dropped; then what runs is given up.
    pub async fn serve(self, listener: Listener) {
        loop {
            match listener.accept().await {
                Ok(stream) => drop(tokio::spawn(self.0.clone().serve(stream))),
                // Out of files, most likely: those that are open will be closed.
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }
}

/// What is done for the requests.
pub struct DecodeLoop {
    model: Arc<Model>,
    tuning: Tuning,
    limits: Limits,
    requests: mpsc::Receiver<Message>,
    stats: Arc<Stats>,
}

impl DecodeLoop {
    /// Works until the door is gone.
    ///
    /// It must be the thread that loaded the model. Every thread that computes gets helpers of its own, and the library
    /// for that (libgomp) lets all of them sleep at each turn once there are more of them than CPUs: decoding one
    /// sequence then takes twice as long.
    pub fn run(self) -> Result<(), EngineError> {
        let Self { model, tuning: Tuning { choice, speed, .. }, limits, requests, stats } = self;
        let shape = Shape { cells: limits.cells + 256, sequences: limits.sequences + 1, step: limits.max_step_tokens };
        let worker = Worker::new(&model, model.decoder(shape, choice)?, limits, requests, stats, 1.0 / speed.prompt);
        worker.run().map_err(|error| EngineError::Decode(error.to_string()))
    }
}

fn free_memory() -> usize {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<usize>().ok());
    kilobytes.unwrap_or(4 << 20) * 1024
}

fn lock(progress: &SharedProgress) -> MutexGuard<'_, dyn Progress + Send + 'static> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}
