//! The embedded runtime on llama.cpp.
//!
//! `http_api` speaks HTTP, `tokenizer` is the thread that turns conversations into tokens with `template` and `markup`,
//! `worker` the one that owns the context. `model` is the only module that knows llama.cpp; `tuning` finds the fastest
//! settings for a machine by `trial`s, `weights` the form of the model. All decisions are pure: `turns` says whose prompt is tokenized next, `queue` which request
//! starts next, `scheduler` plans the next step, `cache` knows which sequence holds which cells, `sampler` draws tokens.

mod cache;
#[cfg(test)]
mod cells;
mod clock;
#[cfg(test)]
mod fairness;
#[cfg(test)]
mod fuzz;
mod gpu;
mod http_api;
mod listen;
mod markup;
mod model;
mod perplexity;
mod queue;
mod sampler;
mod scheduler;
mod template;
mod text;
mod threads;
mod tokenizer;
mod trial;
mod tuning;
mod turns;
mod weights;
mod worker;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;

pub use crate::gpu::{Card, GpuChoice, Placement};
use crate::http_api::HttpApi;
pub use crate::listen::{Address, Listener};
pub use crate::model::{DecodeError, ModelError};
use crate::model::{Model, Shape};
pub use crate::perplexity::PerplexityError;
use crate::scheduler::Limits;
use crate::template::ChatTemplate;
use crate::threads::Threads;
use crate::tokenizer::Tokenizer;
pub use crate::tuning::{DecoderSettings, KvType, NoSpeed, Speed, Trial, Tuning};
use crate::tuning::{Key, Options, TuningFile};
use crate::weights::Converted;
pub use crate::weights::WeightsChoice;
use crate::worker::{Ended, Message, Patience, Stats, Worker};
pub use kernels::Attention;

#[derive(Debug, Clone)]
pub struct Settings {
    /// A GGUF file.
    pub model: PathBuf,
    /// Where tuning results are stored.
    pub data_dir: PathBuf,
    /// Cells of the KV cache. By default as many as are useful and fit into memory.
    pub cells: Option<usize>,
    /// By default as many as the CPUs or GPUs compute well together.
    pub max_running: Option<usize>,
    pub max_queued: usize,
    /// How long a request may be queued.
    pub queue_timeout: Duration,
    pub attention: AttentionChoice,
    pub weights: WeightsChoice,
    pub gpu: GpuChoice,
}

impl Settings {
    fn options(&self, placement: Option<&Placement>) -> Options {
        Options {
            library_attention_only: self.attention == AttentionChoice::Library,
            weights: self.weights,
            gpus: placement.map(Placement::kind),
        }
    }
}

/// Which kernel computes attention on CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionChoice {
    /// The fastest on this machine.
    Auto,
    /// llama.cpp's own.
    Library,
}

