//! The kernel for AVX-512 with VNNI, its instructions for neural networks: 64 products at a time.
#![allow(unsafe_op_in_unsafe_fn, reason = "every function is unsafe for the reasons that `Kernel` gives")]

use std::arch::is_x86_feature_detected as has;
use std::arch::x86_64::*;

use super::activations::{BLOCK, Block, inverse_factor};
use super::panels::{Form, HEADER, ROWS, SPAN, headers};
use super::{Kernel, request_ahead};

pub(super) fn is_supported() -> bool {
    has!("avx512f") && has!("avx512bw") && has!("avx512vl") && has!("avx512vnni")
}

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

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
unsafe fn convert(row: &[f32], to: *mut Block, distance: usize) {
    for at in 0..row.len() / BLOCK {
        let from = row.as_ptr().add(at * BLOCK);
        let halves = [_mm512_loadu_ps(from), _mm512_loadu_ps(from.add(BLOCK / 2))];
        let largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(halves[0]), _mm512_abs_ps(halves[1])));
        let to = to.add(at * distance);
        let inverse = _mm512_set1_ps(inverse_factor(largest));
        let (mut sums, mut is_finite) = ([0; 2], largest < f32::INFINITY);
        for (half, numbers) in halves.into_iter().enumerate() {
            is_finite &= _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(numbers, numbers) == 0;
            let rounded = _mm512_cvtps_epi32(_mm512_mul_ps(numbers, inverse));
            _mm_storeu_si128((&raw mut (*to).numbers).cast::<__m128i>().add(half), _mm512_cvtepi32_epi8(rounded));
            sums[half] = _mm512_reduce_add_epi32(rounded);
        }
        (*to).set_factor(largest, is_finite, sums);
    }
}

#[inline(always)]
unsafe fn multiply_tile<L: Layout>(
    panel: *const u8,
    blocks: usize,
    (rows, count): (*const Block, usize),
    out: (*mut f32, usize),
) {
    match count {
        1 => multiply::<L, 1>(panel, blocks, rows, out),
        2 => multiply::<L, 2>(panel, blocks, rows, out),
        3 => multiply::<L, 3>(panel, blocks, rows, out),
        4 => multiply::<L, 4>(panel, blocks, rows, out),
        5 => multiply::<L, 5>(panel, blocks, rows, out),
        6 => multiply::<L, 6>(panel, blocks, rows, out),
        7 => multiply::<L, 7>(panel, blocks, rows, out),
        _ => multiply::<L, 8>(panel, blocks, rows, out),
    }
}

type Weights = [__m512i; 8];

/// How this kernel reads a form of weights.
trait Layout {
    const FORM: Form;
    type Factors: Copy;
    unsafe fn read(span: *const u8, blocks: usize, block: usize) -> (Weights, Self::Factors);
    /// Adds the products with one row.
    unsafe fn add(weights: &Weights, factors: Self::Factors, row: *const Block, sums: __m512) -> __m512;
}

#[inline(always)]
unsafe fn dot(weights: &[__m512i], numbers: *const i8, mut sums: __m512i) -> __m512i {
    for (at, weights) in weights.iter().enumerate() {
        let four = _mm512_set1_epi32(numbers.add(4 * at).cast::<i32>().read_unaligned());
        sums = _mm512_dpbusd_epi32(sums, *weights, four);
    }
    sums
}

/// The sums of products of both halves of a block. The corrections remove the offset of its weights.
#[inline(always)]
unsafe fn dot_halves(weights: &Weights, row: *const Block) -> (__m512i, __m512i) {
    let numbers = (&raw const (*row).numbers).cast::<i8>();
    let [first, second] = (*row).corrections;
    let sums = dot(&weights[..4], numbers, _mm512_set1_epi32(first));
    (sums, dot(&weights[4..], numbers.add(BLOCK / 2), _mm512_set1_epi32(second)))
}

#[inline(always)]
unsafe fn f16s(from: *const u8) -> __m512 {
    _mm512_cvtph_ps(_mm256_load_si256(from.cast()))
}
#[inline(always)]
unsafe fn u8s(from: *const u8) -> __m512 {
    _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_load_si128(from.cast())))
}
#[inline(always)]
unsafe fn i8s(from: *const u8) -> __m512 {
    _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128(from.cast())))
}

struct Four;
impl Layout for Four {
    const FORM: Form = Form::Four;
    type Factors = (__m512, __m512);
    #[inline(always)]
    unsafe fn read(span: *const u8, blocks: usize, block: usize) -> (Weights, Self::Factors) {
        let multiples = span.add((2 + block) * HEADER);
        let factors = _mm512_mul_ps(f16s(span), u8s(multiples));
        let minimums = _mm512_mul_ps(f16s(span.add(HEADER)), u8s(multiples.add(ROWS)));
        (fours(span.add((2 + headers(blocks)) * HEADER + block * 256)), (factors, minimums))
    }
    #[inline(always)]
    unsafe fn add(weights: &Weights, (factors, minimums): Self::Factors, row: *const Block, sums: __m512) -> __m512 {
        add_fours(weights, (factors, minimums), row, sums)
    }
}

struct FreeFour;
impl Layout for FreeFour {
    const FORM: Form = Form::FreeFour;
    type Factors = (__m512, __m512);
    #[inline(always)]
    unsafe fn read(span: *const u8, blocks: usize, block: usize) -> (Weights, Self::Factors) {
        let header = span.add(2 * block * HEADER);
        (fours(span.add(2 * blocks * HEADER + block * 256)), (f16s(header), f16s(header.add(HEADER))))
    }
    #[inline(always)]
    unsafe fn add(weights: &Weights, factors: Self::Factors, row: *const Block, sums: __m512) -> __m512 {
        add_fours(weights, factors, row, sums)
    }
}

