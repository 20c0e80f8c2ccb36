//! Attention to blocks of cells that many rows see. Each lane of a vector holds a row, and keys and values are converted
//! once for all of them. So neither products nor softmax sum across lanes.

use super::{NOTHING, Tile, bias, fill};
use crate::hook::Operation;
use crate::lanes::{BLOCK, CacheElement, Vector};

/// The rows that are computed together, one in each lane.
#[derive(Default)]
pub(super) struct Packed {
    pub(super) tokens: u64,
    rows: Vec<usize>,
    /// The number of rows, rounded up to whole vectors.
    width: usize,
    /// For each dimension, the numbers of all rows.
    queries: Vec<f32>,
    max: Vec<f32>,
    sum: Vec<f32>,
}

// As in `super`.
impl Tile {
    #[inline(always)]
    pub(super) unsafe fn see_together<V: Vector, S: CacheElement>(
        &mut self,
        operation: &Operation,
        start: usize,
        tokens: u64,
        (visible, is_biased): (Option<&[u64]>, bool),
    ) {
        let cells = BLOCK.min(operation.cells as usize - start);
        // SAFETY: the caller's; all buffers hold a block.
        unsafe {
            let finite_keys = convert::<V, S>(
                operation.k.add(start * operation.k_cell + self.kv_head * operation.k_head),
                (operation.k_cell, cells),
                (&mut self.keys, self.key_size),
            );
            let finite_values = convert::<V, S>(
                operation.v.add(start * operation.v_cell + self.kv_head * operation.v_head),
                (operation.v_cell, cells),
                (&mut self.values, self.value_size),
            );
            if !(finite_keys && finite_values) {
                return self.see_one_by_one::<V, S>(operation, start, tokens, (visible, is_biased));
            }
            self.pack::<V>(tokens);
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

    /// Computes each token with only the cells that it sees, because a weight of 0 does not hide an infinite number.
    #[inline(always)]
    unsafe fn see_one_by_one<V: Vector, S: CacheElement>(
        &mut self,
        operation: &Operation,
        start: usize,
        tokens: u64,
        (visible, is_biased): (Option<&[u64]>, bool),
    ) {
        self.unpack();
        for (at, token) in (0..64).filter(|token| tokens >> token & 1 == 1).enumerate() {
            let visible = visible.map_or(u64::MAX, |visible| visible[at]);
            let (mut cells, mut count) = ([0_u32; BLOCK], 0);
            for cell in (0..BLOCK).filter(|cell| visible >> cell & 1 == 1) {
                cells[count] = (start + cell) as u32;
                count += 1;
            }
            // SAFETY: the caller's.
            unsafe { self.see_alone::<V, S>(operation, token, (&cells[..count], is_biased)) };
        }
    }

    /// Puts the rows of some tokens into lanes, unless they already are there.
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

    /// Multiplies a block's keys with all packed queries.
    #[inline(always)]
    unsafe fn multiply_keys<V: Vector>(&mut self) {
        let (vectors, mut at) = (self.packed.width / V::COUNT, 0);
        while at < vectors {
            // SAFETY: the caller's.
            unsafe {
                // As many sums at a time as fit into registers: there are 32 with AVX-512, otherwise 16.
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

    /// Reads the mask's addends to the products of packed rows.
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

    /// Sets a bias that hides the cells that packed tokens do not see.
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
                // Two chains, because each step depends on the one before.
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

    /// Adds a block's weighted values to all packed rows.
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

    pub(super) fn unpack(&mut self) {
        if std::mem::take(&mut self.packed.tokens) != 0 {
            for (lane, row) in self.packed.rows.iter().enumerate() {
                self.max[*row] = self.packed.max[lane];
                self.sum[*row] = self.packed.sum[lane];
            }
        }
    }
}

/// Converts the rows of a block to f32. Rows beyond the last cell are 0. Returns whether all numbers are finite.
#[inline(always)]
unsafe fn convert<V: Vector, S: CacheElement>(
    from: *const u8,
    (stride, cells): (usize, usize),
    (to, size): (&mut [f32], usize),
) -> bool {
    // SAFETY: the cells are within the cache, and the buffer holds a block.
    unsafe {
        let (mut odd, zero) = (V::splat(0.0), V::splat(0.0));
        for cell in 0..cells {
            let (from, to) = (from.add(cell * stride), to.as_mut_ptr().add(cell * size));
            for at in (0..size).step_by(V::COUNT) {
                let numbers = S::load::<V>(from, at);
                odd = numbers.mul_add(zero, odd);
                numbers.store(to.add(at));
            }
        }
        to[cells * size..].fill(0.0);
        odd.sum() == 0.0
    }
}
