//! From the forms of model files to ours.

use half::f16;

use super::activations::BLOCK;
use super::panels::{EightSpan, Form, FourBlock, FourSpan, ROWS, SPAN, SixSpan};

/// How a file's weights are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Q4_0,
    Q4_1,
    Q4K,
    Q6K,
    Q8_0,
    /// Anything else that the library can turn into numbers.
    Other,
}

impl Source {
    /// By the library's numbers. `None` for what we leave to it: forms with fewer bits than ours, and 32 bits, which only
    /// small matrices have that need them.
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

    /// The form that takes up no more memory, or little more, and loses nothing that matters.
    pub(crate) fn form(self) -> Form {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q4K => Form::Four,
            Self::Q6K => Form::Six,
            Self::Q8_0 | Self::Other => Form::Eight,
        }
    }
}

fn number(bytes: &[u8]) -> f16 {
    f16::from_le_bytes([bytes[0], bytes[1]])
}

/// The two halves of bytes: first all lower ones, then all upper ones.
fn halves(bytes: &[u8]) -> [u8; BLOCK] {
    std::array::from_fn(|at| if at < 16 { bytes[at] & 15 } else { bytes[at - 16] >> 4 })
}

pub(crate) fn q4_0_span(bytes: &[u8]) -> FourSpan {
    let blocks: Vec<_> = bytes.chunks_exact(18).map(|block| {
        let (factor, numbers) = (number(block).to_f32(), halves(&block[2..]));
        // Counted from the other end, factors are never negative.
        match factor < 0.0 {
            false => (numbers, factor, 8.0 * factor),
            true => (numbers.map(|number| 15 - number), -factor, -7.0 * factor),
        }
    }).collect();
    FourSpan::new(&blocks)
}

pub(crate) fn q4_1_span(bytes: &[u8]) -> FourSpan {
    let blocks: Vec<_> = bytes.chunks_exact(20).map(|block| {
        let (numbers, factor, least) = (halves(&block[4..]), number(block).to_f32(), number(&block[2..]).to_f32());
        if least <= 0.0 {
            return (numbers, factor, -least);
        }
        // All weights are above 0, which is rare: they are counted from there.
        let larger = factor + least / 15.0;
        (numbers.map(|number| ((factor * f32::from(number) + least) / larger).round() as u8), larger, 0.0)
    }).collect();
    FourSpan::new(&blocks)
}

pub(crate) fn q4_k_span(bytes: &[u8]) -> FourSpan {
    let packed = &bytes[4..16];
    let blocks = (0..SPAN).map(|at| {
        let (factor, minimum) = match at < 4 {
            true => (packed[at] & 63, packed[at + 4] & 63),
            false => (packed[at + 4] & 15 | packed[at - 4] >> 6 << 4, packed[at + 4] >> 4 | packed[at] >> 6 << 4),
        };
        let pair = &bytes[16 + at / 2 * BLOCK..][..BLOCK];
        let numbers = std::array::from_fn(|column| pair[column] >> (at % 2 * 4) & 15);
        FourBlock { numbers, factor, minimum }
    });
    FourSpan { factor: number(bytes), minimum: number(&bytes[2..]), blocks: blocks.collect() }
}

pub(crate) fn q6_k_span(bytes: &[u8]) -> SixSpan {
    let (low, high, factors) = (&bytes[..128], &bytes[128..192], &bytes[192..208]);
    let blocks = (0..SPAN).map(|at| {
        // Four blocks share 64 bytes of lower halves and 32 of upper bits.
        let (group, part) = (at / 4, at % 4);
        let low = &low[group * 64 + part % 2 * BLOCK..][..BLOCK];
        let high = &high[group * BLOCK..][..BLOCK];
        let numbers = std::array::from_fn(|column| {
            low[column] >> (part / 2 * 4) & 15 | (high[column] >> (part * 2) & 3) << 4
        });
        (numbers, [factors[2 * at] as i8, factors[2 * at + 1] as i8])
    });
    SixSpan { factor: number(&bytes[208..]), blocks: blocks.collect() }
}

pub(crate) fn q8_0_span(bytes: &[u8]) -> EightSpan {
    let blocks = bytes.chunks_exact(34);
    EightSpan { blocks: blocks.map(|block| (std::array::from_fn(|at| block[2 + at] as i8), number(block))).collect() }
}

/// Lays out a panel, which is all 0, whose rows are given by their bytes. `to_floats` is for `Source::Other`.
pub(crate) fn lay_out(source: Source, rows: &[&[u8]], blocks: usize, panel: &mut [u8], to_floats: &dyn Fn(&[u8], &mut [f32])) {
    assert!(rows.len() <= ROWS);
    let form = source.form();
    let mut floats = vec![0.0; if source == Source::Other { blocks * BLOCK } else { 0 }];
    for (row, bytes) in rows.iter().enumerate() {
        if source == Source::Other {
            to_floats(bytes, &mut floats);
        }
        let (mut block, mut offset) = (0, 0);
        while block < blocks {
            let count = SPAN.min(blocks - block);
            let span = &mut panel[offset..offset + form.span_bytes(count)];
            let own = |size: usize| &bytes[block * size..(block + count) * size];
            match source {
                Source::Q4_0 => q4_0_span(own(18)).write(row, span),
                Source::Q4_1 => q4_1_span(own(20)).write(row, span),
                Source::Q4K => q4_k_span(&bytes[block / SPAN * 144..][..144]).write(row, span),
                Source::Q6K => q6_k_span(&bytes[block / SPAN * 210..][..210]).write(row, span),
                Source::Q8_0 => q8_0_span(own(34)).write(row, span),
                Source::Other => EightSpan::new(&floats[block * BLOCK..(block + count) * BLOCK]).write(row, span),
            }
            block += count;
            offset += form.span_bytes(count);
        }
    }
}
