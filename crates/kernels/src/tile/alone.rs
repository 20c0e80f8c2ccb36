//! Attention to scattered cells that one token sees. They are read in place, four at a time, for all heads of the token's
//! group.

use super::{Tile, bias};
use crate::hook::Operation;
use crate::lanes::{BLOCK, CacheElement, Vector};

/// How many cells ahead scattered cells are prefetched.
const AHEAD: usize = 8;
const CACHE_LINE: usize = 64;

/// Prefetches some bytes that will be read soon.
#[inline(always)]
unsafe fn fetch<V: Vector>(from: *const u8, bytes: usize) {
    for at in (0..bytes).step_by(CACHE_LINE) {
        // SAFETY: the caller's.
        unsafe { V::prefetch(from.wrapping_add(at)) }
    }
}

// As in `super`.
impl Tile {
    /// Adds scattered cells, at most a block of them, to the rows of one token.
    #[inline(always)]
    pub(super) unsafe fn see_alone<V: Vector, S: CacheElement>(
        &mut self,
        operation: &Operation,
        token: usize,
        cells: (&[u32], bool),
    ) {
        let (mut row, end) = (token * self.group, (token + 1) * self.group);
        while row < end {
            // SAFETY: the caller's.
            unsafe {
                // As many sums at a time as fit into registers, four for each row.
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
    unsafe fn see_alone_with<V: Vector, S: CacheElement, const ROWS: usize>(
        &mut self,
        operation: &Operation,
        row: usize,
        (cells, is_biased): (&[u32], bool),
    ) -> usize {
        let mut weights = [[f32::NEG_INFINITY; BLOCK]; ROWS];
        // SAFETY: the cells are within keys, values and mask; a row of weights holds a block.
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

    /// Multiplies scattered cells with some rows, four cells at a time.
    #[inline(always)]
    unsafe fn multiply_cells<V: Vector, S: CacheElement, const ROWS: usize>(
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
                // The last cell replaces missing ones.
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
    unsafe fn add_cells<V: Vector, S: CacheElement, const ROWS: usize, const VECTORS: usize>(
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
