//! Rows that are multiplied with weights, in 8 bits.

/// Columns that share a factor.
pub(crate) const BLOCK: usize = 32;
/// Rows that are multiplied together. Their blocks lie side by side.
pub(crate) const TILE: usize = 8;
/// Weights are stored with this added, so that they are not negative.
pub(crate) const OFFSET: i32 = 128;

/// A block of a row.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub(crate) struct Block {
    pub(crate) numbers: [i8; BLOCK],
    /// What the numbers are multiplied with.
    pub(crate) factor: f32,
    /// The sum of the block.
    pub(crate) sum: f32,
    /// What each half's numbers times `OFFSET` are too much.
    pub(crate) corrections: [i32; 2],
}

impl Block {
    #[inline(always)]
    pub(crate) fn new(numbers: &[f32; BLOCK]) -> Self {
        let largest = numbers.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()));
        let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
        let mut block = Self { factor: largest / 127.0, ..Self::default() };
        let mut sums = [0; 2];
        for (at, number) in numbers.iter().enumerate() {
            let rounded = (number * inverse).round_ties_even() as i32;
            block.numbers[at] = rounded as i8;
            sums[at / (BLOCK / 2)] += rounded;
        }
        block.sum = block.factor * (sums[0] + sums[1]) as f32;
        block.corrections = sums.map(|sum| -OFFSET * sum);
        block
    }
}

/// Where the blocks of a row lie: the first one, and the distance from one to the next.
pub(crate) fn place(row: usize, rows: usize, blocks: usize) -> (usize, usize) {
    let first = row / TILE * TILE;
    let tile = TILE.min(rows - first);
    (first * blocks + row % TILE, tile)
}
