//! A tile: the queries of some tokens for the heads that read the same cells, with what they have seen so far.
//!
//! Softmax is computed online: each row has the largest product so far, the sum of exponentials relative to it, and the
//! values weighted by them; a larger product scales both down.
//!
//! Where a block of cells is computed for many rows together, rows lie in the lanes of vectors (`Packed`), and keys and
//! values are converted once. So neither products nor softmax ever add up lanes.

use std::ops::Range;

use half::f16;

use crate::hook::Operation;
use crate::lanes::{BLOCK, Source, Vector};
use crate::visibility::{Piece, View};

/// The largest product before there is any. Finite, so that differences are numbers.
const NOTHING: f32 = -1e30;

#[derive(Default)]
pub(crate) struct Tile {
    kv_head: usize,
    tokens: Range<usize>,
    group: usize,
    key_size: usize,
    value_size: usize,
    /// Scaled, a row for each token and head of the group.
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
    /// By which earlier sums are scaled.
    factors: Vec<f32>,
}

/// The rows that are computed together, in lanes.
#[derive(Default)]
struct Packed {
    tokens: u64,
    rows: Vec<usize>,
    /// The number of rows, rounded up to whole vectors.
    width: usize,
    /// For each dimension, that of all rows.
    queries: Vec<f32>,
    max: Vec<f32>,
    sum: Vec<f32>,
}

/// What a row has come to.
pub(crate) struct Row<'a> {
    pub(crate) max: f32,
    pub(crate) sum: f32,
    pub(crate) weighted: &'a [f32],
}

// All functions that take a vector are unsafe for the same reasons: the CPU must have its instructions, the operation must
// describe memory as the library lays it out, and tokens, heads and cells must be within it. Lengths of our own buffers
// are multiples of a vector's (`work::is_supported`).
impl Tile {
    /// Begins with queries that have seen nothing.
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
            // SAFETY: the token and the head are within the queries, and a row has so many numbers.
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

