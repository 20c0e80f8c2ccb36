//! The model: its vocabulary, its template, and a context to decode with. The only place that knows llama.cpp.

use std::num::NonZeroU32;
use std::path::Path;

use llama_cpp_2::LogOptions;
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::{KvCacheType, LlamaContextParams};
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token_type::LlamaTokenAttr;

use crate::cache::{CellOp, Sequence, Token};
use crate::markup::ControlToken;
use crate::scheduler::BatchEntry;
use crate::tuning::{DecoderSettings, KvType};

/// Why a file cannot be served, as a sentence.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// Nothing there, or nothing to read.
    #[error("{0} cannot be read: {1}")]
    Unreadable(String, #[source] std::io::Error),
    /// llama.cpp refuses it.
    #[error(
        "{0} is not a model that can be loaded: it is damaged, or of an architecture that this llama.cpp does not know \
         (its own words are in the log)"
    )]
    NotLoadable(String),
    /// A base model, or a conversion that lost its template.
    #[error(
        "{0} has no chat template, so there is no telling how it wants a conversation written; use an instruct model"
    )]
    NoTemplate(String),
    /// A template that is none.
    #[error("the chat template of {0} cannot be used: {1}")]
    BadTemplate(String, String),
    /// Its state is not a list of cells.
    #[error("{0} is a recurrent model; only models with attention alone are supported")]
    Recurrent(String),
    /// No context could be made.
    #[error("there is not enough memory for {0} with {1} cells of context")]
    NoMemory(String, usize),
}

/// A loaded model.
pub(crate) struct Model {
    backend: LlamaBackend,
    llama: LlamaModel,
    /// The file's name, for sentences.
    file: String,
}

impl Model {
    /// Loads a model; `progress` hears how much is done, from 0 to 1.
    pub(crate) fn load(path: &Path, mut progress: impl FnMut(f32) + 'static) -> Result<Self, ModelError> {
        let file = path.display().to_string();
        std::fs::File::open(path).map_err(|error| ModelError::Unreadable(file.clone(), error))?;
        llama_cpp_2::send_logs_to_tracing(LogOptions::default());
        load_kernels();
        let backend = LlamaBackend::init().map_err(|_| ModelError::NotLoadable(file.clone()))?;
        let report = move |done| {
            progress(done);
            true
        };
        let params = LlamaModelParams::default().with_progress_callback(report);
        let llama = LlamaModel::load_from_file(&backend, path, &params);
        let llama = llama.map_err(|_| ModelError::NotLoadable(file.clone()))?;
        if llama.is_recurrent() || llama.is_hybrid() {
            return Err(ModelError::Recurrent(file));
        }
        Ok(Self { backend, llama, file })
    }

    /// What to call it in sentences.
    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    /// What its makers call it, or else its file's name.
    pub(crate) fn name(&self) -> String {
        let name = self.llama.meta_val_str("general.name").ok().filter(|name| !name.trim().is_empty());
        name.unwrap_or_else(|| {
            let stem = Path::new(&self.file).file_stem().map(|stem| stem.to_string_lossy().into_owned());
            stem.unwrap_or_else(|| self.file.clone())
        })
    }

    /// Tokens that it was trained to hold in mind.
    pub(crate) fn context(&self) -> usize {
        self.llama.n_ctx_train() as usize
    }

    /// Bytes of one cell, all layers together, in half precision.
    pub(crate) fn cell_bytes(&self) -> usize {
        let (layers, heads) = (self.llama.n_layer() as usize, self.llama.n_head().max(1) as usize);
        let head_size = self.llama.n_embd().max(0) as usize / heads;
        2 * 2 * layers * self.llama.n_head_kv() as usize * head_size
    }

    /// How many times a token looks at each cell.
    pub(crate) fn heads_per_cell(&self) -> usize {
        self.llama.n_layer() as usize * self.llama.n_head() as usize
    }

    /// The source of its chat template.
    pub(crate) fn template(&self) -> Result<String, ModelError> {
        let template = self.llama.chat_template(None).ok().and_then(|template| template.to_string().ok());
        template.ok_or_else(|| ModelError::NoTemplate(self.file.clone()))
    }

    /// Every token that is markup: control tokens, and whatever else the template writes as a token of its own.
    pub(crate) fn control_tokens(&self, template: &str) -> Vec<ControlToken> {
        let vocab = self.llama.vocab();
        let tokens = vocab.tokens().filter_map(|token| {
            let attributes = vocab.attr(token);
            let control = attributes.contains(LlamaTokenAttr::Control)
                || attributes.contains(LlamaTokenAttr::Unknown)
                || vocab.is_eog(token);
            let own = attributes.contains(LlamaTokenAttr::UserDefined);
            if !control && !own {
                return None;
            }
            let text = String::from_utf8(vocab.token_to_piece(token, true, None)).ok()?;
            let is_markup = !text.trim().is_empty() && (control || template.contains(&text));
            is_markup.then(|| ControlToken {
                text,
                token: token.0,
                strips_left: attributes.contains(LlamaTokenAttr::LStrip),
                strips_right: attributes.contains(LlamaTokenAttr::RStrip),
            })
        });
        tokens.collect()
    }

    /// The token that a prompt begins with, if the model wants one.
    pub(crate) fn first_token(&self) -> Option<Token> {
        let vocab = self.llama.vocab();
        (vocab.should_add_bos() && vocab.bos().0 >= 0).then(|| vocab.bos().0)
    }

