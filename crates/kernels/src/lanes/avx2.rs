//! Vectors of 8 numbers with AVX2.

use std::arch::x86_64::*;

use super::{HIDDEN, Vector};
use crate::hook::{Number, Operation};
use crate::sampling;
use crate::work::{self, Buffers};

/// # Safety
/// The CPU must have the instructions, and the operation must describe memory as the library lays it out.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn compute(operation: &Operation, number: Number, buffers: &mut Buffers) {
    // SAFETY: the caller's.
    unsafe { work::compute::<Lanes>(operation, number, buffers) }
}

/// # Safety
/// The CPU must have the instructions.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn largest(numbers: &[f32]) -> f32 {
    // SAFETY: the caller's.
    unsafe { sampling::largest_with::<Lanes>(numbers) }
}

/// # Safety
/// The CPU must have the instructions.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn sum_of_exponentials(numbers: &[f32], offset: f32, factor: f32) -> f32 {
    // SAFETY: the caller's.
    unsafe { sampling::sum_with::<Lanes>(numbers, offset, factor) }
}

#[derive(Clone, Copy)]
pub(crate) struct Lanes(__m256);

/// A bit for each of 32 cells of a mask: whether it equals a value.
///
/// # Safety
/// As for `Vector::visible`.
#[inline(always)]
unsafe fn equal(mask: *const u16, value: u16) -> u64 {
    // SAFETY: the caller's.
    unsafe {
        let value = _mm256_set1_epi16(value as i16);
        let low = _mm256_cmpeq_epi16(_mm256_loadu_si256(mask.cast()), value);
        let high = _mm256_cmpeq_epi16(_mm256_loadu_si256(mask.add(16).cast()), value);
        let bytes = _mm256_packs_epi16(low, high); // of alternating halves
        u64::from(_mm256_movemask_epi8(_mm256_permute4x64_epi64::<0b11_01_10_00>(bytes)) as u32)
    }
}

// SAFETY of all blocks: the conditions of `Vector`.
#[allow(clippy::undocumented_unsafe_blocks, reason = "the trait states one reason for all")]
impl Vector for Lanes {
    const COUNT: usize = 8;
    const ROWS: usize = 48;
    const VANISHING: f32 = -127.0;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self(unsafe { _mm256_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        Self(unsafe { _mm256_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        Self(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) })
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        let bits = unsafe { _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast())) };
        Self(unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits)) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm256_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(unsafe { _mm256_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        Self(unsafe { _mm256_sub_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        Self(unsafe { _mm256_mul_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        Self(unsafe { _mm256_fmadd_ps(self.0, factor.0, addend.0) })
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        Self(unsafe { _mm256_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn round(self) -> Self {
        Self(unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0) })
    }

    #[inline(always)]
    unsafe fn scale(self, exponent: Self) -> Self {
        unsafe {
            // The bits of the power: of a normal number, or of 0 for the lowest exponent.
            let bits = _mm256_add_epi32(_mm256_cvtps_epi32(exponent.0), _mm256_set1_epi32(127));
            self.mul(Self(_mm256_castsi256_ps(_mm256_slli_epi32::<23>(bits))))
        }
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }

    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }

    #[inline(always)]
    unsafe fn prefetch(from: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }

    #[inline(always)]
    unsafe fn visible(mask: *const u16) -> (u64, u64) {
        unsafe {
            let high = mask.add(32);
            (!(equal(mask, HIDDEN) | equal(high, HIDDEN) << 32), equal(mask, 0) | equal(high, 0) << 32)
        }
    }
}
