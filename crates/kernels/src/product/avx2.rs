//! The kernel for AVX2: 32 products at a time, one half of a panel after the other.
#![allow(unsafe_op_in_unsafe_fn, reason = "every function is unsafe for the reasons that `Kernel` gives")]

use std::arch::x86_64::*;

use super::activations::{BLOCK, Block, TILE, inverse_factor};
use super::panels::{Form, HEADER, ROWS, SPAN, headers};
use super::{Kernel, request_ahead};

/// Rows of a panel that fill a vector.
const HALF: usize = ROWS / 2;
/// Rows of a tile that are multiplied together.
const TOGETHER: usize = 4;

pub(super) struct Products;

impl Kernel for Products {
    #[inline]
    unsafe fn convert(row: &[f32], to: *mut Block, distance: usize) {
        convert(row, to, distance);
    }

    #[inline]
    unsafe fn multiply(
        form: Form,
        panel: *const u8,
        blocks: usize,
        tile: (*const Block, usize),
        out: (*mut f32, usize),
    ) {
        match form {
            Form::Four => multiply_tile::<Four>(panel, blocks, tile, out),
            Form::FreeFour => multiply_tile::<FreeFour>(panel, blocks, tile, out),
            Form::Six => multiply_tile::<Six>(panel, blocks, tile, out),
            Form::Eight => multiply_tile::<Eight>(panel, blocks, tile, out),
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn convert(row: &[f32], to: *mut Block, distance: usize) {
    let sign = _mm256_set1_ps(-0.0);
    for at in 0..row.len() / BLOCK {
        let from = row.as_ptr().add(at * BLOCK);
        let mut quarters = [_mm256_setzero_ps(); 4];
        let mut largest = _mm256_setzero_ps();
        for (quarter, numbers) in quarters.iter_mut().enumerate() {
            *numbers = _mm256_loadu_ps(from.add(quarter * 8));
            largest = _mm256_max_ps(largest, _mm256_andnot_ps(sign, *numbers));
        }
        let mut lanes = [0.0_f32; 8];
        _mm256_storeu_ps(lanes.as_mut_ptr(), largest);
        let largest = lanes.into_iter().fold(0.0, f32::max);
        let (to, inverse) = (to.add(at * distance), _mm256_set1_ps(inverse_factor(largest)));
        let (mut sums, mut is_finite) = ([0_i32; 2], largest < f32::INFINITY);
        for (quarter, numbers) in quarters.into_iter().enumerate() {
            is_finite &= _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_UNORD_Q>(numbers, numbers)) == 0;
            let mut rounded = [0_i32; 8];
            _mm256_storeu_si256(rounded.as_mut_ptr().cast(), _mm256_cvtps_epi32(_mm256_mul_ps(numbers, inverse)));
            for (lane, number) in rounded.into_iter().enumerate() {
                (*to).numbers[quarter * 8 + lane] = number as i8;
                sums[quarter / 2] = sums[quarter / 2].wrapping_add(number);
            }
        }
        (*to).set_factor(largest, is_finite, sums);
    }
}

#[inline(always)]
unsafe fn multiply_tile<L: Layout>(
    panel: *const u8,
    blocks: usize,
    (rows, count): (*const Block, usize),
    (out, distance): (*mut f32, usize),
) {
    debug_assert!(count <= TILE);
    for half in 0..2 {
        for first in (0..count).step_by(TOGETHER) {
            let (rows, out) = ((rows.add(first), count), (out.add(first * distance + half * HALF), distance));
            match count - first {
                1 => multiply::<L, 1>(panel, half, blocks, rows, out),
                2 => multiply::<L, 2>(panel, half, blocks, rows, out),
                3 => multiply::<L, 3>(panel, half, blocks, rows, out),
                _ => multiply::<L, TOGETHER>(panel, half, blocks, rows, out),
            }
        }
    }
}

type Weights = [__m256i; 8];

/// How this kernel reads a form of weights.
trait Layout {
    const FORM: Form;
    type Factors: Copy;
    unsafe fn read(span: *const u8, half: usize, blocks: usize, block: usize) -> (Weights, Self::Factors);
    /// Adds the products with one row.
    unsafe fn add(weights: &Weights, factors: Self::Factors, row: *const Block, sums: __m256) -> __m256;
}

/// Four numbers of a row, in all lanes.
#[inline(always)]
unsafe fn four(row: *const Block, at: usize) -> __m256i {
    _mm256_set1_epi32((&raw const (*row).numbers).cast::<i8>().add(4 * at).cast::<i32>().read_unaligned())
}

/// Adds neighbouring numbers.
#[inline(always)]
unsafe fn pairs(sums: __m256i) -> __m256i {
    _mm256_madd_epi16(sums, _mm256_set1_epi16(1))
}

#[inline(always)]
unsafe fn f16s(from: *const u8) -> __m256 {
    _mm256_cvtph_ps(_mm_load_si128(from.cast()))
}

#[inline(always)]
unsafe fn u8s(from: *const u8) -> __m256 {
    _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast())))
}

