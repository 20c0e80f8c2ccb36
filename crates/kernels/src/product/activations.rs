//! Rows that are multiplied with weights, in 8 bits.

/// Columns that share a factor.
pub(crate) const BLOCK: usize = 32;
/// Rows that are multiplied together. Their blocks lie side by side.
pub(crate) const TILE: usize = 8;
/// Weights are stored with this added, so that they are not negative.
pub(crate) const OFFSET: i32 = 128;
const LARGEST: f32 = 127.0;

/// A block of a row.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub(crate) struct Block {
    pub(crate) numbers: [i8; BLOCK],
    /// Scales the numbers.
    pub(crate) factor: f32,
    /// The sum of the block's values.
    pub(crate) sum: f32,
    /// Minus the sum of each half's numbers times `OFFSET`: corrects products with weights that have the offset.
    pub(crate) corrections: [i32; 2],
}

impl Block {
    /// Sets all fields but the numbers, given the sums of their halves. A block with a value that is not finite turns every
    /// result of its row into NaN.
    #[inline(always)]
    pub(crate) fn set_factor(&mut self, largest: f32, is_finite: bool, sums: [i32; 2]) {
        self.factor = if is_finite { largest / LARGEST } else { f32::NAN };
        self.sum = self.factor * sums[0].wrapping_add(sums[1]) as f32;
        self.corrections = sums.map(|sum| sum.wrapping_mul(-OFFSET));
    }
}

/// For a block with this largest absolute value.
#[inline(always)]
pub(crate) fn inverse_factor(largest: f32) -> f32 {
    if largest > 0.0 { LARGEST / largest } else { 0.0 }
}

/// The position of a row's first block, and the distance from one block to the next.
pub(crate) fn place(row: usize, rows: usize, blocks: usize) -> (usize, usize) {
    let first = row / TILE * TILE;
    let tile = TILE.min(rows - first);
    (first * blocks + row % TILE, tile)
}