/// A block of numbers with 4 bits.
#[inline(always)]
unsafe fn fours(packed: *const u8) -> Weights {
    let low = _mm512_set1_epi8(15);
    let mut weights = [_mm512_setzero_si512(); 8];
    for at in 0..4 {
        let pair = _mm512_load_si512(packed.add(64 * at).cast());
        weights[2 * at] = _mm512_and_si512(pair, low);
        weights[2 * at + 1] = _mm512_and_si512(_mm512_srli_epi16::<4>(pair), low);
    }
    weights
}

#[inline(always)]
unsafe fn add_fours(
    weights: &Weights,
    (factors, minimums): (__m512, __m512),
    row: *const Block,
    sums: __m512,
) -> __m512 {
    let dot = dot(weights, (&raw const (*row).numbers).cast(), _mm512_setzero_si512());
    let factors = _mm512_mul_ps(factors, _mm512_set1_ps((*row).factor));
    let sums = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), factors, sums);
    _mm512_fnmadd_ps(minimums, _mm512_set1_ps((*row).sum), sums)
}

struct Six;
impl Layout for Six {
    const FORM: Form = Form::Six;
    type Factors = (__m512, __m512);
    #[inline(always)]
    unsafe fn read(span: *const u8, blocks: usize, block: usize) -> (Weights, Self::Factors) {
        let (factor, multiples) = (_mm512_mul_ps(f16s(span), _mm512_set1_ps(0.25)), span.add((2 + block) * HEADER));
        let factors = (_mm512_mul_ps(factor, i8s(multiples)), _mm512_mul_ps(factor, i8s(multiples.add(ROWS))));
        let low = span.add((2 + headers(blocks)) * HEADER + block * 256);
        let high = span.add((2 + headers(blocks)) * HEADER + blocks * 256 + block * 128);
        // Four times the number: the lower four bits in the middle, the upper two at the top.
        let (middle, top) = (_mm512_set1_epi8(0x3C), _mm512_set1_epi8(-0x40));
        let mut weights = [_mm512_setzero_si512(); 8];
        for quarter in 0..2 {
            let upper = _mm512_load_si512(high.add(64 * quarter).cast());
            let first = _mm512_load_si512(low.add(128 * quarter).cast());
            let second = _mm512_load_si512(low.add(128 * quarter + 64).cast());
            let parts = [
                (_mm512_slli_epi16::<2>(first), upper),
                (_mm512_srli_epi16::<2>(first), _mm512_slli_epi16::<2>(upper)),
                (_mm512_slli_epi16::<2>(second), _mm512_slli_epi16::<4>(upper)),
                (_mm512_srli_epi16::<2>(second), _mm512_slli_epi16::<6>(upper)),
            ];
            for (at, (lower, upper)) in parts.into_iter().enumerate() {
                let lower = _mm512_and_si512(lower, middle);
                weights[4 * quarter + at] = _mm512_or_si512(lower, _mm512_and_si512(upper, top));
            }
        }
        (weights, factors)
    }
    #[inline(always)]
    unsafe fn add(weights: &Weights, factors: Self::Factors, row: *const Block, sums: __m512) -> __m512 {
        let (first, second) = dot_halves(weights, row);
        let second = _mm512_mul_ps(_mm512_cvtepi32_ps(second), factors.1);
        let both = _mm512_fmadd_ps(_mm512_cvtepi32_ps(first), factors.0, second);
        _mm512_fmadd_ps(both, _mm512_set1_ps((*row).factor), sums)
    }
}

struct Eight;
impl Layout for Eight {
    const FORM: Form = Form::Eight;
    type Factors = __m512;
    #[inline(always)]
    unsafe fn read(span: *const u8, blocks: usize, block: usize) -> (Weights, Self::Factors) {
        let from = span.add(headers(blocks) * HEADER + block * 512);
        let mut weights = [_mm512_setzero_si512(); 8];
        for (at, weights) in weights.iter_mut().enumerate() {
            *weights = _mm512_load_si512(from.add(64 * at).cast());
        }
        (weights, f16s(span.add(block * HEADER)))
    }
    #[inline(always)]
    unsafe fn add(weights: &Weights, factors: Self::Factors, row: *const Block, sums: __m512) -> __m512 {
        let (first, second) = dot_halves(weights, row);
        let factors = _mm512_mul_ps(factors, _mm512_set1_ps((*row).factor));
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(first, second)), factors, sums)
    }
}

/// The products of a panel with a tile of `N` rows.
#[expect(clippy::needless_range_loop, reason = "only so do sums stay in registers")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn multiply<L: Layout, const N: usize>(
    panel: *const u8,
    blocks: usize,
    rows: *const Block,
    (out, distance): (*mut f32, usize),
) {
    let mut sums = [_mm512_setzero_ps(); N];
    let (mut span, mut rows) = (panel, rows);
    for first in (0..blocks).step_by(SPAN) {
        let count = SPAN.min(blocks - first);
        for block in 0..count {
            let (weights, factors) = L::read(span, count, block);
            request_ahead(L::FORM, span, block);
            // Two loops, because the compiler does not unroll a longer one.
            for at in 0..N / 2 {
                sums[at] = L::add(&weights, factors, rows.add(at), sums[at]);
            }
            for at in N / 2..N {
                sums[at] = L::add(&weights, factors, rows.add(at), sums[at]);
            }
            rows = rows.add(N);
        }
        span = span.add(L::FORM.span_bytes(count));
    }
    for (at, sums) in sums.iter().enumerate() {
        _mm512_storeu_ps(out.add(at * distance), *sums);
    }
}
