//! The embedded runtime on llama.cpp.
//!
//! `http_api` serves HTTP. `tokenizer` is the thread that turns conversations into tokens with `template` and `markup`.
//! `decode_loop` is the thread that computes, with a `worker` that owns the context. `model` and `gpu` are the only
//! modules that know llama.cpp. `tuning` finds the fastest settings for a machine by `trial`s, `weights` converts the
//! model to another form, and `loading` makes an `engine` of them.
//!
//! All decisions are pure: `turns` chooses the prompt that is tokenized next, `queue` the request that starts next,
//! `scheduler` plans the next step, `cache` knows which sequence holds which cells, `sampler` draws tokens.

mod cache;
#[cfg(test)]
mod cells;
mod clock;
mod decode_loop;
mod drafts;
mod embeddings;
mod engine;
#[cfg(test)]
mod fairness;
#[cfg(test)]
mod fuzz;
mod gpu;
mod http_api;
mod jinja;
mod listen;
mod loading;
mod markup;
mod memory;
mod model;
mod perplexity;
mod queue;
mod reasoning;
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
#[cfg(test)]
mod zoo;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use kernels::Attention;

pub use crate::decode_loop::DecodeLoop;
pub use crate::embeddings::EmbeddingEngine;
pub use crate::engine::Engine;
pub use crate::gpu::{Card, GpuChoice, Placement};
use crate::http_api::Api;
pub use crate::listen::{Address, Listener};
pub use crate::memory::free_memory;
pub use crate::model::{DecodeError, ModelError};
pub use crate::perplexity::PerplexityError;
pub use crate::scheduler::Sharing;
use crate::tuning::Options;
pub use crate::tuning::{DecoderSettings, KvType, NoSpeed, Speed, Trial, Tuning};
pub use crate::weights::WeightsChoice;

#[derive(Debug, Clone)]
pub struct Settings {
    /// A GGUF file.
    pub model: PathBuf,
    /// Where tuning results are stored.
    pub data_dir: PathBuf,
    /// Cells of the KV cache. By default as many as are useful and fit into memory.
    pub cells: Option<usize>,
    /// By default as many as the CPUs or GPUs compute efficiently together.
    pub max_running: Option<usize>,
    pub max_queued: usize,
    /// How long a request may be queued.
    pub queue_timeout: Duration,
    pub sharing: Sharing,
    pub kernels: KernelsChoice,
    pub weights: WeightsChoice,
    pub gpu: GpuChoice,
}

impl Settings {
    fn options(&self, placement: Option<&Placement>) -> Options {
        Options {
            library_only: self.kernels == KernelsChoice::Library,
            weights: match placement.and_then(|placement| placement.tried_form) {
                None if self.weights == WeightsChoice::Auto => WeightsChoice::File,
                _ => self.weights,
            },
            gpus: placement.map(Placement::kind),
        }
    }
}

/// Which kernels compute on CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelsChoice {
    /// The fastest on this machine.
    Auto,
    /// llama.cpp's own.
    Library,
}

/// Reports the progress of a start to a person.
pub trait Progress {
    /// The loaded part of the model, from 0 to 1.
    fn loading(&mut self, done: f32);
    /// A trial begins: `done` of `all` have been timed.
    fn trying(&mut self, done: usize, all: usize);
    fn tried(&mut self, trial: &Trial);
    /// The weights are being written in another form.
    fn converting(&mut self, bytes: u64);
}

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("the tuning cannot be stored in {0}: {1}")]
    Tuning(String, #[source] std::io::Error),
    #[error("the weights cannot be converted: {0}")]
    Weights(#[source] std::io::Error),
    #[error("a thread cannot be started: {0}")]
    Thread(#[from] std::io::Error),
    #[error("the model has stopped: {0}")]
    Decode(String),
}

/// Accepts connections and passes requests on to the `DecodeLoop`, or to an `EmbeddingEngine`.
pub struct Frontend(Arc<Api>);

impl Frontend {
    /// Serves until it is dropped. Dropping it cancels running requests.
    pub async fn serve(self, listener: Listener) {
        loop {
            match listener.accept().await {
                Ok(stream) => drop(tokio::spawn(http_api::serve(self.0.clone(), stream))),
                // Most likely out of file descriptors, of which some will be closed soon.
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }
}
