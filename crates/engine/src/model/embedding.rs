//! A model that turns a text into a vector. Its file chooses the pooling: mean of all tokens, first or last token.

use std::num::NonZeroU32;
use std::path::Path;

use kernels::{Attention, Changes, Products, WeightsGuard};
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;

use super::{DecodeError, ModelError, backend, name_of};
use crate::tuning::cpus;

/// Passages have a few hundred tokens. Longer texts are shortened.
const MAX_TOKENS: usize = 2048;

pub(crate) struct EmbeddingModel {
    llama: LlamaModel,
    /// Dropped after the model.
    _weights: WeightsGuard,
    file: String,
}

impl EmbeddingModel {
    pub(crate) fn load(path: &Path) -> Result<Self, ModelError> {
        let file = path.display().to_string();
        std::fs::File::open(path).map_err(|error| ModelError::Unreadable(file.clone(), error))?;
        let params = LlamaModelParams::default().with_n_gpu_layers(0);
        let llama = LlamaModel::load_from_file(backend()?, path, &params);
        let llama = llama.map_err(|_| ModelError::NotLoadable(file.clone()))?;
        Ok(Self { llama, _weights: WeightsGuard::new(), file })
    }

    pub(crate) fn name(&self) -> String {
        name_of(&self.llama, &self.file)
    }

    /// Fails if the model makes no vectors.
    pub(crate) fn embedder(&self) -> Result<TextEmbedder<'_>, ModelError> {
        let max_tokens = MAX_TOKENS.min(self.llama.n_ctx_train() as usize).max(8);
        let size = u32::try_from(max_tokens).unwrap_or(u32::MAX);
        let threads = i32::try_from(cpus()).unwrap_or(i32::MAX);
        let changes = Changes { attention: Attention::Library, products: Products::Own, max_threads: None };
        let _ = kernels::change(changes); // without the hook the library's kernels compute
        let params = LlamaContextParams::default()
            .with_n_ctx(NonZeroU32::new(size))
            // A text is one batch, because its tokens may attend to later ones.
            .with_n_batch(size)
            .with_n_ubatch(size)
            .with_n_threads(threads)
            .with_n_threads_batch(threads)
            .with_embeddings(true)
            .with_no_perf(true);
        let no_memory = || ModelError::NoMemory(self.file.clone(), max_tokens);
        let context = self.llama.new_context(backend()?, params).map_err(|_| no_memory())?;
        let mut embedder = TextEmbedder { model: self, context, batch: LlamaBatch::new(max_tokens, 1), max_tokens };
        match embedder.embed("text") {
            Ok(_) => Ok(embedder),
            Err(error) => Err(ModelError::NoVectors(self.file.clone(), error)),
        }
    }
}

pub(crate) struct TextEmbedder<'a> {
    model: &'a EmbeddingModel,
    context: LlamaContext<'a>,
    batch: LlamaBatch<'static>,
    max_tokens: usize,
}

impl TextEmbedder<'_> {
    /// Adds the tokens that the model puts around a text. Control tokens within the text are treated as text.
    pub(crate) fn embed(&mut self, text: &str) -> Result<Vec<f32>, DecodeError> {
        let failed = |error: &dyn std::fmt::Display| DecodeError(error.to_string());
        let tokens = shortened(self.model.llama.vocab().tokenize(text.as_bytes(), true, false), self.max_tokens);
        self.batch.clear();
        for (position, token) in (0..).zip(tokens) {
            self.batch.add(token, position, &[0], true).map_err(|error| failed(&error))?;
        }
        self.context.clear_kv_cache();
        self.context.decode(&mut self.batch).map_err(|error| failed(&error))?;
        let vector = self.context.embeddings_seq_ith(0).map_err(|error| failed(&error))?.to_vec();
        match vector.iter().all(|number| number.is_finite()) {
            true => Ok(vector),
            false => Err(failed(&"the vector is not finite")),
        }
    }
}

/// Keeps the last token, because the model may take the vector from it.
fn shortened(mut tokens: Vec<LlamaToken>, max: usize) -> Vec<LlamaToken> {
    if tokens.len() > max {
        tokens.drain(max - 1..tokens.len() - 1);
    }
    tokens
}
