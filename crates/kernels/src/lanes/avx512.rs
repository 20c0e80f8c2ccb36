//! Vectors of 16 numbers with AVX-512.

use std::arch::x86_64::*;

use super::{HIDDEN, Vector};
use crate::hook::{Number, Operation};
use crate::sampling;
use crate::work::{self, Buffers};

/// # Safety
/// The CPU must have the instructions, and the operation must describe memory as the library lays it out.
#[target_feature(enable = "avx512f,avx512bw,avx2,fma,f16c")]
pub(crate) unsafe fn compute(operation: &Operation, number: Number, buffers: &mut Buffers) {
    // SAFETY: the caller's.
    unsafe { work::compute::<Lanes>(operation, number, buffers) }
}

/// # Safety
/// The CPU must have the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx2,fma,f16c")]
pub(crate) unsafe fn largest(numbers: &[f32]) -> f32 {
    // SAFETY: the caller's.
    unsafe { sampling::largest_with::<Lanes>(numbers) }
}

/// # Safety
/// The CPU must have the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx2,fma,f16c")]
pub(crate) unsafe fn sum_of_exponentials(numbers: &[f32], offset: f32, factor: f32) -> f32 {
    // SAFETY: the caller's.
    unsafe { sampling::sum_with::<Lanes>(numbers, offset, factor) }
}

#[derive(Clone, Copy)]
pub(crate) struct Lanes(__m512);

impl Lanes {
    /// The sum of both halves.
    ///
    /// # Safety
    /// As for `Vector`.
    #[inline(always)]
    unsafe fn halves(self) -> __m256 {
        // SAFETY: the caller's.
        unsafe {
            let high = _mm512_extractf64x4_pd::<1>(_mm512_castps_pd(self.0));
            _mm256_add_ps(_mm512_castps512_ps256(self.0), _mm256_castpd_ps(high))
        }
    }
}

// SAFETY of all blocks: the conditions of `Vector`.
#[allow(clippy::undocumented_unsafe_blocks, reason = "the trait states one reason for all")]
impl Vector for Lanes {
    const COUNT: usize = 16;
    const ROWS: usize = 48;
    const VANISHING: f32 = -1024.0;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self(unsafe { _mm512_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        Self(unsafe { _mm512_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) })
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        let bits = unsafe { _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())) };
        Self(unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits)) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        Self(unsafe { _mm512_sub_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        Self(unsafe { _mm512_mul_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        Self(unsafe { _mm512_fmadd_ps(self.0, factor.0, addend.0) })
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        Self(unsafe { _mm512_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn round(self) -> Self {
        Self(unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0) })
    }

    #[inline(always)]
    unsafe fn scale(self, exponent: Self) -> Self {
        Self(unsafe { _mm512_scalef_ps(self.0, exponent.0) })
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe { _mm512_reduce_add_ps(self.0) }
    }

    #[inline(always)]
    unsafe fn sums([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        unsafe {
            let pairs = (_mm256_hadd_ps(a.halves(), b.halves()), _mm256_hadd_ps(c.halves(), d.halves()));
            let four = _mm256_hadd_ps(pairs.0, pairs.1); // of each half
            let mut sums = [0.0; 4];
            _mm_storeu_ps(
                sums.as_mut_ptr(),
                _mm_add_ps(_mm256_castps256_ps128(four), _mm256_extractf128_ps::<1>(four)),
            );
            sums
        }
    }

    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        unsafe { _mm512_reduce_max_ps(self.0) }
    }

    #[inline(always)]
    unsafe fn prefetch(from: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }

    #[inline(always)]
    unsafe fn visible(mask: *const u16) -> (u64, u64) {
        unsafe {
            let (low, high) = (_mm512_loadu_si512(mask.cast()), _mm512_loadu_si512(mask.add(32).cast()));
            let (hidden, plain) = (_mm512_set1_epi16(HIDDEN as i16), _mm512_set1_epi16(0));
            let visible = (_mm512_cmpneq_epi16_mask(low, hidden), _mm512_cmpneq_epi16_mask(high, hidden));
            let unbiased = (_mm512_cmpeq_epi16_mask(low, plain), _mm512_cmpeq_epi16_mask(high, plain));
            (u64::from(visible.0) | u64::from(visible.1) << 32, u64::from(unbiased.0) | u64::from(unbiased.1) << 32)
        }
    }
}
