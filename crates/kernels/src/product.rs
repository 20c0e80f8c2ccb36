//! Rows times weights.
//!
//! The library multiplies one row at a time, or a few, and unpacks the weights for each. Here weights are laid out once,
//! when they are first used, so that a vector holds the same columns of 16 rows of the matrix. They are unpacked once for
//! all rows of a tile, and no sum is taken across a vector. A row's result does not depend on the rows that are computed
//! beside it.
//!
//! - `activations`: the rows, in 8 bits.
//! - `panels`: the weights, in 4, 6 or 8 bits.
//! - `sources`: conversion from the forms of model files to these.
//! - `matrix`: the memory that holds them.
//! - `avx512`, `avx2`: the computation.

mod activations;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod matrix;
mod panels;
mod sources;

use std::cell::RefCell;
use std::ops::Range;
use std::slice;

use crate::hook::{Product, Team};
use crate::lanes::{self, Instructions};
use activations::{BLOCK, Block, TILE, place};
pub(crate) use matrix::Matrix;
pub use matrix::WeightsGuard;
use panels::{Form, ROWS, SPAN};
use sources::WeightType;

/// Up to this number of rows, every thread converts all of them: that is faster than to wait for the others.
const FEW_ROWS: usize = 4;
/// Panels that are multiplied with a tile before the next tile. Together they fit into a core's cache.
const GROUP: usize = 4;

/// A kernel for one set of instructions.
///
/// Both functions are unsafe for the same reasons: the CPU must have the instructions, and pointers must be valid for all
/// reads and writes.
trait Kernel {
    /// Converts a row. `distance` is that between its blocks in `to`.
    unsafe fn convert(row: &[f32], to: *mut Block, distance: usize);
    /// Multiplies a panel with a tile, and writes 16 results for each row. The second part of `out` is the distance between
    /// rows, in floats.
    unsafe fn multiply(
        form: Form,
        panel: *const u8,
        blocks: usize,
        tile: (*const Block, usize),
        out: (*mut f32, usize),
    );
}

/// How far ahead of the computation weights are prefetched, in bytes. With 4 kB one row takes two thirds of its time
/// without. The CPU's own prefetching ends at each page of 4 kB, even within a larger page.
const AHEAD: usize = 4096;

/// Prefetches the weights at that distance after a block of a span. They may be in the next panel.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn request_ahead(form: Form, span: *const u8, block: usize) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    const LINE: usize = 64;
    let bytes = form.span_bytes(SPAN) / SPAN;
    for line in (0..bytes).step_by(LINE) {
        // SAFETY: every CPU of the architecture has it, and it is harmless for any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(span.wrapping_add(block * bytes + AHEAD + line).cast()) };
    }
}

/// Whether there are kernels for this CPU.
pub fn has_products() -> bool {
    lanes::instructions() != Instructions::Plain
}

/// See `hook::product_scratch`.
pub(crate) fn scratch_bytes(product: &Product) -> usize {
    let is_whole = product.columns > 0 && (product.columns as usize).is_multiple_of(BLOCK);
    match WeightType::from_library(product.kind) {
        Some(_) if is_whole && has_products() => {
            let rows = (product.tokens * product.rows_of_token).max(1) as usize;
            rows * (product.columns as usize / BLOCK) * size_of::<Block>()
        }
        _ => 0,
    }
}

/// The size of a tensor of weights in our form, in bytes; 0 if we do not support it.
pub(crate) fn laid_out_bytes(kind: i32, sides: [i64; 4]) -> u64 {
    let [columns, outputs, experts, _] = sides.map(|side| side.max(0) as u64);
    match WeightType::from_library(kind) {
        Some(source) if outputs > 1 && has_products() => {
            let panel = source.form().panel_bytes((columns as usize).div_ceil(BLOCK)) as u64;
            experts * outputs.div_ceil(ROWS as u64) * panel
        }
        _ => 0,
    }
}

