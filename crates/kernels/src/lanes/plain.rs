//! Vectors as arrays of 4 numbers, for all other CPUs. The compiler vectorizes them where it can.

use half::{bf16, f16};

use super::{BLOCK, HIDDEN, Vector};

#[derive(Clone, Copy)]
pub(crate) struct Lanes([f32; 4]);

impl Lanes {
    #[inline(always)]
    fn with(self, other: Self, operation: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|lane| operation(self.0[lane], other.0[lane])))
    }
}

// SAFETY of all blocks: the conditions of `Vector`.
#[allow(clippy::undocumented_unsafe_blocks, reason = "the trait states one reason for all")]
impl Vector for Lanes {
    const COUNT: usize = 4;
    const ROWS: usize = 48;
    const VANISHING: f32 = -127.0;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; 4])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        Self(unsafe { from.cast::<[f32; 4]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        Self(unsafe { from.cast::<[u16; 4]>().read_unaligned() }.map(|bits| f16::from_bits(bits).to_f32()))
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        Self(unsafe { from.cast::<[u16; 4]>().read_unaligned() }.map(|bits| bf16::from_bits(bits).to_f32()))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { to.cast::<[f32; 4]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self.with(other, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        self.with(other, |a, b| a - b)
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        self.with(other, |a, b| a * b)
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        self.with(factor, |a, b| a * b).with(addend, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        self.with(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    unsafe fn round(self) -> Self {
        Self(self.0.map(f32::round_ties_even))
    }

    #[inline(always)]
    unsafe fn scale(self, exponent: Self) -> Self {
        self.with(exponent, |value, exponent| value * f32::from_bits(((exponent as i32 + 127) as u32) << 23))
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        self.0.iter().sum()
    }

    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        self.0.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    #[inline(always)]
    unsafe fn visible(mask: *const u16) -> (u64, u64) {
        let cells = unsafe { mask.cast::<[u16; BLOCK]>().read_unaligned() };
        let bits = |test: fn(u16) -> bool| {
            cells.iter().enumerate().fold(0, |bits, (at, cell)| bits | u64::from(test(*cell)) << at)
        };
        (bits(|cell| cell != HIDDEN), bits(|cell| cell == 0))
    }
}
