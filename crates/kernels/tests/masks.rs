//! What a token sees does not depend on who fills the mask: ours and the library's lead to the same logits, bit by bit.
#![allow(unsafe_code, reason = "models and contexts are made with the library's own functions")]

use std::ffi::{CString, c_char, c_void};
use std::path::Path;

use kernels::{Attention, Changes};
use llama_cpp_sys_2 as sys;
use proptest::prelude::*;

const TOKENS: i32 = 32;
const WIDTH: i64 = 32;
const HEADS: u32 = 2;
const SEQUENCES: i32 = 130; // more than fit into two words
const CELLS: u32 = 512;

/// What happens to the sequences of a cache.
#[derive(Debug, Clone)]
enum Action {
    /// Adds so many tokens to each of these sequences, in one batch.
    Decode(Vec<(i32, i32)>),
    /// The second gets the first so many cells of the first.
    Share(i32, i32, i32),
    /// Removes a sequence's cells from a position on.
    Shorten(i32, i32),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let sequence = || prop_oneof![0..4_i32, 60..70_i32, Just(SEQUENCES - 1)];
    let decode = prop::collection::vec((sequence(), 1..9_i32), 1..6).prop_map(Action::Decode);
    let share = (sequence(), sequence(), 1..30_i32).prop_map(|(from, to, cells)| Action::Share(from, to, cells));
    let shorten = (sequence(), 0..20_i32).prop_map(|(sequence, from)| Action::Shorten(sequence, from));
    prop::collection::vec(prop_oneof![4 => decode, 1 => share, 1 => shorten], 1..12)
}

#[test]
fn logits_are_the_same_whoever_fills_the_mask() {
    kernels::load().unwrap();
    // SAFETY: the function does nothing, and exists as long as the program.
    unsafe { sys::llama_log_set(Some(ignore), std::ptr::null_mut()) };
    assert_eq!(kernels::change(Changes { attention: Attention::Library, max_threads: None }), Ok(()));
    let file = std::env::temp_dir().join(format!("masks-{}.gguf", std::process::id()));
    write_model(&file);
    let model = Model::load(&file);
    std::fs::remove_file(&file).unwrap();
    let config = ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(actions in actions())| {
        let (mut own, mut library) = (model.context(), model.context());
        for action in actions {
            let ours = own.act(&action, Attention::Own);
            let theirs = library.act(&action, Attention::Library);
            prop_assert!(ours.iter().all(|logit| logit.is_finite()));
            prop_assert_eq!(ours, theirs, "after {:?}", action);
        }
    });
}

/// What the library says while it loads a model.
unsafe extern "C" fn ignore(_: sys::ggml_log_level, _: *const c_char, _: *mut c_void) {}

struct Model(*mut sys::llama_model);

impl Model {
    fn load(file: &Path) -> Self {
        let path = CString::new(file.to_str().unwrap()).unwrap();
        // SAFETY: the path lives until it returns, and the parameters are the defaults.
        let model = unsafe { sys::llama_model_load_from_file(path.as_ptr(), sys::llama_model_default_params()) };
        assert!(!model.is_null());
        Self(model)
    }

    fn context(&self) -> Context<'_> {
        // SAFETY: it only returns default values.
        let mut params = unsafe { sys::llama_context_default_params() };
        params.n_ctx = CELLS;
        params.n_seq_max = SEQUENCES as u32;
        params.n_batch = SEQUENCES as u32;
        params.n_ubatch = SEQUENCES as u32;
        params.n_threads = 1;
        params.n_threads_batch = 1;
        params.kv_unified = true;
        params.flash_attn_type = sys::LLAMA_FLASH_ATTN_TYPE_ENABLED;
        // SAFETY: the model outlives the context.
        let context = unsafe { sys::llama_init_from_model(self.0, params) };
        assert!(!context.is_null());
        Context { context, lengths: [0; SEQUENCES as usize], used: 0, _model: self }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: no context is left.
        unsafe { sys::llama_model_free(self.0) }
    }
}

struct Context<'a> {
    context: *mut sys::llama_context,
    lengths: [i32; SEQUENCES as usize],
    used: i32,
    _model: &'a Model,
}

