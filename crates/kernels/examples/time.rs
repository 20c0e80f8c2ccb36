//! The time of attention with our kernel and with llama.cpp's, for realistic operations: heads of SmolLM2 (9, of which 3
//! in the cache, 64 numbers each), one layer, two threads.
//!
//!     cargo run --profile quick --example time [PART OF A NAME]

#[allow(dead_code, reason = "tests need more of it")]
#[path = "../tests/graph/mod.rs"]
mod graph;
#[allow(dead_code, reason = "tests need more of it")]
#[path = "../tests/library/mod.rs"]
mod library;

use graph::{Case, Number};
use kernels::{Attention, Changes, Products};

/// A name, the numbers of tokens and cells, and whether a token sees a cell.
type Shape<'a> = (&'a str, usize, usize, &'a dyn Fn(usize, usize) -> bool);

fn main() {
    println!("{:<50} {:>5} {:>10} {:>10}", "microseconds", "", "ours", "llama.cpp");
    let own = |token: usize, cell: usize, tokens: usize| cell % tokens == token;
    let shapes: [Shape<'_>; 7] = [
        ("one token, 100 of 256 cells", 1, 256, &|_, cell| cell < 100),
        ("one token, 1000 of 1024 cells", 1, 1024, &|_, cell| cell < 1000),
        ("16 tokens, 100 scattered cells each of 1792", 16, 1792, &|token, cell| cell < 1600 && own(token, cell, 16)),
        ("16 tokens, 100 cells each, of 16384", 16, 16384, &|token, cell| cell % 1024 < 100 && cell / 1024 == token),
        ("16 tokens, 450 common cells and 50 each", 16, 1280, &|token, cell| {
            cell < 450 || (cell < 1250 && own(token, cell, 16))
        }),
        ("128 tokens of a prompt after 1024", 128, 1280, &|token, cell| cell <= 1024 + token),
        ("512 tokens of a prompt", 512, 512, &|token, cell| cell <= token),
    ];
    let wanted = std::env::args().nth(1).unwrap_or_default();
    for (name, tokens, cells, visible) in shapes.into_iter().filter(|(name, ..)| name.contains(&wanted)) {
        for (number, kind) in [(Number::F16, "f16"), (Number::Bf16, "bf16")] {
            let case = Case {
                heads: (9, 3),
                key_size: 64,
                value_size: 64,
                cells,
                visible: (0..tokens).map(|token| (0..cells).map(|cell| visible(token, cell)).collect()).collect(),
                bias: 0.0,
                overflown: Vec::new(),
                sinks: false,
                number,
                threads: 2,
                seed: 1,
            };
            let time = |attention: Attention| {
                assert_eq!(
                    kernels::change(Changes { attention, max_threads: None, products: Products::Library }),
                    Ok(())
                );
                case.computed_often(200).1 * 1e6
            };
            println!("{name:<50} {kind:>5} {:>10.1} {:>10.1}", time(Attention::Own), time(Attention::Library));
        }
    }
}
