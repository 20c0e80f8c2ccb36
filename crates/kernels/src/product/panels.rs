//! Weights as the kernels read them.
//!
//! A panel is 16 rows of a matrix: what a vector of 16 numbers is made of. It is cut into spans of 256 columns (the last
//! one may be shorter), and these into blocks of 32. In a span first come the factors of all blocks, then the weights of
//! all blocks, so that every load is aligned. Four neighbouring columns of 16 rows fill 64 bytes: one instruction
//! multiplies them with four numbers and adds each row's products up.

use half::f16;

use super::activations::BLOCK;

pub(crate) const ROWS: usize = 16;
/// Blocks of a span.
pub(crate) const SPAN: usize = 8;
/// Bytes of four columns of a panel.
const VECTOR: usize = 64;

/// How weights are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// 4 bits. A block's weights are multiples of one number less another one, both of which are multiples, from 0 to 255,
    /// of two numbers of the row's span.
    Four,
    /// 6 bits, from -32. Half a block's weights are multiples of one number, which is one of the row's span times -128 to
    /// 127.
    Six,
    /// 8 bits. A block's weights are multiples of one number.
    Eight,
}

impl Form {
    /// Of a span with so many blocks.
    pub(crate) const fn span_bytes(self, blocks: usize) -> usize {
        match self {
            Self::Four => (2 + headers(blocks)) * HEADER + blocks * 4 * VECTOR,
            Self::Six => (2 + headers(blocks)) * HEADER + blocks * 6 * VECTOR,
            Self::Eight => headers(blocks) * HEADER + blocks * 8 * VECTOR,
        }
    }

    /// Of a panel with so many blocks.
    pub(crate) const fn panel_bytes(self, blocks: usize) -> usize {
        let last = blocks % SPAN;
        blocks / SPAN * self.span_bytes(SPAN) + if last > 0 { self.span_bytes(last) } else { 0 }
    }
}
/// Bytes of a number of 16 bits for each row, or of two with 8 bits.
pub(crate) const HEADER: usize = 32;

/// Of the blocks of a span, so that what follows is aligned.
pub(crate) const fn headers(blocks: usize) -> usize {
    blocks.next_multiple_of(2)
}

/// A block of a row before it is laid out: `weight = factor * number - minimum`.
pub(crate) struct FourBlock {
    pub(crate) numbers: [u8; BLOCK],
    pub(crate) factor: u8,
    pub(crate) minimum: u8,
}

/// A span of a row in 4 bits.
pub(crate) struct FourSpan {
    pub(crate) factor: f16,
    pub(crate) minimum: f16,
    pub(crate) blocks: Vec<FourBlock>,
}

impl FourSpan {
    /// From blocks with factors and minimums of their own.
    pub(crate) fn new(blocks: &[([u8; BLOCK], f32, f32)]) -> Self {
        let common = |number: fn(&([u8; BLOCK], f32, f32)) -> f32| {
            f16::from_f32(blocks.iter().map(number).fold(0.0, f32::max) / 255.0)
        };
        let (factor, minimum) = (common(|block| block.1), common(|block| block.2));
        let multiple = |number: f32, of: f16| match of.to_f32() {
            0.0 => 0,
            of => (number / of).round().min(255.0) as u8,
        };
        let blocks = blocks.iter().map(|(numbers, own_factor, own_minimum)| FourBlock {
            numbers: *numbers,
            factor: multiple(*own_factor, factor),
            minimum: multiple(*own_minimum, minimum),
        });
        Self { blocks: blocks.collect(), factor, minimum }
    }

    /// Writes it as a row of a panel's span.
    pub(crate) fn write(&self, row: usize, span: &mut [u8]) {
        let count = self.blocks.len();
        span[2 * row..][..2].copy_from_slice(&self.factor.to_le_bytes());
        span[HEADER + 2 * row..][..2].copy_from_slice(&self.minimum.to_le_bytes());
        for (at, block) in self.blocks.iter().enumerate() {
            let header = 2 * HEADER + at * HEADER;
            span[header + row] = block.factor;
            span[header + ROWS + row] = block.minimum;
            let weights = &mut span[(2 + headers(count)) * HEADER + at * 4 * VECTOR..][..4 * VECTOR];
            for (column, number) in block.numbers.iter().enumerate() {
                weights[column / 8 * VECTOR + 4 * row + column % 4] |= number << (column % 8 / 4 * 4);
            }
        }
    }
}

/// A span of a row in 6 bits, with numbers from 0 to 63.
pub(crate) struct SixSpan {
    pub(crate) factor: f16,
    pub(crate) blocks: Vec<([u8; BLOCK], [i8; 2])>,
}

impl SixSpan {
    pub(crate) fn write(&self, row: usize, span: &mut [u8]) {
        let count = self.blocks.len();
        span[2 * row..][..2].copy_from_slice(&self.factor.to_le_bytes());
        for (at, (numbers, factors)) in self.blocks.iter().enumerate() {
            for (half, factor) in factors.iter().enumerate() {
                span[(2 + at) * HEADER + half * ROWS + row] = *factor as u8;
            }
            let low = (2 + headers(count)) * HEADER + at * 4 * VECTOR;
            let high = (2 + headers(count)) * HEADER + count * 4 * VECTOR + at * 2 * VECTOR;
            for (column, number) in numbers.iter().enumerate() {
                let place = 4 * row + column % 4;
                span[low + column / 8 * VECTOR + place] |= (number & 15) << (column % 8 / 4 * 4);
                span[high + column / 16 * VECTOR + place] |= (number >> 4) << (6 - column % 16 / 4 * 2);
            }
        }
    }
}

/// A span of a row in 8 bits.
pub(crate) struct EightSpan {
    pub(crate) blocks: Vec<([i8; BLOCK], f16)>,
}

impl EightSpan {
    pub(crate) fn new(numbers: &[f32]) -> Self {
        let block = |numbers: &[f32; BLOCK]| {
            let largest = numbers.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()));
            let factor = f16::from_f32(largest / 127.0);
            let inverse = if factor > f16::ZERO { 1.0 / factor.to_f32() } else { 0.0 };
            (numbers.map(|number| (number * inverse).round_ties_even().clamp(-127.0, 127.0) as i8), factor)
        };
        Self { blocks: numbers.as_chunks().0.iter().map(block).collect() }
    }

    pub(crate) fn write(&self, row: usize, span: &mut [u8]) {
        let count = self.blocks.len();
        for (at, (numbers, factor)) in self.blocks.iter().enumerate() {
            span[at * HEADER + 2 * row..][..2].copy_from_slice(&factor.to_le_bytes());
            let weights = &mut span[headers(count) * HEADER + at * 8 * VECTOR..][..8 * VECTOR];
            for (column, number) in numbers.iter().enumerate() {
                weights[column / 4 * VECTOR + 4 * row + column % 4] = (*number as u8) ^ 0x80;
            }
        }
    }
}