impl Context<'_> {
    /// Returns the logits of a batch. What there is no room for is not done.
    fn act(&mut self, action: &Action, masks: Attention) -> Vec<f32> {
        kernels::fill_masks(masks);
        // SAFETY: the context is alive; nobody else uses it.
        let memory = unsafe { sys::llama_get_memory(self.context) };
        match *action {
            Action::Decode(ref sequences) => return self.decode(sequences),
            Action::Share(from, to, cells) if from != to => {
                let cells = cells.min(self.lengths[from as usize]);
                // SAFETY: as above.
                unsafe {
                    sys::llama_memory_seq_rm(memory, to, -1, -1);
                    sys::llama_memory_seq_cp(memory, from, to, 0, cells);
                }
                self.lengths[to as usize] = cells;
            }
            Action::Shorten(sequence, from) if from < self.lengths[sequence as usize] => {
                // SAFETY: as above.
                assert!(unsafe { sys::llama_memory_seq_rm(memory, sequence, from, -1) });
                self.lengths[sequence as usize] = from;
            }
            Action::Share(..) | Action::Shorten(..) => {}
        }
        Vec::new()
    }

    /// The sequences take turns, as they do in a batch of the engine after another one of the same sequence.
    fn decode(&mut self, sequences: &[(i32, i32)]) -> Vec<f32> {
        let count: i32 = sequences.iter().map(|(_, tokens)| tokens).sum();
        if self.used + count > CELLS as i32 {
            return Vec::new();
        }
        self.used += count;
        // SAFETY: the batch holds as many tokens as are written, each with one sequence, and is freed once.
        unsafe {
            let mut batch = sys::llama_batch_init(count, 0, 1);
            for (sequence, tokens) in sequences {
                for _ in 0..*tokens {
                    let (at, length) = (batch.n_tokens as usize, &mut self.lengths[*sequence as usize]);
                    *batch.token.add(at) = (sequence * 7 + *length * 3) % TOKENS;
                    *batch.pos.add(at) = *length;
                    *batch.n_seq_id.add(at) = 1;
                    **batch.seq_id.add(at) = *sequence;
                    *batch.logits.add(at) = 1;
                    *length += 1;
                    batch.n_tokens += 1;
                }
            }
            assert_eq!(sys::llama_decode(self.context, batch), 0);
            sys::llama_batch_free(batch);
            let row = |at| std::slice::from_raw_parts(sys::llama_get_logits_ith(self.context, at), TOKENS as usize);
            (0..count).flat_map(row).copied().collect()
        }
    }
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        // SAFETY: it is used nowhere else.
        unsafe { sys::llama_free(self.context) }
    }
}

/// A model of two layers with random weights and no vocabulary.
fn write_model(file: &Path) {
    let text = |text: &str| CString::new(text).unwrap();
    // SAFETY: texts live until the functions return, which copy them; tensors live in the context until the file is written.
    unsafe {
        let gguf = sys::gguf_init_empty();
        let context = sys::ggml_init(sys::ggml_init_params { mem_size: 1 << 22, mem_buffer: std::ptr::null_mut(), no_alloc: false });
        for (key, value) in [("general.architecture", "llama"), ("tokenizer.ggml.model", "none")] {
            sys::gguf_set_val_str(gguf, text(key).as_ptr(), text(value).as_ptr());
        }
        for (key, value) in [
            ("vocab_size", TOKENS as u32),
            ("context_length", CELLS),
            ("embedding_length", WIDTH as u32),
            ("block_count", 2),
            ("feed_forward_length", WIDTH as u32),
            ("attention.head_count", HEADS),
        ] {
            sys::gguf_set_val_u32(gguf, text(&format!("llama.{key}")).as_ptr(), value);
        }
        sys::gguf_set_val_f32(gguf, text("llama.attention.layer_norm_rms_epsilon").as_ptr(), 1e-5);
        let mut seed = 1_u64;
        let mut add = |name: &str, columns: i64, rows: i64| {
            let tensor = match rows {
                1 => sys::ggml_new_tensor_1d(context, sys::GGML_TYPE_F32, columns),
                _ => sys::ggml_new_tensor_2d(context, sys::GGML_TYPE_F32, columns, rows),
            };
            sys::ggml_set_name(tensor, text(name).as_ptr());
            let numbers = std::slice::from_raw_parts_mut((*tensor).data.cast::<f32>(), (columns * rows) as usize);
            for number in numbers {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *number = (seed >> 40) as f32 / (1 << 23) as f32 - 1.0;
            }
            sys::gguf_add_tensor(gguf, tensor);
        };
        add("token_embd.weight", WIDTH, i64::from(TOKENS));
        add("output_norm.weight", WIDTH, 1);
        for layer in 0..2 {
            for name in ["attn_norm", "ffn_norm"] {
                add(&format!("blk.{layer}.{name}.weight"), WIDTH, 1);
            }
            for name in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"] {
                add(&format!("blk.{layer}.{name}.weight"), WIDTH, WIDTH);
            }
        }
        assert!(sys::gguf_write_to_file(gguf, text(file.to_str().unwrap()).as_ptr(), false));
        sys::gguf_free(gguf);
        sys::ggml_free(context);
    }
}
