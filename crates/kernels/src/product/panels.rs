//! The memory layout of weights in our form.
//!
//! A panel is 16 rows of a matrix, one for each number of a vector. It is cut into spans of 256 columns (the last one may
//! be shorter), and these into blocks of 32. A span begins with the factors of all blocks, followed by the weights of all
//! blocks, so that every load is aligned. Four neighbouring columns of 16 rows fill 64 bytes: one instruction multiplies
//! them with four numbers and adds the products of each row.

use half::f16;

use super::activations::BLOCK;

pub(crate) const ROWS: usize = 16;
/// Blocks of a span.
pub(crate) const SPAN: usize = 8;
/// Bytes of four columns of a panel.
const VECTOR: usize = 64;

/// How weights are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// 4 bits. A block's weights are multiples of a factor minus a minimum, which are multiples (0 to 255) of two numbers
    /// of the row's span.
    Four,
    /// 4 bits. A block's weights are multiples of a factor minus a minimum.
    FreeFour,
    /// 6 bits, from -32. The weights of half a block are multiples of a factor, which is a multiple (-128 to 127) of a
    /// number of the row's span.
    Six,
    /// 8 bits. A block's weights are multiples of a factor.
    Eight,
}

impl Form {
    /// The size of a span with this number of blocks.
    pub(crate) const fn span_bytes(self, blocks: usize) -> usize {
        match self {
            Self::Four => (2 + headers(blocks)) * HEADER + blocks * 4 * VECTOR,
            Self::FreeFour => blocks * (2 * HEADER + 4 * VECTOR),
            Self::Six => (2 + headers(blocks)) * HEADER + blocks * 6 * VECTOR,
            Self::Eight => headers(blocks) * HEADER + blocks * 8 * VECTOR,
        }
    }

    /// The size of a panel with this number of blocks.
    pub(crate) const fn panel_bytes(self, blocks: usize) -> usize {
        let last = blocks % SPAN;
        blocks / SPAN * self.span_bytes(SPAN) + if last > 0 { self.span_bytes(last) } else { 0 }
    }
}
/// Bytes of a number of 16 bits for each row, or of two with 8 bits.
pub(crate) const HEADER: usize = 32;

/// The headers of a span's blocks, rounded up so that the weights after them are aligned.
pub(crate) const fn headers(blocks: usize) -> usize {
    blocks.next_multiple_of(2)
}

/// 32 numbers of at most 8 bits, four in each word.
pub(crate) type Numbers = [u32; BLOCK / 4];

/// A word with this value in every byte.
pub(crate) const fn in_all_bytes(byte: u8) -> u32 {
    u32::from_le_bytes([byte; 4])
}

#[inline(always)]
fn write_u32(to: &mut [u8], at: usize, word: u32) {
    to[at..at + 4].copy_from_slice(&word.to_le_bytes());
}

#[inline(always)]
fn write_f16(to: &mut [u8], at: usize, number: f16) {
    to[at..at + 2].copy_from_slice(&number.to_le_bytes());
}

/// Writes two numbers of 4 bits to each byte.
#[inline(always)]
fn write_fours(numbers: &Numbers, row: usize, to: &mut [u8]) {
    for (at, pair) in numbers.as_chunks::<2>().0.iter().enumerate() {
        write_u32(to, at * VECTOR + 4 * row, pair[0] | pair[1] << 4);
    }
}

/// A block of a row in 4 bits: `weight = factor * number - minimum`.
pub(crate) struct FreeFourBlock {
    pub(crate) numbers: Numbers,
    pub(crate) factor: f16,
    pub(crate) minimum: f16,
}

impl FreeFourBlock {
    /// Writes it as a row of the block `at` of a panel's span, which has `count` blocks.
    #[inline(always)]
    pub(crate) fn write(&self, row: usize, (at, count): (usize, usize), span: &mut [u8]) {
        write_f16(span, 2 * at * HEADER + 2 * row, self.factor);
        write_f16(span, (2 * at + 1) * HEADER + 2 * row, self.minimum);
        write_fours(&self.numbers, row, &mut span[2 * count * HEADER + at * 4 * VECTOR..]);
    }
}

