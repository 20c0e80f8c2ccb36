//! Our kernel against llama.cpp's and against the definition of attention in f64, on random operations: shapes of the
//! well-known families, sequences with shared prefixes and scattered cells, prompts, all numbers of a cache, and one or
//! more threads. `ADRIATICUM_KERNEL_INSTRUCTIONS` chooses lesser instructions; the other tests of this file run it so.
#![allow(unsafe_code, reason = "operations are built with the library's own functions")]

use std::process::Command;

use half::{bf16, f16};
use kernels::{Attention, Changes};
use llama_cpp_sys_2 as sys;
use proptest::prelude::*;

#[derive(Debug, Clone, Copy)]
enum Number {
    F32,
    F16,
    Bf16,
}

#[derive(Debug, Clone)]
struct Case {
    /// Query heads and heads of the cache.
    heads: (usize, usize),
    key_size: usize,
    value_size: usize,
    cells: usize,
    /// For each token, which cells it sees.
    visible: Vec<Vec<bool>>,
    /// What the mask has for visible cells.
    bias: f32,
    sinks: bool,
    number: Number,
    threads: usize,
    seed: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    // Of SmolLM2, Llama 3.2 1B and 8B, Qwen 2.5 0.5B and 7B, Gemma 3, Phi 2 and Phi 3, Mistral, Falcon 40B; and one with
    // keys larger than values, as DeepSeek has them.
    let heads = prop_oneof![
        Just(((9, 3), 64, 64)),
        Just(((32, 8), 64, 64)),
        Just(((32, 8), 128, 128)),
        Just(((14, 2), 64, 64)),
        Just(((28, 4), 128, 128)),
        Just(((4, 1), 256, 256)),
        Just(((32, 32), 80, 80)),
        Just(((8, 8), 96, 96)),
        Just(((32, 1), 64, 64)),
        Just(((16, 16), 192, 128)),
    ];
    let number = prop_oneof![Just(Number::F32), Just(Number::F16), Just(Number::Bf16)];
    let bias = prop_oneof![4 => Just(0.0_f32), 1 => Just(-1.5)];
    let sizes = (1..700_usize, 1..80_usize, 1..5_usize, any::<bool>(), any::<u64>());
    (heads, number, bias, sizes, 0..4_usize).prop_map(|((heads, key_size, value_size), number, bias, sizes, kind)| {
        let (cells, tokens, threads, sinks, seed) = sizes;
        let mut random = Random(seed);
        let visible = visibility(kind, cells, tokens, &mut random);
        Case { heads, key_size, value_size, cells, visible, bias, sinks, number, threads, seed }
    })
}

/// Prompts, sequences with a common prefix, sequences alone, and chance.
fn visibility(kind: usize, cells: usize, tokens: usize, random: &mut Random) -> Vec<Vec<bool>> {
    let prefix = random.below(cells + 1);
    let sequences = 1 + random.below(16);
    let rows = (0..tokens).map(|token| {
        let own = |cell: usize| (cell * 7 + cell / 13) % sequences == token % sequences;
        (0..cells)
            .map(|cell| match kind {
                0 => cell <= prefix + token,
                1 => cell < prefix || own(cell),
                2 => own(cell),
                _ => random.below(8) == 0,
            })
            .collect()
    });
    rows.collect()
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn number(&mut self) -> f32 {
        self.next() as f32 / (1_u64 << 30) as f32 - 1.0
    }
}

