//! The model: its vocabulary, its template, and a context to decode with. Only this module, its submodule `embedding` and
//! `gpu` know llama.cpp.

pub(crate) mod embedding;

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::OnceLock;

use llama_cpp_2::LogOptions;
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::{KvCacheType, LlamaContextParams};
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token_type::LlamaTokenAttr;

use kernels::{Attention, Changes, ModelFile, NoKernels, Products, WeightsGuard};

use crate::cache::{CellOp, Sequence, Token};
use crate::gpu::{ModelSize, Placement};
use crate::markup::ControlToken;
use crate::memory::free_memory;
use crate::scheduler::BatchEntry;
use crate::tuning::{DecoderSettings, KvType, cpus};

/// Why a model file cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("{0} cannot be read: {1}")]
    Unreadable(String, #[source] std::io::Error),
    #[error("the engine cannot compute: {0}; keep the folders that came with the program beside it")]
    NoKernels(#[from] NoKernels),
    #[error(
        "{0} is not a model that can be loaded: it is damaged, or of an architecture that this llama.cpp does not know \
         (see its messages in the log)"
    )]
    NotLoadable(String),
    #[error("{0} has no chat template, so the format of its conversations is unknown; use an instruct model")]
    NoTemplate(String),
    #[error("the chat template of {0} cannot be used: {1}")]
    BadTemplate(String, String),
    #[error("{0} is an unsupported kind of model ({1}); only decoder-only transformers are supported")]
    OtherKind(String, &'static str),
    #[error("{0} cannot be served: its KV cache cannot be shared or released in part ({1})")]
    NoCells(String, #[source] DecodeError),
    #[error("{0} is not an embedding model: it makes no vectors ({1})")]
    NoVectors(String, #[source] DecodeError),
    #[error("there is not enough memory for {0} with {1} cells of context")]
    NoMemory(String, usize),
}

/// llama.cpp's number for "always".
const FLASH_ATTENTION_ENABLED: i32 = 1;

pub(crate) struct Model {
    llama: LlamaModel,
    /// Dropped after the model.
    _weights: WeightsGuard,
    /// For error messages.
    pub(crate) file: String,
    /// The size of a cell in all layers, at 16 bits per number.
    pub(crate) cell_bytes: usize,
    /// Whether all layers are on GPUs, so that the CPUs only sample.
    pub(crate) is_on_gpu: bool,
    /// Whether some layers see only the last tokens.
    has_window: bool,
    /// Whether the weights in our form fit into memory.
    has_room: bool,
}

/// llama.cpp's limit.
const MAX_SEQUENCES: u16 = 256;

impl Model {
    /// `progress` is called with the loaded part, from 0 to 1.
    pub(crate) fn load(
        path: &Path,
        placement: Option<&Placement>,
        mut progress: impl FnMut(f32) + 'static,
    ) -> Result<Self, ModelError> {
        let report = move |done| {
            progress(done);
            true
        };
        let params = LlamaModelParams::default().with_progress_callback(report);
        let (layers, devices) = placement.map_or((0, Vec::new()), |placed| (placed.layers, placed.indices()));
        let params = params.with_n_gpu_layers(layers);
        let params = params.with_devices(&devices).map_err(|_| ModelError::NotLoadable(path.display().to_string()))?;
        let model = Self::with_params(path, &params)?;
        Ok(Self { is_on_gpu: placement.is_some_and(Placement::is_whole), ..model })
    }

    /// The properties of a model that its placement depends on, before it is loaded.
    pub(crate) fn size(path: &Path) -> Result<ModelSize, ModelError> {
        let model = Self::with_params(path, &LlamaModelParams::default().with_n_gpu_layers(0).with_no_alloc(true))?;
        let bytes = std::fs::metadata(path).map_err(|error| ModelError::Unreadable(model.file.clone(), error))?.len();
        Ok(ModelSize {
            bytes,
            parameters: model.llama.n_params(),
            layers: model.llama.n_layer(),
            cell_bytes: model.cell_bytes as u64,
            context: model.context(),
            vocabulary: usize::try_from(model.llama.n_vocab()).unwrap_or(0),
        })
    }

    fn with_params(path: &Path, params: &LlamaModelParams) -> Result<Self, ModelError> {
        let file = path.display().to_string();
        std::fs::File::open(path).map_err(|error| ModelError::Unreadable(file.clone(), error))?;
        let llama = LlamaModel::load_from_file(backend()?, path, params);
        let llama = llama.map_err(|_| ModelError::NotLoadable(file.clone()))?;
        let kind = kernels::model_kind(&llama);
        let kind_name = match () {
            () if kind.is_diffusion => Some("diffusion"),
            () if kind.has_encoder => Some("encoder-decoder"),
            () if llama.is_recurrent() || llama.is_hybrid() => Some("recurrent"),
            () if llama.n_head() == 0 => Some("without heads"),
            () if llama.n_ctx_train() == 0 => Some("without a context"),
            () => None,
        };
        if let Some(kind) = kind_name {
            return Err(ModelError::OtherKind(file, kind));
        }
        let heads = llama.n_head().max(1) as u64;
        let estimate = || 2 * u64::from(llama.n_layer() * llama.n_head_kv()) * llama.n_embd().max(0) as u64 / heads;
        let tensors = ModelFile::read(path);
        let numbers = tensors.numbers_per_cell().unwrap_or_else(estimate);
        let cell_bytes = usize::try_from(2 * numbers).unwrap_or(usize::MAX);
        // The kernel can drop the pages of the file, but not these.
        let has_room = tensors.laid_out_bytes() <= free_memory() / 4 * 3;
        let (_weights, has_window) = (WeightsGuard::new(), kind.has_window);
        Ok(Self { llama, _weights, file, cell_bytes, is_on_gpu: false, has_window, has_room })
    }

    /// The name in its metadata, or else the file's.
    pub(crate) fn name(&self) -> String {
        name_of(&self.llama, &self.file)
    }

    /// The context length that it was trained with, in tokens.
    pub(crate) fn context(&self) -> usize {
        self.llama.n_ctx_train() as usize
    }

    /// Tries the cell operations that serving needs, before a first tuning: two sequences share a beginning, and one is
    /// released in part.
    pub(crate) fn try_cells(&self) -> Result<(), ModelError> {
        let (attention, products) = (Attention::Library, Products::Library);
        let settings = DecoderSettings { kv: KvType::F16, attention, products, threads: cpus() };
        let mut decoder = self.decoder(Shape { cells: 256, sequences: 2, step: 8 }, settings)?;
        let release = |sequence, positions| CellOp::Release { sequence: Sequence(sequence), positions };
        let mut serve = || {
            decoder.decode(&[entry(0, 0), entry(0, 1), entry(0, 2)])?;
            decoder.apply(&[CellOp::Share { from: Sequence(0), to: Sequence(1), positions: 0..2 }])?;
            decoder.decode(&[entry(0, 3), entry(1, 2)])?;
            decoder.apply(&[release(0, 2..usize::MAX), release(1, 0..usize::MAX)])?;
            decoder.decode(&[entry(0, 2)])
        };
        serve().map_err(|error| ModelError::NoCells(self.file.clone(), error))
    }

    /// Lays the weights out now, instead of in the first step.
    pub(crate) fn lay_out(&self, settings: DecoderSettings) -> Result<(), ModelError> {
        let mut decoder = self.decoder(Shape { cells: 256, sequences: 1, step: 1 }, settings)?;
        decoder.decode(&[entry(0, 0)]).map_err(|error| ModelError::NoCells(self.file.clone(), error))
    }

    /// The maximum of sequences in a decoder.
    pub(crate) fn max_sequences(&self) -> u16 {
        if self.has_window { MAX_SEQUENCES / 2 } else { MAX_SEQUENCES }
    }

    /// The number of heads of all layers that read a cell for each token.
    pub(crate) fn heads_per_cell(&self) -> usize {
        self.llama.n_layer() as usize * self.llama.n_head() as usize
    }

    /// Multiplications of attention for a cell, as a fraction of those of all products for a token.
    pub(crate) fn attention_per_cell(&self) -> f64 {
        // Every number of the queries with one of a key, and every weight with a number of a value.
        let attention = 2 * self.llama.n_layer() as u64 * self.llama.n_embd().max(0) as u64;
        attention as f64 / self.llama.n_params().max(1) as f64
    }

    /// The source of its chat template.
    pub(crate) fn template(&self) -> Result<String, ModelError> {
        let template = self.llama.chat_template(None).ok().and_then(|template| template.to_string().ok());
        template.ok_or_else(|| ModelError::NoTemplate(self.file.clone()))
    }

    /// All tokens that are markup: control tokens, and user-defined tokens that the template contains.
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

    /// The token that a prompt must begin with, if any.
    pub(crate) fn first_token(&self) -> Option<Token> {
        let vocab = self.llama.vocab();
        (vocab.should_add_bos() && vocab.bos().0 >= 0).then(|| vocab.bos().0)
    }

    /// The texts of the BOS and EOS tokens.
    pub(crate) fn begin_and_end(&self) -> (String, String) {
        let vocab = self.llama.vocab();
        let written = |token: LlamaToken| match token.0 {
            ..0 => String::new(),
            _ => String::from_utf8_lossy(&vocab.token_to_piece(token, true, None)).into_owned(),
        };
        (written(vocab.bos()), written(vocab.eos()))
    }

    /// Whether texts can be tokenized in parts: true for byte-level BPE, which splits a text into words first. Other kinds
    /// put a space before each text.
    pub(crate) fn tokenizes_words(&self) -> bool {
        self.llama.meta_val_str("tokenizer.ggml.model").is_ok_and(|kind| kind == "gpt2")
    }

    /// The longest text that is one token, in bytes. `None` if there is no such bound.
    pub(crate) fn longest_token(&self) -> Option<usize> {
        let kind = self.llama.meta_val_str("tokenizer.ggml.model").ok()?;
        // Other kinds normalize a text first, and may leave out parts of it.
        if !["gpt2", "llama"].contains(&kind.as_str()) {
            return None;
        }
        let vocab = self.llama.vocab();
        let mut longest = 1;
        for token in vocab.tokens() {
            let attributes = vocab.attr(token);
            if attributes.contains(LlamaTokenAttr::LStrip) || attributes.contains(LlamaTokenAttr::RStrip) {
                return None; // includes any amount of white space
            }
            let bytes = vocab.token_to_piece(token, true, None);
            // Some vocabularies write spaces as U+2581, and a text may contain that character.
            let spaces = bytes.iter().filter(|byte| **byte == b' ').count();
            longest = longest.max(bytes.len() + 2 * spaces);
        }
        Some(longest)
    }

    /// Tokenizes text. Control tokens in it are treated as text.
    pub(crate) fn tokenize(&self, text: &str) -> impl Iterator<Item = Token> + use<> {
        self.llama.vocab().tokenize(text.as_bytes(), false, false).into_iter().map(|token| token.0)
    }

    /// Whether it is an end-of-generation token.
    pub(crate) fn is_end(&self, token: Token) -> bool {
        self.llama.vocab().is_eog(LlamaToken(token))
    }

    /// Appends the bytes of a token; those of a control token only with `with_control`.
    pub(crate) fn add_bytes(&self, token: Token, with_control: bool, bytes: &mut Vec<u8>) {
        self.llama.vocab().token_to_piece_into(LlamaToken(token), bytes, with_control, None);
    }

    pub(crate) fn decoder(&self, shape: Shape, choice: DecoderSettings) -> Result<Decoder<'_>, ModelError> {
        let kv = match choice.kv {
            KvType::F16 => KvCacheType::F16,
            KvType::Bf16 => KvCacheType::BF16,
        };
        let products = if self.has_room { choice.products } else { Products::Library };
        let choice = DecoderSettings { products, ..choice };
        // Without the hook the library's kernels compute, and only the context limits the threads.
        let _ = kernels::change(Changes { attention: choice.attention, products: choice.products, max_threads: None });
        let threads = i32::try_from(choice.threads).unwrap_or(i32::MAX);
        let twins = self.has_window.then_some(shape.sequences);
        let sequences = shape.sequences + twins.unwrap_or(0);
        // llama.cpp requires a batch that can hold an output of every sequence.
        let step = u32::try_from(shape.step).unwrap_or(u32::MAX).max(u32::from(sequences));
        let params = LlamaContextParams::default()
            .with_n_ctx(u32::try_from(shape.cells).ok().and_then(NonZeroU32::new))
            .with_n_batch(step)
            .with_n_ubatch(step)
            .with_n_seq_max(u32::from(sequences))
            // Sequences can share cells only in a unified cache.
            .with_kv_unified(true)
            // Keeps cells outside a sliding window, because another sequence may continue from there.
            .with_swa_full(true)
            .with_type_k(kv)
            .with_type_v(kv)
            .with_flash_attention_policy(FLASH_ATTENTION_ENABLED)
            // The second one applies to every batch of more than one token, so also to decoding.
            .with_n_threads(threads)
            .with_n_threads_batch(threads)
            .with_no_perf(true);
        let no_memory = || ModelError::NoMemory(self.file.clone(), shape.cells);
        let context = self.llama.new_context(backend()?, params).map_err(|_| no_memory())?;
        Ok(Decoder { context, batch: LlamaBatch::new(shape.step, 2), choice, twins })
    }
}

fn name_of(llama: &LlamaModel, file: &str) -> String {
    let name = llama.meta_val_str("general.name").ok().filter(|name| !name.trim().is_empty());
    name.unwrap_or_else(|| {
        let stem = Path::new(file).file_stem().map(|stem| stem.to_string_lossy().into_owned());
        stem.unwrap_or_else(|| file.to_owned())
    })
}

/// A token for a trial.
fn entry(sequence: u16, position: usize) -> BatchEntry {
    BatchEntry { token: 0, position, sequence: Sequence(sequence), output: true }
}

/// llama.cpp, started once for all models.
pub(crate) fn backend() -> Result<&'static LlamaBackend, NoKernels> {
    static BACKEND: OnceLock<Result<LlamaBackend, NoKernels>> = OnceLock::new();
    let backend = BACKEND.get_or_init(|| {
        llama_cpp_2::send_logs_to_tracing(LogOptions::default());
        kernels::load()?;
        Ok(LlamaBackend::init().expect("it is started nowhere else"))
    });
    backend.as_ref().map_err(Clone::clone)
}

