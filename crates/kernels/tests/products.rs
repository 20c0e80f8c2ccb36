//! Compares rows times weights, computed through the library's graphs, with f64: every form of weights that we lay out, one
//! or more threads, few rows and many, outputs that do not fill a panel, experts, and all instructions that this CPU has.
#![allow(unsafe_code, reason = "operations are built with the library's functions")]

use kernels::{Attention, Changes, Instructions, Products, WeightsGuard};
use llama_cpp_sys_2 as sys;
use proptest::prelude::*;

use crate::library::{Random, cpu};

mod library;

#[derive(Debug, Clone)]
struct Case {
    kind: sys::ggml_type,
    columns: usize,
    outputs: usize,
    /// The number of experts, and the number for each token.
    experts: Option<(usize, usize)>,
    /// Whether the experts of a token have different rows.
    has_own_rows: bool,
    tokens: usize,
    /// The only token with numbers that are not finite.
    overflown: Option<usize>,
    threads: usize,
    seed: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    let kinds = [
        sys::GGML_TYPE_Q4_0,
        sys::GGML_TYPE_Q4_1,
        sys::GGML_TYPE_Q5_0,
        sys::GGML_TYPE_Q5_1,
        sys::GGML_TYPE_Q8_0,
        sys::GGML_TYPE_Q4_K,
        sys::GGML_TYPE_Q5_K,
        sys::GGML_TYPE_Q6_K,
        sys::GGML_TYPE_F16,
        sys::GGML_TYPE_BF16,
    ];
    let experts = prop_oneof![Just(None), (1..9_usize, 1..5_usize).prop_map(|(all, used)| Some((all.max(used), used)))];
    let sizes = (1..4_usize, 0..8_usize, 1..80_usize, 1..40_usize, 1..5_usize);
    let choices = (prop::sample::select(kinds.to_vec()), experts, any::<bool>(), any::<bool>(), any::<u64>());
    (sizes, choices).prop_map(
        |((spans, more, outputs, tokens, threads), (kind, experts, has_own_rows, overflows, seed))| {
            let is_whole = [sys::GGML_TYPE_Q4_K, sys::GGML_TYPE_Q5_K, sys::GGML_TYPE_Q6_K].contains(&kind);
            let columns = spans * 256 + if is_whole { 0 } else { more * 32 };
            let overflown = overflows.then(|| Random(seed).below(tokens));
            Case { kind, columns, outputs, experts, has_own_rows, tokens, overflown, threads, seed }
        },
    )
}

/// Computed results, and results in f64 with the tolerated differences.
struct Results {
    computed: Vec<f32>,
    exact: Vec<(f64, f64)>,
}