/// Computes this thread's part of a product.
///
/// # Safety
/// The product must be supported, and describe memory as the library lays it out.
pub(crate) unsafe fn compute(product: &Product) {
    // SAFETY: the CPU has the instructions, and the caller vouches for the memory.
    unsafe {
        match lanes::instructions() {
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 if avx512::is_supported() => compute_with::<avx512::Products>(product),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 | Instructions::Avx2 => compute_with::<avx2::Products>(product),
            _ => unreachable!("`scratch_bytes` is 0"),
        }
    }
}

unsafe fn compute_with<K: Kernel>(product: &Product) {
    // SAFETY: the caller's.
    unsafe {
        let matrix = matrix::matrix(product);
        match product.chosen.is_null() {
            true => multiply_rows::<K>(product, matrix),
            false => multiply_chosen::<K>(product, matrix),
        }
    }
}

/// All rows with the only matrix.
unsafe fn multiply_rows<K: Kernel>(product: &Product, matrix: &Matrix) {
    let (team, count, blocks) = (&product.team, product.tokens as usize, matrix.blocks);
    let convert = |row: usize, to: *mut Block| {
        let (first, distance) = place(row, count, blocks);
        // SAFETY: the row is within the product, and the buffer holds all rows.
        unsafe { convert_row::<K>(product, row * product.token, to.add(first), distance) };
    };
    if count <= FEW_ROWS {
        thread_local! {
            static ROWS_OF_THREAD: RefCell<Vec<Block>> = RefCell::default();
        }
        ROWS_OF_THREAD.with_borrow_mut(|rows| {
            rows.resize(rows.len().max(count * blocks), Block::default());
            (0..count).for_each(|row| convert(row, rows.as_mut_ptr()));
            let part = |thread: usize| matrix.panels * thread / team.threads();
            for panel in part(team.thread())..part(team.thread() + 1) {
                // SAFETY: the caller's; no other thread has this panel.
                unsafe { multiply::<K>(product, matrix, panel, 0, rows.as_ptr()) };
            }
        });
        return;
    }
    let rows = product.scratch.cast::<Block>();
    (team.thread()..count).step_by(team.threads()).for_each(|row| convert(row, rows));
    for panels in groups(team, matrix.panels) {
        for first in (0..count).step_by(TILE) {
            for panel in panels.clone() {
                // SAFETY: the caller's; all rows are converted, and no other thread has this panel.
                unsafe { multiply::<K>(product, matrix, panel, first, rows) };
            }
        }
    }
}

