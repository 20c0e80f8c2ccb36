//! Compares every kernel, for every form of weights, with the same product in f64.

use half::f16;
use proptest::prelude::*;

use super::matrix::Memory;
use super::*;

/// The size of a row with this number of columns.
fn row_bytes(source: WeightType, columns: usize) -> usize {
    match source {
        WeightType::Q4_0 => columns / 32 * 18,
        WeightType::Q4_1 => columns / 32 * 20,
        WeightType::Q8_0 => columns / 32 * 34,
        WeightType::Q4K => columns / 256 * 144,
        WeightType::Q6K => columns / 256 * 210,
        WeightType::Other => columns * 4,
    }
}

/// Makes random bytes valid weights: only the factors must be limited to a range.
fn tame(source: WeightType, bytes: &mut [u8]) {
    let number = |bytes: &mut [u8], is_positive: bool| {
        let value = f32::from(i16::from_le_bytes([bytes[0], bytes[1]])) / 32768.0 * 0.01;
        let value = if is_positive { value.abs() } else { value };
        bytes[..2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
    };
    match source {
        WeightType::Q4_0 => bytes.chunks_mut(18).for_each(|block| number(block, false)),
        WeightType::Q8_0 => bytes.chunks_mut(34).for_each(|block| number(block, false)),
        WeightType::Q4_1 => bytes.chunks_mut(20).for_each(|block| {
            number(block, true);
            number(&mut block[2..], false);
        }),
        WeightType::Q4K => bytes.chunks_mut(144).for_each(|block| {
            number(block, true);
            number(&mut block[2..], true);
        }),
        WeightType::Q6K => bytes.chunks_mut(210).for_each(|block| number(&mut block[208..], false)),
        WeightType::Other => bytes.chunks_mut(4).for_each(|four| {
            let value = f32::from(i16::from_le_bytes([four[0], four[1]])) / 32768.0;
            four.copy_from_slice(&value.to_le_bytes());
        }),
    }
}

/// One weight, by the definition of its format.
fn weight(source: WeightType, bytes: &[u8], column: usize) -> f64 {
    let float = |at: usize| f64::from(f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32());
    let nibble = |at: usize, upper: bool| f64::from(if upper { bytes[at] >> 4 } else { bytes[at] & 15 });
    let (block, within) = (column / 32, column % 32);
    let (span, part) = (column / 256, column % 256);
    match source {
        WeightType::Q4_0 => float(block * 18) * (nibble(block * 18 + 2 + within % 16, within >= 16) - 8.0),
        WeightType::Q4_1 => {
            let start = block * 20;
            float(start) * nibble(start + 4 + within % 16, within >= 16) + float(start + 2)
        }
        WeightType::Q8_0 => float(block * 34) * f64::from(bytes[block * 34 + 2 + within] as i8),
        WeightType::Q4K => {
            let (start, group) = (span * 144, part / 32);
            let packed = |at: usize| bytes[start + 4 + at];
            let (factor, minimum) = match group {
                0..4 => (packed(group) & 63, packed(group + 4) & 63),
                _ => (
                    packed(group + 4) & 15 | packed(group - 4) >> 6 << 4,
                    packed(group + 4) >> 4 | packed(group) >> 6 << 4,
                ),
            };
            let number = nibble(start + 16 + group / 2 * 32 + within, group % 2 == 1);
            float(start) * f64::from(factor) * number - float(start + 2) * f64::from(minimum)
        }
        WeightType::Q6K => {
            let (start, side, quarter) = (span * 210, part / 128, part % 128 / 32);
            let low = nibble(start + side * 64 + quarter % 2 * 32 + within, quarter >= 2);
            let high = f64::from(bytes[start + 128 + side * 32 + within] >> (2 * quarter) & 3);
            let factor = bytes[start + 192 + side * 8 + quarter * 2 + within / 16] as i8;
            float(start + 208) * f64::from(factor) * (low + 16.0 * high - 32.0)
        }
        WeightType::Other => f64::from(f32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[4 * column + byte]))),
    }
}

