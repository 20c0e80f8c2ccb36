//! A model that is ready to serve, and its limits.

use std::sync::{Arc, mpsc};

use kernels::Attention;
use parking_lot::Mutex;
use wire::engine::Status;

use crate::decode_loop::DecodeLoop;
use crate::drafts::StepSeconds;
use crate::gpu::Placement;
use crate::http_api::{Api, HttpApi};
use crate::memory::free_memory;
use crate::model::{Model, Shape};
use crate::perplexity::{self, PerplexityError};
use crate::scheduler::Limits;
use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;
use crate::trial;
use crate::tuning::Tuning;
use crate::{EngineError, Frontend, Settings};

/// Sequences of the context for running and finished requests. One more is for decode checks.
const MAX_SEQUENCES: u16 = 127;
const MAX_SEQUENCES_ON_GPU: u16 = 255;
const DEFAULT_RUNNING: usize = 24;
const DEFAULT_RUNNING_ON_GPU: usize = 128;
const MAX_STEP_TOKENS: usize = 512;
/// More cells than this bring no benefit by default.
const DEFAULT_MAX_CELLS: usize = 16_384;
/// The cost of a cell of another sequence for each token that skips it, measured on a current x86-64 core: for its mask
/// entry, and for each head of the cache with our attention and with the library's.
const SECONDS_PER_MASK_ENTRY: f64 = 1e-9;
const SECONDS_PER_HIDDEN_CELL: f64 = 0.05e-9;
const SECONDS_PER_HIDDEN_CELL_OF_LIBRARY: f64 = 2.5e-9;
/// A GPU also computes attention for hidden cells, slower than products of weights by this factor (estimated from steps
/// on an H200).
const ATTENTION_ON_GPU: f64 = 1.5;

/// A loaded and tuned model.
pub struct Engine {
    pub(crate) settings: Settings,
    /// Which layers are on which GPUs; `None` without GPUs.
    pub placement: Option<Placement>,
    pub(crate) model: Arc<Model>,
    pub(crate) template: ChatTemplate,
    pub tuning: Tuning,
    /// Whether the model was tuned during this start.
    pub tuned_now: bool,
}

impl Engine {
    /// How well the model predicts a text; lower is better.
    pub fn perplexity(&self, text: &str) -> Result<f64, PerplexityError> {
        perplexity::perplexity(&self.model, self.tuning.choice, text)
    }

    /// Roles whose messages end by text alone in a prompt, as a list for people. `None` for most models.
    pub fn unmarked_roles(&self) -> Option<String> {
        let roles: Vec<_> = self.template.unmarked_roles.iter().map(|role| role.as_str()).collect();
        (!roles.is_empty()).then(|| roles.join(", "))
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
        let in_memory = || {
            let context = self.model.context();
            // A quarter of the free memory, but at least enough for one whole conversation of up to 4,096 tokens.
            let affordable = (free_memory() / 4) as usize / self.model.cell_bytes.max(1);
            affordable.clamp(context.min(4096), DEFAULT_MAX_CELLS.max(context))
        };
        let wanted = self.settings.cells.unwrap_or_else(|| match &self.placement {
            Some(placement) if placement.is_whole() => placement.max_cells,
            Some(placement) => placement.max_cells.min(in_memory()),
            None => in_memory(),
        });
        wanted.next_multiple_of(256)
    }

    /// The two halves of a serving engine, to be run on separate threads. Starts the tokenizer's thread.
    pub fn split(self) -> Result<(Frontend, DecodeLoop), EngineError> {
        let (inbox, requests) = mpsc::channel();
        let limits = self.limits();
        let context = self.context();
        let status = Arc::new(Mutex::new(Status {
            model: self.model.name(),
            context,
            unmarked_roles: self.unmarked_roles(),
            cells: limits.cells,
            threads: self.tuning.choice.threads,
            gpu_layers: self.placement.as_ref().map_or(0, |placement| placement.layers),
            gpu_memory: self.placement.as_ref().map_or(0, Placement::memory),
            ..Status::default()
        }));
        let template = Arc::new(self.template);
        let tokenizer = Tokenizer::start(template.clone(), context, limits.max_queued, inbox.clone(), status.clone())?;
        let api = HttpApi {
            name: self.model.name(),
            template,
            tokenizer,
            inbox,
            status: status.clone(),
            context,
            placement: self.placement,
            queue_timeout: self.settings.queue_timeout,
            completed: 0.into(),
        };
        let decode_loop = DecodeLoop { model: self.model, decoder: self.tuning.choice, limits, requests, status };
        Ok((Frontend(Arc::new(Api::Chat(api))), decode_loop))
    }

    pub(crate) fn limits(&self) -> Limits {
        let seconds_per_token = 1.0 / self.tuning.speed.prompt;
        let of_heads = |seconds: f64| SECONDS_PER_MASK_ENTRY + self.model.heads_per_cell() as f64 * seconds;
        let seconds_per_hidden_cell = match self.tuning.choice.attention {
            _ if self.model.is_on_gpu => ATTENTION_ON_GPU * self.model.attention_per_cell() * seconds_per_token,
            Attention::Own => of_heads(SECONDS_PER_HIDDEN_CELL),
            Attention::Library => of_heads(SECONDS_PER_HIDDEN_CELL_OF_LIBRARY),
        };
        let on_gpu = self.placement.as_ref().filter(|placement| placement.is_whole());
        let (sequences, running, max_step_tokens) = match on_gpu {
            Some(placement) => (MAX_SEQUENCES_ON_GPU, DEFAULT_RUNNING_ON_GPU, placement.step),
            None => (MAX_SEQUENCES, DEFAULT_RUNNING, MAX_STEP_TOKENS),
        };
        let sequences = sequences.min(self.model.max_sequences() - 1); // one is for decode checks
        Limits {
            cells: self.cells(),
            sequences,
            max_running: self.settings.max_running.unwrap_or(running).clamp(1, usize::from(sequences)),
            max_queued: self.settings.max_queued,
            max_step_tokens,
            pieces: self.tuning.pieces,
            seconds_per_prompt_token: seconds_per_token,
            // After this many tokens, keeping a cell has cost as much as computing it again.
            max_prefix_ttl: (seconds_per_token / seconds_per_hidden_cell).clamp(64.0, 1e6),
            seconds_per_hidden_cell,
            sharing: self.settings.sharing,
            step_seconds: self.step_seconds(),
        }
    }
}

impl Engine {
    /// From the tuning's measurements with one sequence and with several.
    fn step_seconds(&self) -> StepSeconds {
        let (speed, several) = (&self.tuning.speed, f64::from(trial::sequences(&self.model)));
        let (first, together) = (1.0 / speed.one, several / speed.together);
        StepSeconds { first, further: (together - first).max(0.0) / (several - 1.0) }
    }
}

impl Limits {
    /// One sequence more than the scheduler uses, and cells for it.
    pub(crate) fn shape(&self) -> Shape {
        Shape { cells: self.cells + 256, sequences: self.sequences + 1, step: self.max_step_tokens }
    }
}
