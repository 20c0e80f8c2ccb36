//! AVX-512: 16 numbers.

use std::arch::x86_64::{
    __m512, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _mm256_loadu_si256, _mm512_add_ps, _mm512_castsi512_ps,
    _mm512_cmpeq_epi16_mask, _mm512_cmpneq_epi16_mask, _mm512_cvtepu16_epi32, _mm512_cvtph_ps, _mm512_fmadd_ps,
    _mm512_loadu_ps, _mm512_loadu_si512, _mm512_max_ps, _mm512_mul_ps, _mm512_reduce_add_ps, _mm512_roundscale_ps,
    _mm512_scalef_ps, _mm512_set1_epi16, _mm512_set1_ps, _mm512_slli_epi32, _mm512_storeu_ps, _mm512_sub_ps,
};

use super::{EXP2, HIDDEN, LOWEST, Vector};
use crate::hook::{Number, Operation};
use crate::work::{self, Buffers};

/// # Safety
/// The CPU must have the instructions, and the operation must describe memory as the library lays it out.
#[target_feature(enable = "avx512f,avx512bw,avx2,fma,f16c")]
pub(crate) unsafe fn compute(operation: &Operation, number: Number, buffers: &mut Buffers) {
    // SAFETY: the caller's.
    unsafe { work::compute::<Lanes>(operation, number, buffers) }
}

#[derive(Clone, Copy)]
pub(crate) struct Lanes(__m512);

// SAFETY of all blocks: the conditions of `Vector`.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one reason for all, in the trait's own words")]
impl Vector for Lanes {
    const COUNT: usize = 16;
    const ROWS: usize = 48;

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
    unsafe fn exp(self) -> Self {
        unsafe {
            let exponent = self.max(Self::splat(LOWEST)).mul(Self::splat(std::f32::consts::LOG2_E));
            let whole =
                Self(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(exponent.0));
            let rest = exponent.sub(whole);
            let mut power = Self::splat(EXP2[0]);
            for coefficient in &EXP2[1..] {
                power = power.mul_add(rest, Self::splat(*coefficient));
            }
            Self(_mm512_scalef_ps(power.0, whole.0))
        }
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe { _mm512_reduce_add_ps(self.0) }
    }

    #[inline(always)]
    unsafe fn visible(mask: *const u16) -> (u64, u64) {
        unsafe {
            let (low, high) = (_mm512_loadu_si512(mask.cast()), _mm512_loadu_si512(mask.add(32).cast()));
            let (hidden, plain) = (_mm512_set1_epi16(HIDDEN as i16), _mm512_set1_epi16(0));
            let visible = (_mm512_cmpneq_epi16_mask(low, hidden), _mm512_cmpneq_epi16_mask(high, hidden));
            let unbiased = (_mm512_cmpeq_epi16_mask(low, plain), _mm512_cmpeq_epi16_mask(high, plain));
            (
                u64::from(visible.0) | u64::from(visible.1) << 32,
                u64::from(unbiased.0) | u64::from(unbiased.1) << 32,
            )
        }
    }
}
