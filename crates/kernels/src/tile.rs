//! A tile: the queries of some tokens for the heads that read the same cells, with their intermediate results.
//!
//! Softmax is computed online: each row has the largest product so far, the sum of exponentials relative to it, and the
//! sum of values weighted by them. A larger product scales both sums down.
//!
//! Cells that many rows see are computed for all of these rows together (`together`), others for one token (`alone`).

mod alone;
mod together;

use std::ops::Range;

use half::f16;

use crate::hook::Operation;
use crate::lanes::{BLOCK, CacheElement, Vector};
use crate::tile::together::Packed;
use crate::visibility::{Piece, View};

/// The initial value of the largest product. Finite, so that differences are numbers.
const NOTHING: f32 = -1e30;

#[derive(Default)]
pub(crate) struct Tile {
    kv_head: usize,
    tokens: Range<usize>,
    group: usize,
    key_size: usize,
    value_size: usize,
    /// Scaled queries: a row for each token and head of the group.
    queries: Vec<f32>,
    weighted: Vec<f32>,
    max: Vec<f32>,
    sum: Vec<f32>,
    packed: Packed,
    /// The keys and values of a block.
    keys: Vec<f32>,
    values: Vec<f32>,
    /// Products, and then exponentials, of a block.
    weights: Vec<f32>,
    bias: Vec<f32>,
    /// Factors that scale earlier sums.
    factors: Vec<f32>,
}

/// The intermediate result of a row.
pub(crate) struct Row<'a> {
    pub(crate) max: f32,
    pub(crate) sum: f32,
    pub(crate) weighted: &'a [f32],
}

// All functions that take a vector are unsafe for the same reasons: the CPU must have its instructions, the operation must
// describe memory as the library lays it out, and tokens, heads and cells must be within it. Lengths of our own buffers
// are multiples of a vector's (`work::is_supported`).
impl Tile {
    /// Loads the queries of a tile and resets all results.
    #[inline(always)]
    pub(crate) unsafe fn begin<V: Vector>(&mut self, operation: &Operation, tokens: Range<usize>, kv_head: usize) {
        self.group = operation.group();
        (self.kv_head, self.tokens) = (kv_head, tokens);
        (self.key_size, self.value_size) = (operation.key_size as usize, operation.value_size as usize);
        let rows = self.rows();
        self.queries.resize(rows * self.key_size, 0.0);
        fill(&mut self.weighted, rows * self.value_size, 0.0);
        fill(&mut self.max, rows, NOTHING);
        fill(&mut self.sum, rows, 0.0);
        self.keys.resize(BLOCK * self.key_size, 0.0);
        self.values.resize(BLOCK * self.value_size, 0.0);
        self.packed.tokens = 0;
        for row in 0..rows {
            let (token, head) = (self.tokens.start + row / self.group, kv_head * self.group + row % self.group);
            // SAFETY: the token and the head are within the queries, and a row has `key_size` numbers.
            unsafe {
                let from = operation.q.add(token * operation.q_token + head * operation.q_head).cast::<f32>();
                let to = self.queries.as_mut_ptr().add(row * self.key_size);
                let scale = V::splat(operation.scale);
                for at in (0..self.key_size).step_by(V::COUNT) {
                    V::load(from.add(at)).mul(scale).store(to.add(at));
                }
            }
        }
    }

    pub(crate) fn rows(&self) -> usize {
        self.tokens.len() * self.group
    }

    /// Computes some pieces of a view. Pieces for one token come last in a view.
    #[inline(always)]
    pub(crate) unsafe fn see<V: Vector, S: CacheElement>(
        &mut self,
        operation: &Operation,
        view: &View,
        pieces: Range<usize>,
    ) {
        for piece in &view.pieces[pieces] {
            // SAFETY: the caller's.
            unsafe {
                match piece {
                    Piece::Together { start, tokens, visible } => {
                        let visible = visible.map(|from| &view.visible[from..]);
                        self.see_together::<V, S>(operation, *start, *tokens, (visible, view.is_biased));
                    }
                    Piece::Alone { token, cells } => {
                        self.unpack();
                        let cells = &view.cells[cells.clone()];
                        self.see_alone::<V, S>(operation, *token, (cells, view.is_biased));
                    }
                }
            }
        }
        self.unpack();
    }

    pub(crate) fn row(&self, row: usize) -> Row<'_> {
        let weighted = &self.weighted[row * self.value_size..][..self.value_size];
        Row { max: self.max[row], sum: self.sum[row], weighted }
    }
}

/// The mask's addend to the product of a token and a cell.
#[inline(always)]
unsafe fn bias(operation: &Operation, token: usize, cell: usize) -> f32 {
    if operation.mask.is_null() {
        return 0.0;
    }
    // SAFETY: the token and the cell are within the mask.
    match unsafe { *operation.mask.add(token * operation.mask_token).cast::<u16>().add(cell) } {
        0 => 0.0,
        bits => f16::from_bits(bits).to_f32(),
    }
}

fn fill(buffer: &mut Vec<f32>, length: usize, value: f32) {
    buffer.clear();
    buffer.resize(length, value);
}
