//! Sums over the logits of a vocabulary, for drawing tokens.

use crate::lanes::{self, Instructions, Vector};

/// The largest of some numbers; NaN if any is NaN or positive infinity; negative infinity if there are none. A number may
/// be negative infinity, by which some models exclude tokens.
pub fn largest(numbers: &[f32]) -> f32 {
    match lanes::instructions() {
        // SAFETY: the CPU has the instructions.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512 => unsafe { lanes::avx512::largest(numbers) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2 => unsafe { lanes::avx2::largest(numbers) },
        // SAFETY: it needs no special instructions.
        _ => unsafe { largest_with::<lanes::plain::Lanes>(numbers) },
    }
}

/// The sum of exp((number - offset) * factor). No number may be above the offset.
pub fn sum_of_exponentials(numbers: &[f32], offset: f32, factor: f32) -> f32 {
    match lanes::instructions() {
        // SAFETY: the CPU has the instructions.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512 => unsafe { lanes::avx512::sum_of_exponentials(numbers, offset, factor) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2 => unsafe { lanes::avx2::sum_of_exponentials(numbers, offset, factor) },
        // SAFETY: it needs no special instructions.
        _ => unsafe { sum_with::<lanes::plain::Lanes>(numbers, offset, factor) },
    }
}

/// # Safety
/// The CPU must have the vector's instructions.
#[inline(always)]
pub(crate) unsafe fn largest_with<V: Vector>(numbers: &[f32]) -> f32 {
    let chunks = numbers.chunks_exact(V::COUNT);
    let rest = chunks.remainder().iter().copied().fold(f32::NEG_INFINITY, |largest, number| {
        if largest.is_nan() || number <= largest { largest } else { number }
    });
    // SAFETY: a chunk has as many numbers as a vector.
    unsafe {
        let (lowest, zero) = (V::splat(f32::MIN), V::splat(0.0));
        let (mut largest, mut odd) = (V::splat(f32::NEG_INFINITY), zero);
        for chunk in chunks {
            // If either is NaN, `max` returns its argument.
            let numbers = V::load(chunk.as_ptr());
            largest = numbers.max(largest);
            odd = lowest.max(numbers).mul_add(zero, odd);
        }
        let largest = largest.largest();
        if odd.sum() == 0.0 && rest < f32::INFINITY { rest.max(largest) } else { f32::NAN }
    }
}

/// # Safety
/// The CPU must have the vector's instructions.
#[inline(always)]
pub(crate) unsafe fn sum_with<V: Vector>(numbers: &[f32], offset: f32, factor: f32) -> f32 {
    let chunks = numbers.chunks_exact(V::COUNT);
    let rest: f32 = chunks.remainder().iter().map(|number| ((number - offset) * factor).exp()).sum();
    // SAFETY: a chunk has as many numbers as a vector.
    unsafe {
        let (offset, factor) = (V::splat(offset), V::splat(factor));
        let mut sum = V::splat(0.0);
        for chunk in chunks {
            sum = sum.add(V::load(chunk.as_ptr()).sub(offset).mul(factor).exp());
        }
        rest + sum.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|at| -((at * 7919 % 1000) as f32) / 37.0).collect()
    }

    #[test]
    fn the_largest_is_found_at_every_position() {
        assert_eq!(largest(&[]), f32::NEG_INFINITY);
        for count in [1, 15, 16, 17, 100] {
            for at in 0..count {
                let mut numbers = vec![-3.0; count];
                numbers[at] = 2.5;
                assert_eq!(largest(&numbers), 2.5);
                for odd in [f32::NAN, f32::INFINITY] {
                    numbers[(at + 1) % count] = odd;
                    assert!(largest(&numbers).is_nan());
                }
                if count > 1 {
                    numbers[(at + 1) % count] = f32::NEG_INFINITY;
                    assert_eq!(largest(&numbers), 2.5);
                }
            }
        }
    }

    #[test]
    fn sums_are_those_of_the_exponential_function() {
        for count in [0, 1, 16, 100, 256] {
            let numbers = numbers(count);
            let exact: f64 = numbers.iter().map(|number| (f64::from(*number) * 1.25).exp()).sum();
            let sum = f64::from(sum_of_exponentials(&numbers, 0.0, 1.25));
            assert!((sum - exact).abs() <= 2e-6 * exact, "{sum} instead of {exact}");
        }
    }
}