/// The largest difference to f64, as a fraction of the sum of all products' absolute values.
fn worst_error<K: Kernel>(source: WeightType, weights: &[Vec<u8>], rows: &[Vec<f32>]) -> f64 {
    let (columns, count, blocks) = (rows[0].len(), rows.len(), rows[0].len() / BLOCK);
    let form = source.form();
    let memory = Memory::new(form.panel_bytes(blocks));
    let mut converted = vec![Block::default(); count * blocks];
    let mut out = vec![f32::NAN; count * ROWS];
    let to_floats = |bytes: &[u8], floats: &mut [f32]| {
        for (four, float) in bytes.as_chunks().0.iter().zip(floats) {
            *float = f32::from_le_bytes(*four);
        }
    };
    // SAFETY: the caller has checked that the CPU has the instructions, and all memory is as large as needed.
    unsafe {
        let panel = slice::from_raw_parts_mut(memory.start.as_ptr(), form.panel_bytes(blocks));
        let bytes: Vec<&[u8]> = weights.iter().map(Vec::as_slice).collect();
        sources::lay_out(source, &bytes, blocks, panel, &to_floats);
        for (at, row) in rows.iter().enumerate() {
            let (first, distance) = place(at, count, blocks);
            K::convert(row, converted.as_mut_ptr().add(first), distance);
        }
        for first in (0..count).step_by(TILE) {
            let tile = (converted.as_ptr().add(first * blocks), TILE.min(count - first));
            K::multiply(form, panel.as_ptr(), blocks, tile, (out.as_mut_ptr().add(first * ROWS), ROWS));
        }
    }
    let mut worst = 0.0_f64;
    for at in 0..count {
        let (first, distance) = place(at, count, blocks);
        for (output, weights) in weights.iter().enumerate() {
            let products = (0..columns).map(|column| {
                let block = &converted[first + column / BLOCK * distance];
                let number = f64::from(block.numbers[column % BLOCK]) * f64::from(block.factor);
                number * weight(source, weights, column)
            });
            let (sum, size) = products.fold((0.0, 1e-30), |(sum, size), product| (sum + product, size + product.abs()));
            worst = worst.max((f64::from(out[at * ROWS + output]) - sum).abs() / size);
        }
    }
    worst
}

fn all_sources() -> impl Strategy<Value = WeightType> {
    let all =
        [WeightType::Q4_0, WeightType::Q4_1, WeightType::Q4K, WeightType::Q6K, WeightType::Q8_0, WeightType::Other];
    prop::sample::select(all.to_vec())
}

/// The error that the conversion of weights may cause. The products are exact up to the precision of f32.
fn tolerance(source: WeightType) -> f64 {
    if source == WeightType::Other { 1e-2 } else { 2e-6 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn products_are_those_of_f64(
        source in all_sources(),
        spans in 1..4_usize,
        last_blocks in 0..8_usize,
        outputs in 1..=ROWS,
        count in 1..20_usize,
        seed: u64,
    ) {
        let is_whole = matches!(source, WeightType::Q4K | WeightType::Q6K);
        let columns = spans * 256 + if is_whole { 0 } else { last_blocks * BLOCK };
        let mut random = fastrand(seed);
        let weights: Vec<Vec<u8>> = (0..outputs).map(|_| {
            let mut bytes: Vec<u8> = (0..row_bytes(source, columns)).map(|_| random() as u8).collect();
            tame(source, &mut bytes);
            bytes
        }).collect();
        let row = |_| (0..columns).map(|_| (random() % 20_001) as f32 / 10_000.0 - 1.0).collect();
        let rows: Vec<Vec<f32>> = (0..count).map(row).collect();
        let best = lanes::instructions();
        #[cfg(target_arch = "x86_64")]
        {
            if best == Instructions::Avx512 && avx512::is_supported() {
                let error = worst_error::<avx512::Products>(source, &weights, &rows);
                prop_assert!(error < tolerance(source), "AVX-512: {error}");
            }
            if best >= Instructions::Avx2 {
                let error = worst_error::<avx2::Products>(source, &weights, &rows);
                prop_assert!(error < tolerance(source), "AVX2: {error}");
            }
        }
    }
}

/// A random number generator with a seed.
fn fastrand(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}
