//! What we change in llama.cpp's kernels for CPUs: attention and products of our own, and a limit of threads that can change
//! any time; and what else needs vector instructions.
//!
//! The library computes attention for each query by itself, cell after cell. Here queries are computed together, tile by
//! tile, so that a prefix that many sequences share is read and converted once for all of them, and cells that nobody in a
//! tile sees are passed by 64 at a time.
//!
//! - `hook`: how the library calls us, and what the operations consist of. The other side is `native/hook.c`.
//! - `visibility`: which cells the queries of a tile see, from the mask.
//! - `work`: who computes what: tiles of queries, and ranges of cells where there are few.
//! - `tile`: the computation itself, over vectors of any width.
//! - `product`: rows times weights, which are laid out for it.
//! - `loading`: llama.cpp's kernels are libraries, for CPUs and GPUs; which ones are loaded when the engine starts.
//! - `library`: functions of llama.cpp that its Rust bindings do not have.
//! - `sampling`: what drawing a token needs of a vocabulary's logits.
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
pub use loading::{NoKernels, Refused, RefusedBecause, load, load_for_gpus};
pub use product::{WeightsGuard, has_products};
pub use sampling::{largest, sum_of_exponentials};
