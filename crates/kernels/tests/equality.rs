//! Compares our kernel with llama.cpp's and with the definition of attention in f64, on random operations: shapes of the
//! well-known families, sequences with shared prefixes and scattered cells, prompts, all number formats of the cache, one
//! or more threads, and all instructions that this CPU has.

use kernels::{Attention, Changes, Instructions, Products};
use proptest::prelude::*;

use crate::graph::{Case, Number};
use crate::library::Random;

mod graph;
mod library;

fn cases() -> impl Strategy<Value = Case> {
    // SmolLM2, Llama 3.2 1B and 8B, Qwen 2.5 0.5B and 7B, Gemma 3, Phi 2 and Phi 3, Mistral, Falcon 40B; and one with keys
    // larger than values, as in DeepSeek.
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
    let sizes = (1..700_usize, 1..80_usize, 1..9_usize, any::<bool>(), any::<u64>());
    let overflown = prop_oneof![2 => Just(0_usize), 1 => 1..9_usize];
    let kinds = (0..5_usize, overflown);
    (heads, number, bias, sizes, kinds).prop_map(|((heads, key_size, value_size), number, bias, sizes, kinds)| {
        let ((cells, tokens, threads, sinks, seed), (kind, overflown)) = (sizes, kinds);
        let mut random = Random(seed);
        let visible = visibility(kind, cells, tokens, &mut random);
        let overflown = (0..overflown).map(|_| random.below(cells)).collect();
        Case { heads, key_size, value_size, cells, visible, bias, sinks, number, threads, overflown, seed }
    })
}

/// By kind: prompts, sequences with a common prefix, sequences alone, a few tokens that see far more than all others, and
/// random cells.
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
                3 => token < 4 || cell == token,
                _ => random.below(8) == 0,
            })
            .collect()
    });
    rows.collect()
}

/// The largest error, relative to the size of values, which is 1. A token that sees an overflown cell may get anything.
fn error(computed: &[f32], exact: &[f64]) -> f64 {
    assert_eq!(computed.len(), exact.len());
    let expected = computed.iter().zip(exact).filter(|(_, exact)| !exact.is_nan());
    let errors = expected.map(|(computed, exact)| (f64::from(*computed) - exact).abs());
    errors.fold(0.0, |largest, error| if error.is_nan() { f64::INFINITY } else { f64::max(largest, error) })
}

/// For rounding in sums of f32. The library's sums of f16 have a far larger error.
const TOLERANCE: f64 = 2e-5;
const LIBRARY_TOLERANCE: f64 = 0.05;

fn select(attention: Attention) {
    assert_eq!(kernels::change(Changes { attention, max_threads: None, products: Products::Library }), Ok(()));
}

fn check(case: &Case) {
    let exact = case.exact();
    select(Attention::Own);
    let own = error(&case.computed(), &exact);
    assert!(own < TOLERANCE, "ours is off by {own}");
    if !case.overflown.is_empty() {
        return; // the library's results may be affected for other tokens, too
    }
    select(Attention::Library);
    let library = error(&case.computed(), &exact);
    assert!(library < LIBRARY_TOLERANCE, "the library is off by {library}, so the test is wrong");
}

/// One test for all, because the choice of kernel and instructions is global to the process.
#[test]
fn equals_the_definition_and_the_library() {
    for instructions in [Instructions::Avx512, Instructions::Avx2, Instructions::Plain] {
        kernels::limit_instructions(instructions);
        let config = ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() };
        proptest!(config, |(case in cases())| check(&case));
    }
}