#[inline(always)]
unsafe fn i8s(from: *const u8) -> __m256 {
    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast())))
}

struct Four;

impl Layout for Four {
    const FORM: Form = Form::Four;
    type Factors = (__m256, __m256);

    #[inline(always)]
    unsafe fn read(span: *const u8, half: usize, blocks: usize, block: usize) -> (Weights, Self::Factors) {
        let multiples = span.add((2 + block) * HEADER + half * HALF);
        let factors = _mm256_mul_ps(f16s(span.add(half * 16)), u8s(multiples));
        let minimums = _mm256_mul_ps(f16s(span.add(HEADER + half * 16)), u8s(multiples.add(ROWS)));
        (fours(span.add((2 + headers(blocks)) * HEADER + block * 256 + half * 32)), (factors, minimums))
    }

    #[inline(always)]
    unsafe fn add(weights: &Weights, (factors, minimums): Self::Factors, row: *const Block, sums: __m256) -> __m256 {
        add_fours(weights, (factors, minimums), row, sums)
    }
}

struct FreeFour;

impl Layout for FreeFour {
    const FORM: Form = Form::FreeFour;
    type Factors = (__m256, __m256);

    #[inline(always)]
    unsafe fn read(span: *const u8, half: usize, blocks: usize, block: usize) -> (Weights, Self::Factors) {
        let header = span.add(2 * block * HEADER + half * 16);
        let packed = span.add(2 * blocks * HEADER + block * 256 + half * 32);
        (fours(packed), (f16s(header), f16s(header.add(HEADER))))
    }

    #[inline(always)]
    unsafe fn add(weights: &Weights, factors: Self::Factors, row: *const Block, sums: __m256) -> __m256 {
        add_fours(weights, factors, row, sums)
    }
}

/// A block of numbers with 4 bits.
#[inline(always)]
unsafe fn fours(packed: *const u8) -> Weights {
    let low = _mm256_set1_epi8(15);
    let mut weights = [_mm256_setzero_si256(); 8];
    for at in 0..4 {
        let pair = _mm256_load_si256(packed.add(64 * at).cast());
        weights[2 * at] = _mm256_and_si256(pair, low);
        weights[2 * at + 1] = _mm256_and_si256(_mm256_srli_epi16::<4>(pair), low);
    }
    weights
}

#[inline(always)]
unsafe fn add_fours(
    weights: &Weights,
    (factors, minimums): (__m256, __m256),
    row: *const Block,
    sums: __m256,
) -> __m256 {
    // Sums of 16 products of at most 15 * 127 fit into 16 bits.
    let mut dot = _mm256_setzero_si256();
    for (at, weights) in weights.iter().enumerate() {
        dot = _mm256_add_epi16(dot, _mm256_maddubs_epi16(*weights, four(row, at)));
    }
    let factors = _mm256_mul_ps(factors, _mm256_set1_ps((*row).factor));
    let sums = _mm256_fmadd_ps(_mm256_cvtepi32_ps(pairs(dot)), factors, sums);
    _mm256_fnmadd_ps(minimums, _mm256_set1_ps((*row).sum), sums)
}

struct Six;

impl Layout for Six {
    const FORM: Form = Form::Six;
    type Factors = (__m256, __m256);