impl Case {
    fn numbers(&self, salt: u64, count: usize, scale: f32) -> Vec<f32> {
        let mut random = Random(self.seed ^ salt.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        (0..count).map(|_| self.rounded(random.number() * scale)).collect()
    }

    /// What the cache makes of a number.
    fn rounded(&self, value: f32) -> f32 {
        match self.number {
            Number::F32 => value,
            Number::F16 => f16::from_f32(value).to_f32(),
            Number::Bf16 => bf16::from_f32(value).to_f32(),
        }
    }

    fn queries(&self) -> Vec<f32> {
        self.numbers(1, self.visible.len() * self.heads.0 * self.key_size, 3.0)
    }

    fn keys(&self) -> Vec<f32> {
        self.numbers(2, self.cells * self.heads.1 * self.key_size, 1.0)
    }

    fn values(&self) -> Vec<f32> {
        self.numbers(3, self.cells * self.heads.1 * self.value_size, 1.0)
    }

    fn sinks(&self) -> Vec<f32> {
        self.numbers(4, self.heads.0, 2.0)
    }

    fn scale(&self) -> f32 {
        1.0 / (self.key_size as f32).sqrt()
    }

    /// By the definition: a row for each token and head.
    fn exact(&self) -> Vec<f64> {
        let (queries, keys, values, sinks) = (self.queries(), self.keys(), self.values(), self.sinks());
        let (heads, kv_heads) = self.heads;
        let mut result = Vec::new();
        for (token, visible) in self.visible.iter().enumerate() {
            for head in 0..heads {
                let kv_head = head / (heads / kv_heads);
                let query = &queries[(token * heads + head) * self.key_size..][..self.key_size];
                let products: Vec<Option<f64>> = (0..self.cells)
                    .map(|cell| {
                        let key = &keys[(cell * kv_heads + kv_head) * self.key_size..][..self.key_size];
                        let product: f64 = query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                        visible[cell].then(|| product * f64::from(self.scale()) + f64::from(self.bias))
                    })
                    .collect();
                let sink = self.sinks.then(|| f64::from(sinks[head]));
                let max = products.iter().flatten().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> =
                    products.iter().map(|product| product.map_or(0.0, |product| (product - max).exp())).collect();
                let sum: f64 = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - max).exp());
                for dimension in 0..self.value_size {
                    let value = |cell: usize| {
                        f64::from(values[(cell * kv_heads + kv_head) * self.value_size + dimension])
                    };
                    let weighted: f64 = (0..self.cells).map(|cell| weights[cell] * value(cell)).sum();
                    result.push(if sum > 0.0 { weighted / sum } else { 0.0 });
                }
            }
        }
        result
    }

    /// As the library computes it, by the kernel that is selected.
    fn computed(&self) -> Vec<f32> {
        let (heads, kv_heads) = self.heads;
        let (tokens, cells) = (self.visible.len(), self.cells);
        let kind = match self.number {
            Number::F32 => sys::GGML_TYPE_F32,
            Number::F16 => sys::GGML_TYPE_F16,
            Number::Bf16 => sys::GGML_TYPE_BF16,
        };
        // SAFETY: the context has room for all tensors, and outlives their use; data is written within their sizes.
        unsafe {
            let params =
                sys::ggml_init_params { mem_size: 1 << 28, mem_buffer: std::ptr::null_mut(), no_alloc: false };
            let context = sys::ggml_init(params);
            assert!(!context.is_null());
            // Token after token and cell after cell, as llama.cpp has them; heads are the third dimension of a view.
            let permuted = |kind, size: usize, heads: usize, count: usize, data: &[f32]| {
                let tensor =
                    sys::ggml_new_tensor_3d(context, kind, size as i64, heads as i64, count as i64);
                write_numbers(tensor, kind, data);
                sys::ggml_permute(context, tensor, 0, 2, 1, 3)
            };
            let q = permuted(sys::GGML_TYPE_F32, self.key_size, heads, tokens, &self.queries());
            let k = permuted(kind, self.key_size, kv_heads, cells, &self.keys());
            let v = permuted(kind, self.value_size, kv_heads, cells, &self.values());
            let mask = sys::ggml_new_tensor_2d(context, sys::GGML_TYPE_F16, cells as i64, tokens as i64);
            let bias = |seen: &bool| if *seen { self.bias } else { f32::NEG_INFINITY };
            let biases: Vec<f32> = self.visible.iter().flatten().map(bias).collect();
            write_numbers(mask, sys::GGML_TYPE_F16, &biases);
            let out = sys::ggml_flash_attn_ext(context, q, k, v, mask, self.scale(), 0.0, 0.0);
            if self.sinks {
                let sinks = sys::ggml_new_tensor_1d(context, sys::GGML_TYPE_F32, heads as i64);
                write_numbers(sinks, sys::GGML_TYPE_F32, &self.sinks());
                sys::ggml_flash_attn_ext_add_sinks(out, sinks);
            }
            let graph = sys::ggml_new_graph(context);
            sys::ggml_build_forward_expand(graph, out);
            let status = sys::ggml_graph_compute_with_ctx(context, graph, self.threads as i32);
            assert_eq!(status, sys::GGML_STATUS_SUCCESS);
            let length = tokens * heads * self.value_size;
            let result = std::slice::from_raw_parts((*out).data.cast::<f32>(), length).to_vec();
            sys::ggml_free(context);
            result
        }
    }
}

/// # Safety
/// The tensor must have as many numbers.
unsafe fn write_numbers(tensor: *mut sys::ggml_tensor, kind: sys::ggml_type, numbers: &[f32]) {
    let bits: Vec<u8> = match kind {
        sys::GGML_TYPE_F32 => numbers.iter().flat_map(|number| number.to_ne_bytes()).collect(),
        sys::GGML_TYPE_F16 => numbers.iter().flat_map(|number| f16::from_f32(*number).to_ne_bytes()).collect(),
        _ => numbers.iter().flat_map(|number| bf16::from_f32(*number).to_ne_bytes()).collect(),
    };
    // SAFETY: the caller's.
    unsafe { std::ptr::copy_nonoverlapping(bits.as_ptr(), (*tensor).data.cast::<u8>(), bits.len()) }
}

/// The largest error, relative to the size of values, which is 1.
fn error(computed: &[f32], exact: &[f64]) -> f64 {
    assert_eq!(computed.len(), exact.len());
    computed.iter().zip(exact).map(|(computed, exact)| (f64::from(*computed) - exact).abs()).fold(0.0, |largest, error| {
        if error.is_nan() { f64::INFINITY } else { f64::max(largest, error) }
    })
}

/// Rounding in sums of f32; the library's sums of f16 are off by far more.
const TOLERANCE: f64 = 2e-5;
const LIBRARY_TOLERANCE: f64 = 0.05;

fn select(attention: Attention) {
    assert_eq!(kernels::change(Changes { attention, max_threads: None }), Ok(()));
}

fn check(case: &Case) {
    let exact = case.exact();
    select(Attention::Own);
    let own = error(&case.computed(), &exact);
    assert!(own < TOLERANCE, "ours is off by {own}");
    select(Attention::Library);
    let library = error(&case.computed(), &exact);
    assert!(library < LIBRARY_TOLERANCE, "the library is off by {library}: the test is");
}

#[test]
fn equals_the_definition_and_the_library() {
    let config = ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(case in cases())| check(&case));
}

#[test]
fn with_lesser_instructions_as_well() {
    for instructions in ["avx2", "plain"] {
        let program = std::env::current_exe().unwrap_or_else(|error| panic!("{error}"));
        let output = Command::new(program)
            .args(["--exact", "equals_the_definition_and_the_library"])
            .env("ADRIATICUM_KERNEL_INSTRUCTIONS", instructions)
            .output()
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(output.status.success(), "{instructions}: {}", String::from_utf8_lossy(&output.stdout));
    }
}