    /// Looks at some pieces of a view. Those for one token come last in it.
    #[inline(always)]
    pub(crate) unsafe fn see<V: Vector, S: Source>(
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

    #[inline(always)]
    unsafe fn see_together<V: Vector, S: Source>(
        &mut self,
        operation: &Operation,
        start: usize,
        tokens: u64,
        (visible, is_biased): (Option<&[u64]>, bool),
    ) {
        self.pack::<V>(tokens);
        let cells = BLOCK.min(operation.cells as usize - start);
        // SAFETY: the caller's; all buffers have room for a block.
        unsafe {
            convert::<V, S>(
                operation.k.add(start * operation.k_cell + self.kv_head * operation.k_head),
                (operation.k_cell, cells),
                (&mut self.keys, self.key_size),
            );
            convert::<V, S>(
                operation.v.add(start * operation.v_cell + self.kv_head * operation.v_head),
                (operation.v_cell, cells),
                (&mut self.values, self.value_size),
            );
            self.weights.resize(BLOCK * self.packed.width, 0.0);
            self.multiply_keys::<V>();
            if is_biased {
                self.read_bias(operation, start, cells);
            } else if let Some(visible) = visible {
                self.hide(visible);
            }
            self.weigh::<V>(is_biased || visible.is_some());
            self.add_values::<V>();
        }
    }

    /// Puts the rows of some tokens into lanes, if others are there.
    #[inline(always)]
    fn pack<V: Vector>(&mut self, tokens: u64) {
        if self.packed.tokens == tokens {
            return;
        }
        self.unpack();
        let packed = &mut self.packed;
        packed.tokens = tokens;
        packed.rows.clear();
        for token in (0..64).filter(|token| tokens >> token & 1 == 1) {
            packed.rows.extend(token * self.group..(token + 1) * self.group);
        }
        packed.width = packed.rows.len().next_multiple_of(V::COUNT);
        fill(&mut packed.queries, self.key_size * packed.width, 0.0);
        fill(&mut packed.max, packed.width, NOTHING);
        fill(&mut packed.sum, packed.width, 0.0);
        for (lane, row) in packed.rows.iter().enumerate() {
            packed.max[lane] = self.max[*row];
            packed.sum[lane] = self.sum[*row];
            let query = &self.queries[row * self.key_size..][..self.key_size];
            for (dimension, number) in query.iter().enumerate() {
                packed.queries[dimension * packed.width + lane] = *number;
            }
        }
    }

    fn unpack(&mut self) {
        if std::mem::take(&mut self.packed.tokens) != 0 {
            for (lane, row) in self.packed.rows.iter().enumerate() {
                self.max[*row] = self.packed.max[lane];
                self.sum[*row] = self.packed.sum[lane];
            }
        }
    }

    /// Products of a block's keys with all packed queries.
    #[inline(always)]
    unsafe fn multiply_keys<V: Vector>(&mut self) {
        let (vectors, mut at) = (self.packed.width / V::COUNT, 0);
        while at < vectors {
            // SAFETY: the caller's.
            unsafe {
                // As many sums at a time as there are registers: 32 with AVX-512, else 16.
                at += match (vectors - at, V::COUNT) {
                    (3.., 16) => self.multiply_some::<V, 8, 3>(at),
                    (2, 16) => self.multiply_some::<V, 8, 2>(at),
                    (_, 16) => self.multiply_some::<V, 8, 1>(at),
                    (3.., _) => self.multiply_some::<V, 4, 3>(at),
                    (2, _) => self.multiply_some::<V, 4, 2>(at),
                    (_, _) => self.multiply_some::<V, 4, 1>(at),
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn multiply_some<V: Vector, const CELLS: usize, const VECTORS: usize>(&mut self, first: usize) -> usize {
        let width = self.packed.width;
        // SAFETY: vectors from the first one on are within the width, and a block is a multiple of the cells.
        unsafe {
            let queries = self.packed.queries.as_ptr().add(first * V::COUNT);
            let weights = self.weights.as_mut_ptr().add(first * V::COUNT);
            for cell in (0..BLOCK).step_by(CELLS) {
                let keys = self.keys.as_ptr().add(cell * self.key_size);
                let mut sums = [[V::splat(0.0); VECTORS]; CELLS];
                for dimension in 0..self.key_size {
                    let mut query = [V::splat(0.0); VECTORS];
                    for (vector, query) in query.iter_mut().enumerate() {
                        *query = V::load(queries.add(dimension * width + vector * V::COUNT));
                    }
                    for (at, sums) in sums.iter_mut().enumerate() {
                        let key = V::splat(*keys.add(at * self.key_size + dimension));
                        for (sum, query) in sums.iter_mut().zip(query) {
                            *sum = key.mul_add(query, *sum);
                        }
                    }
                }
                for (at, sums) in sums.iter().enumerate() {
                    for (vector, sum) in sums.iter().enumerate() {
                        sum.store(weights.add((cell + at) * width + vector * V::COUNT));
                    }
                }
            }
        }
        VECTORS
    }

    /// What the mask adds to the products of packed rows.
    unsafe fn read_bias(&mut self, operation: &Operation, start: usize, cells: usize) {
        let width = self.packed.width;
        fill(&mut self.bias, BLOCK * width, f32::NEG_INFINITY);
        for (lane, row) in self.packed.rows.iter().enumerate() {
            let token = self.tokens.start + row / self.group;
            for cell in 0..cells {
                // SAFETY: the token and the cell are within the mask.
                self.bias[cell * width + lane] = unsafe { bias(operation, token, start + cell) };
            }
        }
    }

    /// A bias that hides what packed tokens do not see.
    fn hide(&mut self, visible: &[u64]) {
        let (width, group) = (self.packed.width, self.group);
        fill(&mut self.bias, BLOCK * width, 0.0);
        for (token, visible) in visible[..self.packed.rows.len() / group].iter().enumerate() {
            let mut hidden = !visible;
            while hidden != 0 {
                let cell = hidden.trailing_zeros() as usize;
                self.bias[cell * width + token * group..][..group].fill(f32::NEG_INFINITY);
                hidden &= hidden - 1;
            }
        }
    }

    /// Turns products into weights.
    #[inline(always)]
    unsafe fn weigh<V: Vector>(&mut self, biased: bool) {
        let width = self.packed.width;
        self.factors.resize(width, 0.0);
        for lane in (0..width).step_by(V::COUNT) {
            // SAFETY: the lanes are within the width of all buffers.
            unsafe {
                let weights = self.weights.as_mut_ptr().add(lane);
                if biased {
                    let bias = self.bias.as_ptr().add(lane);
                    for cell in 0..BLOCK {
                        let product = V::load(weights.add(cell * width));
                        product.add(V::load(bias.add(cell * width))).store(weights.add(cell * width));
                    }
                }
                let before = V::load(self.packed.max.as_ptr().add(lane));
                // Two at a time, because each waits for the one before.
                let mut max = [before; 2];
                for cell in (0..BLOCK).step_by(2) {
                    max[0] = max[0].max(V::load(weights.add(cell * width)));
                    max[1] = max[1].max(V::load(weights.add((cell + 1) * width)));
                }
                let max = max[0].max(max[1]);
                let mut sum = [V::splat(0.0); 2];
                for cell in (0..BLOCK).step_by(2) {
                    for (at, sum) in sum.iter_mut().enumerate() {
                        let weight = V::load(weights.add((cell + at) * width)).sub(max).exp();
                        weight.store(weights.add((cell + at) * width));
                        *sum = sum.add(weight);
                    }
                }
                let factor = before.sub(max).exp();
                let sum_before = V::load(self.packed.sum.as_ptr().add(lane));
                sum_before.mul_add(factor, sum[0].add(sum[1])).store(self.packed.sum.as_mut_ptr().add(lane));
                max.store(self.packed.max.as_mut_ptr().add(lane));
                factor.store(self.factors.as_mut_ptr().add(lane));
            }
        }
    }

    /// Adds a block's values to all packed rows, by their weights.
    #[inline(always)]
    unsafe fn add_values<V: Vector>(&mut self) {
        let rows = self.packed.rows.len();
        let mut at = 0;
        while at < rows {
            // SAFETY: the caller's.
            unsafe {
                at += match (rows - at, V::COUNT) {
                    (6.., 16) => self.add_values_to::<V, 6>(at),
                    (3.., 16) => self.add_values_to::<V, 3>(at),
                    (2.., _) => self.add_values_to::<V, 2>(at),
                    (_, _) => self.add_values_to::<V, 1>(at),
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn add_values_to<V: Vector, const ROWS: usize>(&mut self, first: usize) -> usize {
        let (vectors, mut at) = (self.value_size / V::COUNT, 0);
        while at < vectors {
            // SAFETY: the caller's.
            unsafe {
                at += match vectors - at {
                    4.. => self.add_some_values_to::<V, ROWS, 4>(first, at),
                    _ => self.add_some_values_to::<V, ROWS, 1>(first, at),
                }
            }
        }
        ROWS
    }

    #[inline(always)]
    unsafe fn add_some_values_to<V: Vector, const ROWS: usize, const VECTORS: usize>(
        &mut self,
        first: usize,
        vector: usize,
    ) -> usize {
        let (width, size) = (self.packed.width, self.value_size);
        // SAFETY: the rows are packed ones, and the vectors within a value.
        unsafe {
            let values = self.values.as_ptr().add(vector * V::COUNT);
            let weights = self.weights.as_ptr().add(first);
            let mut sums = [[V::splat(0.0); VECTORS]; ROWS];
            for (at, sums) in sums.iter_mut().enumerate() {
                let factor = V::splat(*self.factors.as_ptr().add(first + at));
                let row = *self.packed.rows.as_ptr().add(first + at);
                let weighted = self.weighted.as_ptr().add(row * size + vector * V::COUNT);
                for (at, sum) in sums.iter_mut().enumerate() {
                    *sum = V::load(weighted.add(at * V::COUNT)).mul(factor);
                }
            }
            for cell in 0..BLOCK {
                let mut value = [V::splat(0.0); VECTORS];
                for (at, value) in value.iter_mut().enumerate() {
                    *value = V::load(values.add(cell * size + at * V::COUNT));
                }
                for (at, sums) in sums.iter_mut().enumerate() {
                    let weight = V::splat(*weights.add(cell * width + at));
                    for (sum, value) in sums.iter_mut().zip(value) {
                        *sum = weight.mul_add(value, *sum);
                    }
                }
            }
            for (at, sums) in sums.iter().enumerate() {
                let row = *self.packed.rows.as_ptr().add(first + at);
                let weighted = self.weighted.as_mut_ptr().add(row * size + vector * V::COUNT);
                for (at, sum) in sums.iter().enumerate() {
                    sum.store(weighted.add(at * V::COUNT));
                }
            }
        }
        VECTORS
    }

    /// Scattered cells, at most a block of them, for the rows of one token.
    #[inline(always)]
    unsafe fn see_alone<V: Vector, S: Source>(&mut self, operation: &Operation, token: usize, cells: (&[u32], bool)) {
        let (mut row, end) = (token * self.group, (token + 1) * self.group);
        while row < end {
            // SAFETY: the caller's.
            unsafe {
                // As many sums at a time as there are registers, four for each row.
                row += match (end - row, V::COUNT) {
                    (4.., 16) => self.see_alone_with::<V, S, 4>(operation, row, cells),
                    (3, 16) => self.see_alone_with::<V, S, 3>(operation, row, cells),
                    (2.., _) => self.see_alone_with::<V, S, 2>(operation, row, cells),
                    (_, _) => self.see_alone_with::<V, S, 1>(operation, row, cells),
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn see_alone_with<V: Vector, S: Source, const ROWS: usize>(
        &mut self,
        operation: &Operation,
        row: usize,
        (cells, is_biased): (&[u32], bool),
    ) -> usize {
        let mut weights = [[f32::NEG_INFINITY; BLOCK]; ROWS];
        // SAFETY: the cells are within keys, values and mask; a row of weights has room for a block.
        unsafe {
            self.multiply_cells::<V, S, ROWS>(operation, row, cells, &mut weights);
            if is_biased {
                let token = self.tokens.start + row / self.group;
                for (at, cell) in cells.iter().enumerate() {
                    let bias = bias(operation, token, *cell as usize);
                    weights.iter_mut().for_each(|weights| weights[at] += bias);
                }
            }
            let mut factors = [0.0; ROWS];
            for (at, weights) in weights.iter_mut().enumerate() {
                let before = self.max[row + at];
                let mut max = V::splat(before);
                for from in (0..cells.len()).step_by(V::COUNT) {
                    max = max.max(V::load(weights.as_ptr().add(from)));
                }
                let max = max.largest();
                let (highest, mut sum) = (V::splat(max), V::splat(0.0));
                for from in (0..cells.len()).step_by(V::COUNT) {
                    let weight = V::load(weights.as_ptr().add(from)).sub(highest).exp();
                    weight.store(weights.as_mut_ptr().add(from));
                    sum = sum.add(weight);
                }
                factors[at] = (before - max).exp();
                self.sum[row + at] = self.sum[row + at] * factors[at] + sum.sum();
                self.max[row + at] = max;
            }
            let (vectors, mut at) = (self.value_size / V::COUNT, 0);
            while at < vectors {
                at += match (vectors - at, V::COUNT) {
                    (4.., 16) => self.add_cells::<V, S, ROWS, 4>(operation, (row, at), cells, &weights, &factors),
                    (2.., _) => self.add_cells::<V, S, ROWS, 2>(operation, (row, at), cells, &weights, &factors),
                    (_, _) => self.add_cells::<V, S, ROWS, 1>(operation, (row, at), cells, &weights, &factors),
                };
            }
        }
        ROWS
    }

    /// Products of scattered cells with some rows, four cells at a time.
    #[inline(always)]
    unsafe fn multiply_cells<V: Vector, S: Source, const ROWS: usize>(
        &mut self,
        operation: &Operation,
        row: usize,
        cells: &[u32],
        weights: &mut [[f32; BLOCK]; ROWS],
    ) {
        // SAFETY: the cells are within the keys, and the rows within the tile.
        unsafe {
            let queries = self.queries.as_ptr().add(row * self.key_size);
            let keys = operation.k.add(self.kv_head * operation.k_head);
            for (at, four) in cells.chunks(4).enumerate() {
                // The last one stands in for those that are missing.
                let mut key = [keys; 4];
                for (at, key) in key.iter_mut().enumerate() {
                    *key = keys.add(four[at.min(four.len() - 1)] as usize * operation.k_cell);
                }
                for cell in cells.iter().skip(4 * at + AHEAD).take(4) {
                    fetch::<V>(keys.add(*cell as usize * operation.k_cell), self.key_size * S::BYTES);
                }
                let mut sums = [[V::splat(0.0); 4]; ROWS];
                for dimension in (0..self.key_size).step_by(V::COUNT) {
                    let mut part = [V::splat(0.0); 4];
                    for (part, key) in part.iter_mut().zip(key) {
                        *part = S::load(key, dimension);
                    }
                    for (row, sums) in sums.iter_mut().enumerate() {
                        let query = V::load(queries.add(row * self.key_size + dimension));
                        for (sum, part) in sums.iter_mut().zip(part) {
                            *sum = part.mul_add(query, *sum);
                        }
                    }
                }
                for (weights, sums) in weights.iter_mut().zip(sums) {
                    let sums = V::sums(sums);
                    weights[4 * at..][..four.len()].copy_from_slice(&sums[..four.len()]);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn add_cells<V: Vector, S: Source, const ROWS: usize, const VECTORS: usize>(
        &mut self,
        operation: &Operation,
        (row, vector): (usize, usize),
        cells: &[u32],
        weights: &[[f32; BLOCK]; ROWS],
        factors: &[f32; ROWS],
    ) -> usize {
        // SAFETY: the cells are within the values, the rows within the tile, and the vectors within a value.
        unsafe {
            let weighted = self.weighted.as_mut_ptr().add(row * self.value_size + vector * V::COUNT);
            let values = operation.v.add(self.kv_head * operation.v_head);
            let mut sums = [[V::splat(0.0); VECTORS]; ROWS];
            for (row, sums) in sums.iter_mut().enumerate() {
                for (at, sum) in sums.iter_mut().enumerate() {
                    let before = V::load(weighted.add(row * self.value_size + at * V::COUNT));
                    *sum = before.mul(V::splat(factors[row]));
                }
            }
            for (index, cell) in cells.iter().enumerate() {
                let value = values.add(*cell as usize * operation.v_cell);
                if let Some(cell) = cells.get(index + AHEAD) {
                    let from = values.add(*cell as usize * operation.v_cell + vector * V::COUNT * S::BYTES);
                    fetch::<V>(from, VECTORS * V::COUNT * S::BYTES);
                }
                for at in 0..VECTORS {
                    let part: V = S::load(value, (vector + at) * V::COUNT);
                    for (row, sums) in sums.iter_mut().enumerate() {
                        sums[at] = part.mul_add(V::splat(*weights[row].get_unchecked(index)), sums[at]);
                    }
                }
            }
            for (row, sums) in sums.iter().enumerate() {
                for (at, sum) in sums.iter().enumerate() {
                    sum.store(weighted.add(row * self.value_size + at * V::COUNT));
                }
            }
        }
        VECTORS
    }
}

/// How many cells ahead memory is fetched, where they are scattered.
const AHEAD: usize = 8;
const CACHE_LINE: usize = 64;

/// Fetches some bytes that are going to be read soon.
#[inline(always)]
unsafe fn fetch<V: Vector>(from: *const u8, bytes: usize) {
    for at in (0..bytes).step_by(CACHE_LINE) {
        // SAFETY: the caller's.
        unsafe { V::prefetch(from.wrapping_add(at)) }
    }
}

/// What the mask adds to the product of a token and a cell.
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

/// Converts the rows of a block. Those beyond the last cell are 0.
#[inline(always)]
unsafe fn convert<V: Vector, S: Source>(
    from: *const u8,
    (stride, cells): (usize, usize),
    (to, size): (&mut [f32], usize),
) {
    for cell in 0..cells {
        // SAFETY: the cell is within the cache, and the buffer has room for a block.
        unsafe {
            let (from, to) = (from.add(cell * stride), to.as_mut_ptr().add(cell * size));
            for at in (0..size).step_by(V::COUNT) {
                S::load::<V>(from, at).store(to.add(at));
            }
        }
    }
    to[cells * size..].fill(0.0);
}

fn fill(buffer: &mut Vec<f32>, length: usize, value: f32) {
    buffer.clear();
    buffer.resize(length, value);
}