    #[inline(always)]
    unsafe fn read(span: *const u8, half: usize, blocks: usize, block: usize) -> (Weights, Self::Factors) {
        let (factor, multiples) = (f16s(span.add(half * 16)), span.add((2 + block) * HEADER + half * HALF));
        let factors = (_mm256_mul_ps(factor, i8s(multiples)), _mm256_mul_ps(factor, i8s(multiples.add(ROWS))));
        let low = span.add((2 + headers(blocks)) * HEADER + block * 256 + half * 32);
        let high = span.add((2 + headers(blocks)) * HEADER + blocks * 256 + block * 128 + half * 32);
        let (lower, upper) = (_mm256_set1_epi8(0x0F), _mm256_set1_epi8(0x30));
        let mut weights = [_mm256_setzero_si256(); 8];
        for quarter in 0..2 {
            let bits = _mm256_load_si256(high.add(64 * quarter).cast());
            let first = _mm256_load_si256(low.add(128 * quarter).cast());
            let second = _mm256_load_si256(low.add(128 * quarter + 64).cast());
            let parts = [
                (first, _mm256_srli_epi16::<2>(bits)),
                (_mm256_srli_epi16::<4>(first), bits),
                (second, _mm256_slli_epi16::<2>(bits)),
                (_mm256_srli_epi16::<4>(second), _mm256_slli_epi16::<4>(bits)),
            ];
            for (at, (low, high)) in parts.into_iter().enumerate() {
                let low = _mm256_and_si256(low, lower);
                weights[4 * quarter + at] = _mm256_or_si256(low, _mm256_and_si256(high, upper));
            }
        }
        (weights, factors)
    }

    #[inline(always)]
    unsafe fn add(weights: &Weights, factors: Self::Factors, row: *const Block, sums: __m256) -> __m256 {
        let second = _mm256_mul_ps(dot_half(weights, row, 1), factors.1);
        let both = _mm256_fmadd_ps(dot_half(weights, row, 0), factors.0, second);
        _mm256_fmadd_ps(both, _mm256_set1_ps((*row).factor), sums)
    }
}

/// The sums of products of half a block. Its weights have an offset of 32, which the correction removes.
#[inline(always)]
unsafe fn dot_half(weights: &Weights, row: *const Block, half: usize) -> __m256 {
    let mut dot = _mm256_srai_epi32::<2>(_mm256_set1_epi32((*row).corrections[half]));
    for at in [4 * half, 4 * half + 2] {
        // Sums of four products of at most 63 * 127 fit into 16 bits.
        let first = _mm256_maddubs_epi16(weights[at], four(row, at));
        let second = _mm256_maddubs_epi16(weights[at + 1], four(row, at + 1));
        dot = _mm256_add_epi32(dot, pairs(_mm256_add_epi16(first, second)));
    }
    _mm256_cvtepi32_ps(dot)
}

struct Eight;

impl Layout for Eight {
    const FORM: Form = Form::Eight;
    type Factors = __m256;

    #[inline(always)]
    unsafe fn read(span: *const u8, half: usize, blocks: usize, block: usize) -> (Weights, Self::Factors) {
        let from = span.add(headers(blocks) * HEADER + block * 512 + half * 32);
        let mut weights = [_mm256_setzero_si256(); 8];
        for (at, weights) in weights.iter_mut().enumerate() {
            *weights = _mm256_xor_si256(_mm256_load_si256(from.add(64 * at).cast()), _mm256_set1_epi8(-128));
        }
        (weights, f16s(span.add(block * HEADER + half * 16)))
    }

    #[inline(always)]
    unsafe fn add(weights: &Weights, factors: Self::Factors, row: *const Block, sums: __m256) -> __m256 {
        // Sums of two products of at most 127 * 127 fit into 16 bits. One factor must not be negative, so the other one
        // gets its sign.
        let mut dot = _mm256_setzero_si256();
        for (at, weights) in weights.iter().enumerate() {
            let signed = _mm256_sign_epi8(four(row, at), *weights);
            dot = _mm256_add_epi32(dot, pairs(_mm256_maddubs_epi16(_mm256_abs_epi8(*weights), signed)));
        }
        let factors = _mm256_mul_ps(factors, _mm256_set1_ps((*row).factor));
        _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), factors, sums)
    }
}

/// The products of half a panel with `N` rows of a tile that has `count`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multiply<L: Layout, const N: usize>(
    panel: *const u8,
    half: usize,
    blocks: usize,
    (rows, count): (*const Block, usize),
    (out, distance): (*mut f32, usize),
) {
    let mut sums = [_mm256_setzero_ps(); N];
    let (mut span, mut rows) = (panel, rows);
    for first in (0..blocks).step_by(SPAN) {
        let in_span = SPAN.min(blocks - first);
        for block in 0..in_span {
            let (weights, factors) = L::read(span, half, in_span, block);
            if half == 0 {
                request_ahead(L::FORM, span, block);
            }
            for (at, sums) in sums.iter_mut().enumerate() {
                *sums = L::add(&weights, factors, rows.add(at), *sums);
            }
            rows = rows.add(count);
        }
        span = span.add(L::FORM.span_bytes(in_span));
    }
    for (at, sums) in sums.iter().enumerate() {
        _mm256_storeu_ps(out.add(at * distance), *sums);
    }
}
