//! Vectors of f32 with what attention needs, for each set of instructions.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod plain;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Cells of a block. Masks are looked at one block at a time.
pub(crate) const BLOCK: usize = 64;

/// Instructions for which there are kernels; each kind of CPU has those before, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Instructions {
    /// What every CPU of the architecture has.
    Plain,
    Avx2,
    Avx512,
}

static MAX_INSTRUCTIONS: AtomicU8 = AtomicU8::new(Instructions::Avx512 as u8);

/// Uses no better instructions than these from now on, for tests.
pub fn limit_instructions(max: Instructions) {
    MAX_INSTRUCTIONS.store(max as u8, Relaxed);
}

/// The best instructions that the CPU has and that are allowed.
pub(crate) fn instructions() -> Instructions {
    static BEST: OnceLock<Instructions> = OnceLock::new();
    let max = match MAX_INSTRUCTIONS.load(Relaxed) {
        0 => Instructions::Plain,
        1 => Instructions::Avx2,
        _ => Instructions::Avx512,
    };
    max.min(*BEST.get_or_init(best_instructions))
}

#[cfg(target_arch = "x86_64")]
fn best_instructions() -> Instructions {
    use std::arch::is_x86_feature_detected as has;
    let avx2 = has!("avx2") && has!("fma") && has!("f16c");
    match avx2 && has!("avx512f") && has!("avx512bw") {
        true => Instructions::Avx512,
        false if avx2 => Instructions::Avx2,
        false => Instructions::Plain,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn best_instructions() -> Instructions {
    Instructions::Plain
}

/// A vector.
///
/// All functions are unsafe for the same two reasons: the CPU must have the instructions, and pointers must point to as
/// many numbers as a function reads or writes. They need not be aligned.
///
/// Whatever calls them must be inlined into a function that has the instructions, or each of them is a call: so no closures
/// around them, which are functions of their own.
pub(crate) trait Vector: Copy {
    const COUNT: usize;
    /// Queries that are computed together at most, a multiple of `COUNT`: what the registers are used best with.
    const ROWS: usize;
    /// `scale` by this is 0.
    const VANISHING: f32;

    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn load_f16(from: *const u16) -> Self;
    unsafe fn load_bf16(from: *const u16) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    /// `self * factor + addend`
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self;
    /// The other one if either is not a number.
    unsafe fn max(self, other: Self) -> Self;
    /// To the nearest whole number.
    unsafe fn round(self) -> Self;
    /// `self * 2^exponent`, for whole numbers from `VANISHING` to 0.
    unsafe fn scale(self, exponent: Self) -> Self;
    /// e to the power of each, of which none is above 0. Of minus infinity it is 0, not merely close to it.
    #[inline(always)]
    unsafe fn exp(self) -> Self {
        // SAFETY: the caller's.
        unsafe {
            let exponent = Self::splat(Self::VANISHING).max(self.mul(Self::splat(std::f32::consts::LOG2_E)));
            let whole = exponent.round();
            let rest = exponent.sub(whole);
            let mut power = Self::splat(EXP2[0]);
            for coefficient in &EXP2[1..] {
                power = power.mul_add(rest, Self::splat(*coefficient));
            }
            power.scale(whole)
        }
    }
    unsafe fn sum(self) -> f32;
    /// The sums of four vectors.
    #[inline(always)]
    unsafe fn sums(four: [Self; 4]) -> [f32; 4] {
        // SAFETY: the caller's.
        unsafe { [four[0].sum(), four[1].sum(), four[2].sum(), four[3].sum()] }
    }
    unsafe fn largest(self) -> f32;
    /// Fetches memory that is going to be read soon. Any address will do.
    #[inline(always)]
    unsafe fn prefetch(_from: *const u8) {}
    /// For a block of a mask: which cells are not hidden, and which are visible without a bias, a bit for each.
    unsafe fn visible(mask: *const u16) -> (u64, u64);
}

/// What a mask has for a hidden cell: minus infinity as f16.
pub(crate) const HIDDEN: u16 = 0xFC00;

/// The coefficients of 2^x for x within half of 0, from the highest power down.
const EXP2: [f32; 7] =
    [1.535_336_2e-4, 1.339_887_4e-3, 9.618_437e-3, 5.550_332_4e-2, 0.240_226_48, std::f32::consts::LN_2, 1.0];

/// Numbers of the cache.
pub(crate) trait Source {
    const BYTES: usize;
    /// # Safety
    /// As for `Vector::load`.
    unsafe fn load<V: Vector>(from: *const u8, index: usize) -> V;
}

pub(crate) struct F32;
pub(crate) struct F16;
pub(crate) struct Bf16;

impl Source for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const u8, index: usize) -> V {
        // SAFETY: the caller's.
        unsafe { V::load(from.cast::<f32>().add(index)) }
    }
}

impl Source for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const u8, index: usize) -> V {
        // SAFETY: the caller's.
        unsafe { V::load_f16(from.cast::<u16>().add(index)) }
    }
}

impl Source for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const u8, index: usize) -> V {
        // SAFETY: the caller's.
        unsafe { V::load_bf16(from.cast::<u16>().add(index)) }
    }
}
