//! Attention operations with random numbers, computed through the library's graphs.
#![allow(unsafe_code, reason = "operations are built with the library's functions")]

use std::time::Instant;

use half::{bf16, f16};
use llama_cpp_sys_2 as sys;

use crate::library::{Random, cpu};

#[derive(Debug, Clone, Copy)]
pub(crate) enum Number {
    F32,
    F16,
    Bf16,
}

#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// Query heads and heads of the cache.
    pub(crate) heads: (usize, usize),
    pub(crate) key_size: usize,
    pub(crate) value_size: usize,
    pub(crate) cells: usize,
    /// For each token, which cells it sees.
    pub(crate) visible: Vec<Vec<bool>>,
    /// The mask's value for visible cells.
    pub(crate) bias: f32,
    pub(crate) sinks: bool,
    pub(crate) number: Number,
    pub(crate) threads: usize,
    /// Cells with a number that is not finite in each head, as after a request that overflowed.
    pub(crate) overflown: Vec<usize>,
    pub(crate) seed: u64,
}

impl Case {
    fn numbers(&self, salt: u64, count: usize, scale: f32) -> Vec<f32> {
        let mut random = Random(self.seed ^ salt.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        (0..count).map(|_| self.rounded(random.number() * scale)).collect()
    }

    /// A number as the cache stores it.
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
        let keys = self.numbers(2, self.cells * self.heads.1 * self.key_size, 1.0);
        self.overflow(keys, self.key_size, &[f32::INFINITY, 0.5])
    }

    fn values(&self) -> Vec<f32> {
        let values = self.numbers(3, self.cells * self.heads.1 * self.value_size, 1.0);
        self.overflow(values, self.value_size, &[f32::NAN, f32::NEG_INFINITY, 0.5])
    }

    fn overflow(&self, mut numbers: Vec<f32>, size: usize, odd: &[f32]) -> Vec<f32> {
        for (at, cell) in self.overflown.iter().enumerate() {
            let row = cell * self.heads.1 * size;
            (0..self.heads.1).for_each(|head| numbers[row + head * size + at % size] = odd[at % odd.len()]);
        }
        numbers
    }

    fn sinks(&self) -> Vec<f32> {
        self.numbers(4, self.heads.0, 2.0)
    }

    fn scale(&self) -> f32 {
        1.0 / (self.key_size as f32).sqrt()
    }

    /// The result by definition: a row for each token and head. NaN for tokens that see an overflown cell.
    pub(crate) fn exact(&self) -> Vec<f64> {
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
                    let value =
                        |cell: usize| f64::from(values[(cell * kv_heads + kv_head) * self.value_size + dimension]);
                    let seen = (0..self.cells).filter(|cell| visible[*cell]);
                    let weighted: f64 = seen.map(|cell| weights[cell] * value(cell)).sum();
                    result.push(match sum > 0.0 {
                        _ if self.overflown.iter().any(|cell| visible[*cell]) => f64::NAN,
                        true => weighted / sum,
                        false => 0.0,
                    });
                }
            }
        }
        result
    }

    /// The result that the library computes with the selected kernel.
    pub(crate) fn computed(&self) -> Vec<f32> {
        self.computed_often(1).0
    }

    /// The same, computed several times, with the seconds of the fastest run.
    pub(crate) fn computed_often(&self, times: usize) -> (Vec<f32>, f64) {
        let (heads, kv_heads) = self.heads;
        let (tokens, cells) = (self.visible.len(), self.cells);
        let kind = match self.number {
            Number::F32 => sys::GGML_TYPE_F32,
            Number::F16 => sys::GGML_TYPE_F16,
            Number::Bf16 => sys::GGML_TYPE_BF16,
        };
        // SAFETY: the context can hold all tensors, and outlives their use; data is written within their sizes.
        unsafe {
            let params = sys::ggml_init_params { mem_size: 1 << 28, mem_buffer: std::ptr::null_mut(), no_alloc: false };
            let context = sys::ggml_init(params);
            assert!(!context.is_null());
            // In order of tokens and cells, as in llama.cpp; heads are the third dimension of a view.
            let permuted = |kind, size: usize, heads: usize, count: usize, data: &[f32]| {
                let tensor = sys::ggml_new_tensor_3d(context, kind, size as i64, heads as i64, count as i64);
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
            let backend = cpu(self.threads);
            let mut fastest = f64::INFINITY;
            for _ in 0..times {
                let began = Instant::now();
                let status = sys::ggml_backend_graph_compute(backend, graph);
                fastest = fastest.min(began.elapsed().as_secs_f64());
                assert_eq!(status, sys::GGML_STATUS_SUCCESS);
            }
            let length = tokens * heads * self.value_size;
            let result = std::slice::from_raw_parts((*out).data.cast::<f32>(), length).to_vec();
            sys::ggml_backend_free(backend);
            sys::ggml_free(context);
            (result, fastest)
        }
    }
}

/// # Safety
/// The tensor must hold this number of numbers.
unsafe fn write_numbers(tensor: *mut sys::ggml_tensor, kind: sys::ggml_type, numbers: &[f32]) {
    let bits: Vec<u8> = match kind {
        sys::GGML_TYPE_F32 => numbers.iter().flat_map(|number| number.to_ne_bytes()).collect(),
        sys::GGML_TYPE_F16 => numbers.iter().flat_map(|number| f16::from_f32(*number).to_ne_bytes()).collect(),
        _ => numbers.iter().flat_map(|number| bf16::from_f32(*number).to_ne_bytes()).collect(),
    };
    // SAFETY: the caller's.
    unsafe { std::ptr::copy_nonoverlapping(bits.as_ptr(), (*tensor).data.cast::<u8>(), bits.len()) }
}
