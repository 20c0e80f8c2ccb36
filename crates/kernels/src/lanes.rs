//! Vectors of f32 with the operations that attention needs, for each set of instructions.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod plain;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Cells of a block. Masks are read one block at a time.
pub(crate) const BLOCK: usize = 64;

/// Instructions for which there are kernels. A CPU with one of them also has those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Instructions {
    /// Those of every CPU of the architecture.
    Plain,
    Avx2,
    Avx512,
}

static MAX_INSTRUCTIONS: AtomicU8 = AtomicU8::new(Instructions::Avx512 as u8);

/// Limits the instructions that are used from now on, for tests.
pub fn limit_instructions(max: Instructions) {
    MAX_INSTRUCTIONS.store(max as u8, Relaxed);
}

/// The best allowed instructions of the CPU.
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
/// many numbers as a function reads or writes. Pointers need not be aligned.
///
/// Callers must be inlined into a function that enables the instructions, or each operation becomes a call. So do not use
/// closures around them: a closure is a separate function.
pub(crate) trait Vector: Copy {
    const COUNT: usize;
    /// The maximum of queries that are computed together, a multiple of `COUNT`, chosen for the number of registers.
    const ROWS: usize;
    /// The exponent for which `scale` returns 0.
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
    /// `other` if either is not a number.
    unsafe fn max(self, other: Self) -> Self;
    /// To the nearest whole number.
    unsafe fn round(self) -> Self;
    /// `self * 2^exponent`, for whole numbers from `VANISHING` to 0.
    unsafe fn scale(self, exponent: Self) -> Self;
    /// e to the power of each number, none of which may be above 0. For minus infinity exactly 0.
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
    /// Prefetches memory that will be read soon. Any address is allowed.
    #[inline(always)]
    unsafe fn prefetch(_from: *const u8) {}
    /// For a block of a mask: the cells that are not hidden, and those that are visible without a bias, a bit for each.
    unsafe fn visible(mask: *const u16) -> (u64, u64);
}

/// The mask's value for a hidden cell: minus infinity as f16.
pub(crate) const HIDDEN: u16 = 0xFC00;

/// The coefficients of 2^x for x within half of 0, from the highest power down.
const EXP2: [f32; 7] =
    [1.535_336_2e-4, 1.339_887_4e-3, 9.618_437e-3, 5.550_332_4e-2, 0.240_226_48, std::f32::consts::LN_2, 1.0];

/// A number format of the cache.
pub(crate) trait CacheElement {
    const BYTES: usize;
    /// # Safety
    /// As for `Vector::load`.
    unsafe fn load<V: Vector>(from: *const u8, index: usize) -> V;
}

pub(crate) struct F32;
pub(crate) struct F16;
pub(crate) struct Bf16;

impl CacheElement for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const u8, index: usize) -> V {
        // SAFETY: the caller's.
        unsafe { V::load(from.cast::<f32>().add(index)) }
    }
}

impl CacheElement for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const u8, index: usize) -> V {
        // SAFETY: the caller's.
        unsafe { V::load_f16(from.cast::<u16>().add(index)) }
    }
}

impl CacheElement for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const u8, index: usize) -> V {
        // SAFETY: the caller's.
        unsafe { V::load_bf16(from.cast::<u16>().add(index)) }
    }
}