    /// How the tokens for beginning and end are written.
    pub(crate) fn begin_and_end(&self) -> (String, String) {
        let vocab = self.llama.vocab();
        let written = |token: LlamaToken| match token.0 {
            ..0 => String::new(),
            _ => String::from_utf8_lossy(&vocab.token_to_piece(token, true, None)).into_owned(),
        };
        (written(vocab.bos()), written(vocab.eos()))
    }

    /// The tokens of a text in which nothing is markup.
    pub(crate) fn tokenize(&self, text: &str) -> impl Iterator<Item = Token> + use<> {
        self.llama.vocab().tokenize(text.as_bytes(), false, false).into_iter().map(|token| token.0)
    }

    /// Whether a token ends the text.
    pub(crate) fn is_end(&self, token: Token) -> bool {
        self.llama.vocab().is_eog(LlamaToken(token))
    }

    /// The bytes of a token; none for markup.
    pub(crate) fn add_bytes(&self, token: Token, bytes: &mut Vec<u8>) {
        self.llama.vocab().token_to_piece_into(LlamaToken(token), bytes, false, None);
    }

    /// Something to decode with.
    pub(crate) fn decoder(&self, shape: Shape, choice: DecoderSettings) -> Result<Decoder<'_>, ModelError> {
        let kv = match choice.kv {
            KvType::F16 => KvCacheType::F16,
            KvType::Bf16 => KvCacheType::BF16,
            KvType::Q8 => KvCacheType::Q8_0,
        };
        let threads = i32::try_from(choice.threads).unwrap_or(i32::MAX);
        // llama.cpp wants room for an output of every sequence.
        let step = u32::try_from(shape.step).unwrap_or(u32::MAX).max(u32::from(shape.sequences));
        let params = LlamaContextParams::default()
            .with_n_ctx(u32::try_from(shape.cells).ok().and_then(NonZeroU32::new))
            .with_n_batch(step)
            .with_n_ubatch(step)
            .with_n_seq_max(u32::from(shape.sequences))
            // One cache for all sequences: only so can they share cells.
            .with_kv_unified(true)
            // Cells outside a sliding window stay: another sequence may go on from there.
            .with_swa_full(true)
            .with_type_k(kv)
            .with_type_v(kv)
            .with_flash_attention_policy(i32::from(choice.flash_attention))
            // The second governs every batch of more than one token, decoding included.
            .with_n_threads(threads)
            .with_n_threads_batch(threads)
            .with_no_perf(true);
        let context = self.llama.new_context(&self.backend, params);
        let context = context.map_err(|_| ModelError::NoMemory(self.file.clone(), shape.cells))?;
        Ok(Decoder { context, batch: LlamaBatch::new(shape.step, 1) })
    }
}

/// Loads the libraries with the kernels for this CPU, where they are not part of the program.
fn load_kernels() {
    #[cfg(feature = "portable")]
    if let Some(folder) = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.join("kernels"))) {
        llama_cpp_2::llama_backend::load_backends_from_path(&folder);
    }
}

/// How large a decoder is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) cells: usize,
    pub(crate) sequences: u16,
    /// Tokens that are computed together at the most.
    pub(crate) step: usize,
}

/// A context with its cells.
pub(crate) struct Decoder<'a> {
    context: LlamaContext<'a>,
    batch: LlamaBatch<'static>,
}

/// The context refused a batch: a bug, or a broken machine.
#[derive(Debug, thiserror::Error)]
#[error("the batch could not be decoded: {0}")]
pub(crate) struct DecodeError(String);

impl Decoder<'_> {
    /// Does to the cells what the cache has decided.
    pub(crate) fn apply(&mut self, ops: &[CellOp]) -> Result<(), DecodeError> {
        let failed = |what: &dyn std::fmt::Display| DecodeError(what.to_string());
        // A position beyond all others means the end.
        let bound = |position: usize| u32::try_from(position).ok().filter(|position| *position < u32::MAX / 2);
        for op in ops {
            match op {
                CellOp::Share { from, to, positions } => {
                    let (start, end) = (bound(positions.start), bound(positions.end));
                    let done = self.context.copy_kv_cache_seq(id(*from), id(*to), start, end);
                    done.map_err(|error| failed(&error))?;
                }
                CellOp::Release { sequence, positions } => {
                    let (start, end) = (bound(positions.start), bound(positions.end));
                    let done = self.context.clear_kv_cache_seq(Some(u32::from(sequence.0)), start, end);
                    if !done.map_err(|error| failed(&error))? {
                        return Err(failed(&"cells could not be released"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Computes a batch; the logits of its outputs can be asked for until the next one.
    pub(crate) fn decode(&mut self, batch: &[BatchEntry]) -> Result<(), DecodeError> {
        self.batch.clear();
        for entry in batch {
            let position = i32::try_from(entry.position).map_err(|error| DecodeError(error.to_string()))?;
            let added = self.batch.add(LlamaToken(entry.token), position, &[id(entry.sequence)], entry.output);
            added.map_err(|error| DecodeError(error.to_string()))?;
        }
        self.context.decode(&mut self.batch).map_err(|error| DecodeError(error.to_string()))?;
        self.context.synchronize();
        Ok(())
    }

    /// The logits for what follows an entry of the last batch; it must have been an output.
    pub(crate) fn logits(&self, entry: usize) -> &[f32] {
        self.context.get_logits_ith(entry as i32)
    }
}

fn id(sequence: Sequence) -> i32 {
    i32::from(sequence.0)
}
