//! Converts weights from the forms of model files to ours.

use half::f16;

use super::activations::BLOCK;
use super::panels::{EightBlock, Form, FourBlock, FourSpan, FreeFourBlock, Numbers, ROWS, SPAN, SixSpan, in_all_bytes};

/// A form of weights in model files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WeightType {
    Q4_0,
    Q4_1,
    Q4K,
    Q6K,
    Q8_0,
    /// Any other form that the library can convert to floats.
    Other,
}

impl WeightType {
    /// From the library's type number. `None` for forms that we leave to the library: those with fewer bits than ours, and
    /// 32 bits, which only small matrices use that need them.
    pub(crate) fn from_library(kind: i32) -> Option<Self> {
        match kind {
            2 => Some(Self::Q4_0),
            3 => Some(Self::Q4_1),
            8 => Some(Self::Q8_0),
            12 => Some(Self::Q4K),
            14 => Some(Self::Q6K),
            // F16, Q5_0, Q5_1, Q5_K, BF16
            1 | 6 | 7 | 13 | 30 => Some(Self::Other),
            _ => None,
        }
    }

    /// The form that takes no more memory, or little more, without a relevant loss of precision.
    pub(crate) fn form(self) -> Form {
        match self {
            Self::Q4K => Form::Four,
            Self::Q4_0 | Self::Q4_1 => Form::FreeFour,
            Self::Q6K => Form::Six,
            Self::Q8_0 | Self::Other => Form::Eight,
        }
    }
}

#[inline(always)]
fn number(bytes: &[u8]) -> f16 {
    f16::from_le_bytes([bytes[0], bytes[1]])
}

/// The four bytes at word `at`.
#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[4 * at], bytes[4 * at + 1], bytes[4 * at + 2], bytes[4 * at + 3]])
}

/// The lower or the upper halves of four bytes.
#[inline(always)]
fn half(word: u32, upper: bool) -> u32 {
    (if upper { word >> 4 } else { word }) & in_all_bytes(15)
}

/// The halves of 16 bytes: all lower ones, then all upper ones.
#[inline(always)]
fn halves(bytes: &[u8]) -> Numbers {
    let mut numbers = Numbers::default();
    for (at, numbers) in numbers.iter_mut().enumerate() {
        *numbers = half(word(bytes, at % 4), at >= 4);
    }
    numbers
}

#[inline(always)]
fn q4_0_block(block: &[u8]) -> FreeFourBlock {
    let factor = number(block);
    FreeFourBlock { numbers: halves(&block[2..]), factor, minimum: f16::from_f32(8.0 * factor.to_f32()) }
}

#[inline(always)]
fn q4_1_block(block: &[u8]) -> FreeFourBlock {
    FreeFourBlock { numbers: halves(&block[4..]), factor: number(block), minimum: -number(&block[2..]) }
}

#[inline(always)]
fn q4_k_span(bytes: &[u8]) -> FourSpan {
    let packed = &bytes[4..16];
    let mut blocks = <[FourBlock; SPAN]>::default();
    for (at, block) in blocks.iter_mut().enumerate() {
        (block.factor, block.minimum) = match at < 4 {
            true => (packed[at] & 63, packed[at + 4] & 63),
            false => (packed[at + 4] & 15 | packed[at - 4] >> 6 << 4, packed[at + 4] >> 4 | packed[at] >> 6 << 4),
        };
        let pair = &bytes[16 + at / 2 * BLOCK..][..BLOCK];
        for (four, numbers) in block.numbers.iter_mut().enumerate() {
            *numbers = half(word(pair, four), at % 2 == 1);
        }
    }
    FourSpan { factor: number(bytes), minimum: number(&bytes[2..]), blocks }
}

#[inline(always)]
fn q6_k_span(bytes: &[u8]) -> SixSpan {
    let (low, high, factors) = (&bytes[..128], &bytes[128..192], &bytes[192..208]);
    let mut blocks = <[(Numbers, [i8; 2]); SPAN]>::default();
    for (at, (numbers, own_factors)) in blocks.iter_mut().enumerate() {
        // Four blocks share 64 bytes of lower halves and 32 of upper bits.
        let (group, part) = (at / 4, at % 4);
        let low = &low[group * 64 + part % 2 * BLOCK..][..BLOCK];
        let high = &high[group * BLOCK..][..BLOCK];
        for (four, numbers) in numbers.iter_mut().enumerate() {
            let upper = (word(high, four) >> (part * 2) & in_all_bytes(3)) << 4;
            *numbers = half(word(low, four), part >= 2) | upper;
        }
        *own_factors = [factors[2 * at] as i8, factors[2 * at + 1] as i8];
    }
    SixSpan { factor: number(&bytes[208..]), blocks }
}

#[inline(always)]
fn q8_0_block(block: &[u8]) -> EightBlock {
    EightBlock { numbers: std::array::from_fn(|at| word(&block[2..], at)), factor: number(block) }
}

/// Lays out a panel, which must be zeroed, from the bytes of its rows. `to_floats` is used for `WeightType::Other`.
pub(crate) fn lay_out(
    source: WeightType,
    rows: &[&[u8]],
    blocks: usize,
    panel: &mut [u8],
    to_floats: &dyn Fn(&[u8], &mut [f32]),
) {
    assert!(rows.len() <= ROWS);
    let (form, mut offset) = (source.form(), 0);
    for first in (0..blocks).step_by(SPAN) {
        let count = SPAN.min(blocks - first);
        let span = &mut panel[offset..offset + form.span_bytes(count)];
        offset += span.len();
        for (row, bytes) in rows.iter().enumerate() {
            let own = &bytes[bytes.len() * first / blocks..bytes.len() * (first + count) / blocks];
            match source {
                WeightType::Q4_0 => {
                    let blocks = own.chunks_exact(18).map(q4_0_block);
                    blocks.enumerate().for_each(|(at, block)| block.write(row, (at, count), span));
                }
                WeightType::Q4_1 => {
                    let blocks = own.chunks_exact(20).map(q4_1_block);
                    blocks.enumerate().for_each(|(at, block)| block.write(row, (at, count), span));
                }
                WeightType::Q4K => q4_k_span(own).write(row, span),
                WeightType::Q6K => q6_k_span(own).write(row, span),
                WeightType::Q8_0 => {
                    let blocks = own.chunks_exact(34).map(q8_0_block);
                    blocks.enumerate().for_each(|(at, block)| block.write(row, (at, count), span));
                }
                WeightType::Other => {
                    let mut floats = [0.0; SPAN * BLOCK];
                    let floats = &mut floats[..count * BLOCK];
                    to_floats(own, floats);
                    let blocks = floats.as_chunks().0.iter().map(EightBlock::new);
                    blocks.enumerate().for_each(|(at, block)| block.write(row, (at, count), span));
                }
            }
        }
    }
}