/// The dimensions of a decoder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) cells: usize,
    pub(crate) sequences: u16,
    /// The maximum of tokens in a batch.
    pub(crate) step: usize,
}

pub(crate) struct Decoder<'a> {
    context: LlamaContext<'a>,
    batch: LlamaBatch<'static>,
    choice: DecoderSettings,
    /// The id of the first twin. With a sliding window every sequence has a twin that sees the same cells: the library
    /// reuses a cell once it has left the window of its only sequence, but another sequence may share it later.
    twins: Option<u16>,
}

/// The context rejected a batch, because of a bug or a hardware fault.
#[derive(Debug, thiserror::Error)]
#[error("the batch could not be decoded: {0}")]
pub struct DecodeError(String);

impl Decoder<'_> {
    /// From now on computes with at most `max` threads, and never more than the context has.
    pub(crate) fn limit_threads(&mut self, max: usize) {
        let changes =
            Changes { attention: self.choice.attention, products: self.choice.products, max_threads: Some(max) };
        let _ = kernels::change(changes); // see `Model::decoder`
    }

    pub(crate) fn apply(&mut self, ops: &[CellOp]) -> Result<(), DecodeError> {
        let failed = |what: &dyn std::fmt::Display| DecodeError(what.to_string());
        // `None` is an open end.
        let bound = |position: usize| u32::try_from(position).ok().filter(|position| *position < u32::MAX / 2);
        for op in ops {
            match op {
                CellOp::Share { from, to, positions } => {
                    let (start, end) = (bound(positions.start), bound(positions.end));
                    for to in self.ids(*to) {
                        let done = self.context.copy_kv_cache_seq(i32::from(from.0), to, start, end);
                        done.map_err(|error| failed(&error))?;
                    }
                }
                CellOp::Release { sequence, positions } => {
                    let (start, end) = (bound(positions.start), bound(positions.end));
                    for id in self.ids(*sequence) {
                        let done = self.context.clear_kv_cache_seq(u32::try_from(id).ok(), start, end);
                        if !done.map_err(|error| failed(&error))? {
                            return Err(failed(&"cells could not be released"));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Computes a batch. The logits of its outputs can be read until the next one.
    pub(crate) fn decode(&mut self, batch: &[BatchEntry]) -> Result<(), DecodeError> {
        self.batch.clear();
        for entry in batch {
            let position = i32::try_from(entry.position).map_err(|error| DecodeError(error.to_string()))?;
            let ids: Vec<i32> = self.ids(entry.sequence).collect();
            let added = self.batch.add(LlamaToken(entry.token), position, &ids, entry.output);
            added.map_err(|error| DecodeError(error.to_string()))?;
        }
        self.context.decode(&mut self.batch).map_err(|error| DecodeError(error.to_string()))?;
        self.context.synchronize();
        Ok(())
    }

    /// The logits of an entry of the last batch, which must have been an output.
    pub(crate) fn logits(&self, entry: usize) -> &[f32] {
        self.context.get_logits_ith(entry as i32)
    }

    /// The library's ids of a sequence: its own, and that of its twin.
    fn ids(&self, Sequence(id): Sequence) -> impl Iterator<Item = i32> + use<> {
        [Some(id), self.twins.map(|twins| twins + id)].into_iter().flatten().map(i32::from)
    }
}
