//! Our changes to llama.cpp's kernels for CPUs: separate kernels for attention and products, and a limit of threads that can
//! change at any time. Also other code that needs vector instructions.
//!
//! The library computes attention for each query separately, cell by cell. Here queries are computed together, tile by
//! tile, so that a prefix that many sequences share is read and converted once for all of them. Cells that no query of a
//! tile sees are skipped 64 at a time.
//!
//! - `hook`: the functions that the library calls, and the layout of its operations. The other side is `native/hook.c`.
//! - `visibility`: which cells the queries of a tile see, from the mask.
//! - `work`: the division of work between threads: by tiles of queries, or by ranges of cells where there are few tiles.
//! - `tile`: the computation of attention, over vectors of any width.
//! - `product`: rows times weights, which have a special layout for it.
//! - `loading`: llama.cpp's kernels are libraries, for CPUs and GPUs. Chooses which ones are loaded when the engine starts.
//! - `library`: functions of llama.cpp that its Rust bindings do not wrap.
//! - `sampling`: sums over the logits of a vocabulary, for drawing tokens.
//! - `lanes`: the vectors: AVX-512, AVX2, and plain arrays for every other CPU.
#![allow(unsafe_code, reason = "kernels work on the library's memory with the CPU's vector instructions")]

mod hook;
mod lanes;
mod library;
mod loading;
mod product;
mod sampling;
mod tile;
mod visibility;
mod work;

pub use hook::{Attention, Changes, NoHook, Products, change};
pub use lanes::{Instructions, limit_instructions};
pub use library::{ModelFile, ModelKind, NotConverted, WeightsForm, convert, model_kind, system_info};
pub use loading::{NoKernels, load, load_for_gpus};
pub use product::{WeightsGuard, has_products};
pub use sampling::{largest, sum_of_exponentials};