/// The same, but factor and minimum are multiples of the span's.
#[derive(Default)]
pub(crate) struct FourBlock {
    pub(crate) numbers: Numbers,
    pub(crate) factor: u8,
    pub(crate) minimum: u8,
}

/// A span of a row in 4 bits.
pub(crate) struct FourSpan {
    pub(crate) factor: f16,
    pub(crate) minimum: f16,
    pub(crate) blocks: [FourBlock; SPAN],
}

impl FourSpan {
    /// Writes it as a row of a panel's span.
    pub(crate) fn write(&self, row: usize, span: &mut [u8]) {
        write_f16(span, 2 * row, self.factor);
        write_f16(span, HEADER + 2 * row, self.minimum);
        for (at, block) in self.blocks.iter().enumerate() {
            let header = (2 + at) * HEADER;
            span[header + row] = block.factor;
            span[header + ROWS + row] = block.minimum;
            write_fours(&block.numbers, row, &mut span[(2 + SPAN) * HEADER + at * 4 * VECTOR..]);
        }
    }
}

/// A span of a row in 6 bits: for each block numbers from 0 to 63, and a factor for each half.
pub(crate) struct SixSpan {
    pub(crate) factor: f16,
    pub(crate) blocks: [(Numbers, [i8; 2]); SPAN],
}

impl SixSpan {
    pub(crate) fn write(&self, row: usize, span: &mut [u8]) {
        write_f16(span, 2 * row, self.factor);
        for (at, (numbers, factors)) in self.blocks.iter().enumerate() {
            for (half, factor) in factors.iter().enumerate() {
                span[(2 + at) * HEADER + half * ROWS + row] = *factor as u8;
            }
            let low = (2 + SPAN) * HEADER + at * 4 * VECTOR;
            let high = (2 + SPAN) * HEADER + SPAN * 4 * VECTOR + at * 2 * VECTOR;
            let mut lower = *numbers;
            lower.iter_mut().for_each(|four| *four &= in_all_bytes(15));
            write_fours(&lower, row, &mut span[low..]);
            for (quarter, numbers) in numbers.as_chunks::<4>().0.iter().enumerate() {
                let bits = numbers.iter().fold(0, |bits, four| bits << 2 | four >> 4 & in_all_bytes(3));
                write_u32(span, high + quarter * VECTOR + 4 * row, bits);
            }
        }
    }
}

/// A block of a row in 8 bits, with signs.
pub(crate) struct EightBlock {
    pub(crate) numbers: Numbers,
    pub(crate) factor: f16,
}

impl EightBlock {
    pub(crate) fn new(numbers: &[f32; BLOCK]) -> Self {
        let largest = numbers.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()));
        let factor = f16::from_f32(largest / 127.0);
        let inverse = if factor > f16::ZERO { 1.0 / factor.to_f32() } else { 0.0 };
        // Adding this constant rounds a small number into the lowest bits.
        let rounded = |number: f32| ((number * inverse).clamp(-127.0, 127.0) + 12_582_912.0).to_bits() as u8;
        let four = |four: &[f32; 4]| u32::from_le_bytes(four.map(rounded));
        Self { numbers: std::array::from_fn(|at| four(&numbers.as_chunks().0[at])), factor }
    }

    /// Writes it as a row of the block `at` of a panel's span, which has `count` blocks.
    pub(crate) fn write(&self, row: usize, (at, count): (usize, usize), span: &mut [u8]) {
        write_f16(span, at * HEADER + 2 * row, self.factor);
        let weights = headers(count) * HEADER + at * 8 * VECTOR;
        for (four, number) in self.numbers.iter().enumerate() {
            write_u32(span, weights + four * VECTOR + 4 * row, number ^ in_all_bytes(0x80));
        }
    }
}