impl Case {
    fn run(&self) -> Results {
        let (all, used) = self.experts.unwrap_or((1, 1));
        let rows_of_token = if self.has_own_rows { used } else { 1 };
        let mut random = Random(self.seed);
        let mut numbers = |count: usize| -> Vec<f32> { (0..count).map(|_| random.number()).collect() };
        let weights = numbers(all * self.outputs * self.columns);
        let mut rows = numbers(self.tokens * rows_of_token * self.columns);
        if let Some(token) = self.overflown {
            rows[token * rows_of_token * self.columns..][..rows_of_token * self.columns].fill(f32::INFINITY);
        }
        // Different experts for each token.
        let chosen: Vec<i32> =
            (0..self.tokens).flat_map(|token| (0..used).map(move |at| ((token * 3 + at) % all) as i32)).collect();
        // SAFETY: contexts can hold all tensors, and outlive their use; data is written within their sizes.
        unsafe {
            let _guard = WeightsGuard::new();
            let params =
                |no_alloc| sys::ggml_init_params { mem_size: 1 << 25, mem_buffer: std::ptr::null_mut(), no_alloc };
            let (of_model, of_graph) = (sys::ggml_init(params(true)), sys::ggml_init(params(false)));
            let (columns, outputs, tokens) = (self.columns as i64, self.outputs as i64, self.tokens as i64);
            let matrix = sys::ggml_new_tensor_3d(of_model, self.kind, columns, outputs, all as i64);
            let backend = cpu(self.threads);
            let buffer = sys::ggml_backend_alloc_ctx_tensors(of_model, backend);
            sys::ggml_backend_buffer_set_usage(buffer, sys::GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
            let (data, count) = ((*matrix).data, (all * self.outputs) as i64);
            sys::ggml_quantize_chunk(self.kind, weights.as_ptr(), data, 0, count, columns, std::ptr::null());
            let to_float = (*sys::ggml_get_type_traits(self.kind)).to_float.expect("a function");
            let mut written = vec![0.0_f32; weights.len()];
            to_float(data, written.as_mut_ptr(), written.len() as i64);

            let out = match self.experts {
                None => {
                    let input = sys::ggml_new_tensor_2d(of_graph, sys::GGML_TYPE_F32, columns, tokens);
                    rows.as_ptr().copy_to_nonoverlapping((*input).data.cast(), rows.len());
                    sys::ggml_mul_mat(of_graph, matrix, input)
                }
                Some(_) => {
                    let rows_of_token = rows_of_token as i64;
                    let input = sys::ggml_new_tensor_3d(of_graph, sys::GGML_TYPE_F32, columns, rows_of_token, tokens);
                    rows.as_ptr().copy_to_nonoverlapping((*input).data.cast(), rows.len());
                    let ids = sys::ggml_new_tensor_2d(of_graph, sys::GGML_TYPE_I32, used as i64, tokens);
                    chosen.as_ptr().copy_to_nonoverlapping((*ids).data.cast(), chosen.len());
                    sys::ggml_mul_mat_id(of_graph, matrix, input, ids)
                }
            };
            let graph = sys::ggml_new_graph(of_graph);
            sys::ggml_build_forward_expand(graph, out);
            // The second time the weights are already laid out.
            for _ in 0..2 {
                assert_eq!(sys::ggml_backend_graph_compute(backend, graph), sys::GGML_STATUS_SUCCESS);
            }
            assert_eq!(!(*matrix).extra.is_null(), kernels::has_products(), "whether our kernels computed");
            let length = self.tokens * used * self.outputs;
            let computed = std::slice::from_raw_parts((*out).data.cast::<f32>(), length).to_vec();
            sys::ggml_backend_buffer_free(buffer);
            sys::ggml_backend_free(backend);
            sys::ggml_free(of_graph);
            sys::ggml_free(of_model);

            let exact = |at: usize| {
                let (token, used_at, output) = (at / self.outputs / used, at / self.outputs % used, at % self.outputs);
                let expert = if self.experts.is_some() { chosen[token * used + used_at] as usize } else { 0 };
                let weights = &written[(expert * self.outputs + output) * self.columns..][..self.columns];
                let row = &rows[(token * rows_of_token + used_at % rows_of_token) * self.columns..][..self.columns];
                product(weights, row)
            };
            Results { computed, exact: (0..length).map(exact).collect() }
        }
    }
}

/// A product, and the error that 8 bits for the row and for the weights may cause.
fn product(weights: &[f32], row: &[f32]) -> (f64, f64) {
    let (mut sum, mut bound) = (0.0, 0.0);
    for (weights, row) in weights.chunks(32).zip(row.chunks(32)) {
        let largest =
            |numbers: &[f32]| numbers.iter().fold(0.0_f64, |largest, number| largest.max(f64::from(number.abs())));
        let size = |numbers: &[f32]| numbers.iter().map(|number| f64::from(number.abs())).sum::<f64>();
        sum += weights.iter().zip(row).map(|(weight, number)| f64::from(*weight) * f64::from(*number)).sum::<f64>();
        bound += (largest(row) * size(weights) + largest(weights) * size(row)) / 250.0;
    }
    (sum, bound)
}

/// One test for all, because the choice of kernels and instructions is global to the process.
#[test]
fn products_equal_those_of_f64_regardless_of_other_rows() {
    for instructions in [Instructions::Avx512, Instructions::Avx2, Instructions::Plain] {
        kernels::limit_instructions(instructions);
        let changes = Changes { attention: Attention::Library, products: Products::Own, max_threads: None };
        assert_eq!(kernels::change(changes), Ok(()));
        let config = ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() };
        proptest!(config, |(case in cases())| {
            let Results { computed, exact } = case.run();
            let of_token = computed.len() / case.tokens;
            for (at, (computed, (exact, bound))) in computed.iter().zip(exact).enumerate() {
                if case.overflown == Some(at / of_token) {
                    prop_assert!(!computed.is_finite(), "{at}: {computed}");
                } else {
                    prop_assert!((f64::from(*computed) - exact).abs() <= bound, "{at}: {computed}, not {exact}");
                }
            }
        });
    }
}