/// Each row with the matrices of its experts.
unsafe fn multiply_chosen<K: Kernel>(product: &Product, matrix: &Matrix) {
    /// A row of the result.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    struct Choice {
        expert: usize,
        token: usize,
        at: usize,
    }
    #[derive(Default)]
    struct Own {
        choices: Vec<Choice>,
        tile: Vec<Block>,
    }
    thread_local! {
        static OWN: RefCell<Own> = RefCell::default();
    }
    let (team, blocks, rows_of_token) = (&product.team, matrix.blocks, product.rows_of_token as usize);
    let rows = product.scratch.cast::<Block>();
    for row in (team.thread()..product.tokens as usize * rows_of_token).step_by(team.threads()) {
        let offset = row / rows_of_token * product.token + row % rows_of_token * product.row;
        // SAFETY: the row is within the product, and the buffer holds all rows.
        unsafe { convert_row::<K>(product, offset, rows.add(row * blocks), 1) };
    }
    OWN.with_borrow_mut(|Own { choices, tile }| {
        choices.clear();
        for token in 0..product.tokens as usize {
            for at in 0..product.used as usize {
                // SAFETY: there is a number for each expert of each token.
                let expert = unsafe { *product.chosen.add(token * product.chosen_token).cast::<i32>().add(at) };
                assert!((0..product.experts).contains(&i64::from(expert)), "there is no such expert");
                choices.push(Choice { expert: expert as usize, token, at });
            }
        }
        choices.sort_unstable();
        tile.resize(TILE * blocks, Block::default());
        let of_experts: Vec<&[Choice]> = choices.chunk_by(|a, b| a.expert == b.expert).collect();
        for group in groups(team, of_experts.len() * matrix.panels) {
            let mut start = group.start;
            while start < group.end {
                let choices = of_experts[start / matrix.panels];
                let end = group.end.min((start / matrix.panels + 1) * matrix.panels);
                for choices in choices.chunks(TILE) {
                    for (row, choice) in choices.iter().enumerate() {
                        let from = (choice.token * rows_of_token + choice.at % rows_of_token) * blocks;
                        for block in 0..blocks {
                            // SAFETY: all rows are converted.
                            tile[block * choices.len() + row] = unsafe { *rows.add(from + block) };
                        }
                    }
                    for panel in start..end {
                        let panel = panel % matrix.panels;
                        let columns = columns(product, panel);
                        let mut results = [0.0_f32; TILE * ROWS];
                        // SAFETY: panel and rows are within the product, and no other thread has both.
                        unsafe {
                            let weights = matrix.panel(choices[0].expert * matrix.panels + panel);
                            let tile = (tile.as_ptr(), choices.len());
                            K::multiply(matrix.form, weights, blocks, tile, (results.as_mut_ptr(), ROWS));
                            for (row, choice) in choices.iter().enumerate() {
                                let offset = choice.token * product.out_token + choice.at * product.out_row;
                                let to = product.out.add(offset).cast::<f32>().add(columns.start);
                                std::ptr::copy_nonoverlapping(results.as_ptr().add(row * ROWS), to, columns.len());
                            }
                        }
                    }
                }
                start = end;
            }
        }
    });
}

/// Converts the row at an offset.
unsafe fn convert_row<K: Kernel>(product: &Product, offset: usize, to: *mut Block, distance: usize) {
    // SAFETY: the caller's.
    unsafe {
        let from = product.rows.add(offset).cast::<f32>();
        K::convert(slice::from_raw_parts(from, product.columns as usize), to, distance);
    }
}

/// Waits for all threads. Then yields ranges of numbers below `count`, each of which no other thread gets.
fn groups(team: &Team, count: usize) -> impl Iterator<Item = Range<usize>> {
    let size = (count / (4 * team.threads())).clamp(1, GROUP);
    if team.thread() == 0 {
        team.start_counting();
    }
    team.barrier();
    let mut next = team.thread();
    std::iter::from_fn(move || {
        let start = next * size;
        next = if start < count { team.next_number() } else { next };
        (start < count).then(|| start..count.min(start + size))
    })
}

/// The outputs of a panel.
fn columns(product: &Product, panel: usize) -> Range<usize> {
    panel * ROWS..(product.outputs as usize).min((panel + 1) * ROWS)
}

/// Multiplies a panel with the tile that begins at row `first`.
unsafe fn multiply<K: Kernel>(product: &Product, matrix: &Matrix, panel: usize, first: usize, rows: *const Block) {
    let (count, columns) = (TILE.min(product.tokens as usize - first), columns(product, panel));
    // SAFETY: the caller's; tile and panel are within the product.
    unsafe {
        let tile = (rows.add(first * matrix.blocks), count);
        let out = |row: usize| product.out.add((first + row) * product.out_token).cast::<f32>().add(columns.start);
        if columns.len() == ROWS {
            let distance = product.out_token / size_of::<f32>();
            K::multiply(matrix.form, matrix.panel(panel), matrix.blocks, tile, (out(0), distance));
            return;
        }
        let mut whole = [0.0_f32; TILE * ROWS];
        K::multiply(matrix.form, matrix.panel(panel), matrix.blocks, tile, (whole.as_mut_ptr(), ROWS));
        for row in 0..count {
            std::ptr::copy_nonoverlapping(whole.as_ptr().add(row * ROWS), out(row), columns.len());
        }
    }
}

#[cfg(test)]
mod tests;