/// Reports what a person waits for while the engine starts.
pub trait Progress {
    /// The loaded part of the model, from 0 to 1.
    fn loading(&mut self, done: f32);
    /// A trial begins: `done` of `all` have been timed.
    fn trying(&mut self, done: usize, all: usize);
    fn tried(&mut self, trial: &Trial);
    /// Whether to give up.
    fn is_interrupted(&self) -> bool {
        false
    }
}

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("the tuning cannot be stored in {0}: {1}")]
    Tuning(String, #[source] std::io::Error),
    #[error("the weights cannot be converted: {0}")]
    Weights(#[source] std::io::Error),
    #[error("the tuning was interrupted")]
    Interrupted,
    #[error("a thread cannot be started: {0}")]
    Thread(#[from] std::io::Error),
    #[error("the model has stopped: {0}")]
    Decode(String),
}

/// Sequences of the context for running and finished requests. One more is used to check that it decodes.
const MAX_SEQUENCES: u16 = 127;
const MAX_SEQUENCES_ON_GPU: u16 = 255;
const DEFAULT_RUNNING: usize = 24;
const DEFAULT_RUNNING_ON_GPU: usize = 128;
const MAX_STEP_TOKENS: usize = 512;
/// More cells than this are of no use by default.
const DEFAULT_MAX_CELLS: usize = 16_384;
/// What a cell of another sequence costs for each token that passes it by, as measured on a current x86-64 core: with our
/// attention for the mask and for each head of the cache, with the library's for each head. A GPU's is an estimate.
const SECONDS_PER_MASK_ENTRY: f64 = 1e-9;
const SECONDS_PER_HIDDEN_CELL: f64 = 0.05e-9;
const SECONDS_PER_HIDDEN_CELL_OF_LIBRARY: f64 = 2.5e-9;
const SECONDS_PER_HIDDEN_CELL_ON_GPU: f64 = 0.001e-9;

/// A loaded and tuned model.
pub struct Engine {
    settings: Settings,
    placement: Option<Placement>,
    model: Arc<Model>,
    template: ChatTemplate,
    tuning: Tuning,
    /// Whether this start did the tuning.
    pub tuned_now: bool,
}

impl Engine {
    /// Loads a model. Tunes it if there is no tuning for it and this machine yet, or if `again` is set.
    pub fn load(
        settings: Settings,
        again: bool,
        progress: impl Progress + Send + 'static,
    ) -> Result<Self, EngineError> {
        let progress = Arc::new(Mutex::new(progress));
        if let Some(placement) = placement(&settings)? {
            match Self::load_to(settings.clone(), Some(placement), again, &progress) {
                Err(EngineError::Model(reason @ (ModelError::NoMemory(..) | ModelError::NotLoadable(..)))) => {
                    tracing::warn!(%reason, "the GPU is not used");
                }
                loaded => return loaded,
            }
        }
        Self::load_to(settings, None, again, &progress)
    }

    fn load_to(
        settings: Settings,
        placement: Option<Placement>,
        again: bool,
        progress: &Arc<Mutex<impl Progress + Send + 'static>>,
    ) -> Result<Self, EngineError> {
        let load = |path: &Path| {
            let report = progress.clone();
            Model::load(path, placement.as_ref(), move |done| report.lock().loading(done)).map(Arc::new)
        };
        let unwritable = |error| EngineError::Tuning(settings.data_dir.display().to_string(), error);
        let mut file = TuningFile::read(&settings.data_dir);
        let key = match file.key(&settings.model, settings.options(placement.as_ref())) {
            Ok(key) => key,
            Err(error) => return Err(ModelError::Unreadable(settings.model.display().to_string(), error).into()),
        };
        let kept =
            file.find(&key).filter(|kept| !again && kept.copy.as_ref().is_none_or(Converted::is_intact)).cloned();
        let tuned_now = kept.is_none();
        let (model, tuning) = match kept {
            Some(tuning) => {
                let path = tuning.copy.as_ref().map_or(&settings.model, |copy| &copy.path);
                (load(path)?, tuning)
            }
            None => {
                let (model, tuning) = tune(&settings, key, &load, progress)?;
                file.store(tuning.clone()).map_err(unwritable)?;
                (model, tuning)
            }
        };
        let template = ChatTemplate::new(model.clone())?;
        let engine = Self { settings, placement, model, template, tuning, tuned_now };
        if engine.placement.is_some() {
            engine.model.decoder(engine.limits().shape(), engine.tuning.choice)?; // while CPUs can still take over
        }
        Ok(engine)
    }

    /// Which GPUs compute what, if any do.
    pub fn placement(&self) -> Option<&Placement> {
        self.placement.as_ref()
    }

    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// How well the model predicts a text; less is better.
    pub fn perplexity(&self, text: &str) -> Result<f64, PerplexityError> {
        perplexity::perplexity(&self.model, self.tuning.choice, text)
    }

    /// The name in the model's metadata, or else the file's.
    pub fn name(&self) -> String {
        self.model.name()
    }

    /// Tokens that a prompt and its completion may have together.
    pub fn context(&self) -> usize {
        self.model.context().min(self.cells())
    }

    /// The size of the KV cache.
    pub fn cells(&self) -> usize {
        let fits_on_gpu = self.placement.as_ref().and_then(|placement| placement.max_cells);
        let wanted = self.settings.cells.or(fits_on_gpu).unwrap_or_else(|| {
            let context = self.model.context();
            // A quarter of the free memory, but at least enough for one whole conversation of up to 4,096 tokens.
            let affordable = free_memory() / 4 / self.model.cell_bytes().max(1);
            affordable.clamp(context.min(4096), DEFAULT_MAX_CELLS.max(context))
        });
        wanted.next_multiple_of(256)
    }

    /// The two halves of a serving engine. Each runs on a thread of its own; the tokenizer's thread is started here.
    pub fn split(self) -> Result<(Frontend, DecodeLoop), EngineError> {
        let stats = Arc::new(Stats::default());
        stats.threads.store(self.tuning.choice.threads, Relaxed);
        let (inbox, requests) = mpsc::channel();
        let limits = self.limits();
        let (context, template) = (self.context(), Arc::new(self.template));
        let tokenizer = Tokenizer::start(template.clone(), context, limits.max_queued, inbox.clone(), stats.clone())?;
        let api = HttpApi {
            name: self.model.name(),
            template,
            tokenizer,
            inbox,
            stats: stats.clone(),
            context,
            cells: limits.cells,
            placement: self.placement,
            queue_timeout: self.settings.queue_timeout,
            completed: 0.into(),
        };
        let (settings, model, tuning) = (self.settings, self.model, self.tuning);
        let decode_loop = DecodeLoop { settings, model, tuning, limits, requests, stats };
        Ok((Frontend(Arc::new(api)), decode_loop))
    }

    fn limits(&self) -> Limits {
        let seconds_per_token = 1.0 / self.tuning.speed.prompt;
        let seconds_per_head = match self.tuning.choice.attention {
            _ if self.model.is_on_gpu() => SECONDS_PER_HIDDEN_CELL_ON_GPU,
            Attention::Own => SECONDS_PER_HIDDEN_CELL,
            Attention::Library => SECONDS_PER_HIDDEN_CELL_OF_LIBRARY,
        };
        let seconds_per_cell = SECONDS_PER_MASK_ENTRY + self.model.heads_per_cell() as f64 * seconds_per_head;
        let on_gpu = self.placement.as_ref().filter(|placement| placement.is_whole());
        let (sequences, running, max_step_tokens) = match on_gpu {
            Some(placement) => (MAX_SEQUENCES_ON_GPU, DEFAULT_RUNNING_ON_GPU, placement.step),
            None => (MAX_SEQUENCES, DEFAULT_RUNNING, MAX_STEP_TOKENS),
        };
        Limits {
            cells: self.cells(),
            sequences,
            max_running: self.settings.max_running.unwrap_or(running).clamp(1, usize::from(sequences)),
            max_queued: self.settings.max_queued,
            max_step_tokens,
            // After so many tokens, keeping a cell has cost as much as computing it again.
            max_prefix_ttl: (seconds_per_token / seconds_per_cell).clamp(64.0, 1e6),
        }
    }
}

impl Limits {
    /// One sequence more than the scheduler uses, and room for it.
    fn shape(&self) -> Shape {
        Shape { cells: self.cells + 256, sequences: self.sequences + 1, step: self.max_step_tokens }
    }
}

/// Looks for GPUs, and says why if one is there but not used.
fn placement(settings: &Settings) -> Result<Option<Placement>, ModelError> {
    if settings.gpu == GpuChoice::Off {
        return Ok(None);
    }
    model::backend()?; // the CPU's kernels are needed in any case
    for refused in kernels::load_for_gpus() {
        tracing::warn!("{refused}");
    }
    let cards = gpu::cards();
    if cards.is_empty() && !matches!(settings.gpu, GpuChoice::Device(_)) {
        return Ok(None);
    }
    Ok(gpu::place(&settings.gpu, &cards, Model::size(&settings.model)?).unwrap_or_else(|reason| {
        tracing::warn!("the CPU computes: {reason}");
        None
    }))
}

/// Tunes a model, and tries its weights in another form where that may be faster. Returns what is to be used.
fn tune(
    settings: &Settings,
    key: Key,
    load: &dyn Fn(&Path) -> Result<Arc<Model>, ModelError>,
    progress: &Mutex<impl Progress>,
) -> Result<(Arc<Model>, Tuning), EngineError> {
    if key.options().weights == WeightsChoice::Q8_0 {
        let copy = Converted::make(&settings.model).map_err(EngineError::Weights)?;
        let model = load(&copy.path)?;
        let tuning = tuning::tune(&model, key, &mut *progress.lock()).ok_or(EngineError::Interrupted)?;
        return Ok((model, tuning.with_copy(Some(copy))));
    }
    let model = load(&settings.model)?;
    let tuning = tuning::tune(&model, key, &mut *progress.lock()).ok_or(EngineError::Interrupted)?;
    if tuning.key().options().weights == WeightsChoice::File {
        return Ok((model, tuning));
    }
    let copy = match Converted::make(&settings.model) {
        Ok(copy) => copy,
        Err(error) => {
            tracing::warn!(%error, "the weights were not tried in another form"); // as in a folder that is read-only
            return Ok((model, tuning));
        }
    };
    let copied = load(&copy.path);
    match copied.map(|copied| (tuning::with_faster(&copied, &tuning, &mut *progress.lock()), copied)) {
        Ok((Some(faster), copied)) => Ok((copied, faster.with_copy(Some(copy)))),
        _ => {
            copy.remove();
            Ok((model, tuning))
        }
    }
}

/// Accepts connections and passes requests on to the `DecodeLoop`.
pub struct Frontend(Arc<HttpApi>);

impl Frontend {
    /// Serves until it is dropped. Dropping it gives up running requests.
    pub async fn serve(self, listener: Listener) {
        loop {
            match listener.accept().await {
                Ok(stream) => drop(tokio::spawn(self.0.clone().serve(stream))),
                // Most likely out of file descriptors, of which some will be closed soon.
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }
}

/// Computes all requests, on the thread that calls `run`.
pub struct DecodeLoop {
    settings: Settings,
    model: Arc<Model>,
    tuning: Tuning,
    limits: Limits,
    requests: mpsc::Receiver<Message>,
    stats: Arc<Stats>,
}

impl DecodeLoop {
    /// Runs until the frontend is dropped.
    ///
    /// Must be called on the thread that loaded the model. libgomp starts worker threads for every thread that
    /// computes, and puts all of them to sleep between steps once there are more of them than CPUs. Decoding one
    /// sequence then takes twice as long.
    pub fn run(mut self) -> Result<(), EngineError> {
        let (mut requests, mut waiting) = (self.requests, None);
        let mut patience = if self.tuning.quiet { Patience::Endless } else { Patience::Quiet(MIN_QUIET) };
        loop {
            let Tuning { choice, speed, .. } = self.tuning;
            let decoder = self.model.decoder(self.limits.shape(), choice)?;
            let threads = Threads::new(choice.threads);
            let mut worker =
                Worker::new(&self.model, decoder, threads, self.limits, requests, self.stats.clone(), speed);
            waiting.into_iter().for_each(|message| worker.receive(message));
            requests = match worker.run(patience).map_err(|error| EngineError::Decode(error.to_string()))? {
                Ended::EverySenderIsDropped => return Ok(()),
                Ended::MachineIsQuiet(requests) => requests,
            };
            let mut progress = UntilRequested { requests: &requests, first: RefCell::new(None) };
            let tuned = tuning::tune(&self.model, self.tuning.key().clone(), &mut progress);
            patience = match (&tuned, patience) {
                // Whoever interrupted it had to wait for a moment: that must not happen time and again.
                (None, Patience::Quiet(time)) => Patience::Quiet((2 * time).min(MAX_QUIET)),
                // Once is enough, even if the figures are no better: on some virtual machines they never are.
                _ => Patience::Endless,
            };
            if let Some(tuning) = tuned {
                tracing::info!(settings = %tuning.choice, "tuned again, because the machine was busy the first time");
                self.tuning = tuning.with_copy(self.tuning.copy.take());
                if let Err(error) = TuningFile::read(&self.settings.data_dir).store(self.tuning.clone()) {
                    tracing::warn!(%error, "the tuning was not stored");
                }
            }
            waiting = progress.first.into_inner();
        }
    }
}

/// How long nothing was requested before a distrusted tuning is done again.
const MIN_QUIET: Duration = Duration::from_secs(5);
const MAX_QUIET: Duration = Duration::from_secs(600);

/// Tunes without a word, until somebody requests something.
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

fn free_memory() -> usize {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<usize>().ok());
    kilobytes.unwrap_or(4 << 20) * 1024
}
