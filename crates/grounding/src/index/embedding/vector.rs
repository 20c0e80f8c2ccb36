//! A vector quantized to bytes. Its length does not matter, because vectors are compared by angle.

use pulp::{Simd, WithSimd};

use super::EmbedderId;

const ID_BYTES: usize = size_of::<EmbedderId>();

/// The beginning of a vector.
pub(in crate::index) type Prefix = [i8; 128];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::index) struct Vector(Box<[i8]>);

impl Vector {
    pub(in crate::index) fn quantize(numbers: &[f32]) -> Self {
        let largest = numbers.iter().fold(f32::MIN_POSITIVE, |largest, number| largest.max(number.abs()));
        Self(numbers.iter().map(|number| (number / largest * f32::from(i8::MAX)).round() as i8).collect())
    }

    /// Includes the id of its embedder.
    pub(in crate::index) fn to_bytes(&self, id: EmbedderId) -> Vec<u8> {
        id.0.to_le_bytes().into_iter().chain(self.0.iter().map(|number| number.to_le_bytes()[0])).collect()
    }

    /// `None` if the bytes are not a vector of this embedder.
    pub(in crate::index) fn from_bytes(bytes: &[u8], embedder: EmbedderId) -> Option<Self> {
        let (id, numbers) = bytes.split_at_checked(ID_BYTES)?;
        let is_own = id == embedder.0.to_le_bytes() && !numbers.is_empty();
        is_own.then(|| Self(numbers.iter().map(|byte| i8::from_le_bytes([*byte])).collect()))
    }

    pub(in crate::index) fn numbers(&self) -> &[i8] {
        &self.0
    }

    pub(in crate::index) fn length(&self) -> f32 {
        (self.dot(&self.0) as f32).sqrt().max(1.0)
    }

    pub(in crate::index) fn dot(&self, other: &[i8]) -> i32 {
        dot(&self.0, other)
    }

    /// The first numbers, padded with zeros.
    pub(in crate::index) fn prefix(&self) -> Prefix {
        std::array::from_fn(|at| self.0.get(at).copied().unwrap_or(0))
    }
}

/// The products of a question's prefix with many others, compiled for the vectors of this CPU.
pub(super) struct DotPrefixes<'a> {
    pub(super) question: &'a Prefix,
    pub(super) prefixes: &'a [(Prefix, f32)],
}

impl WithSimd for DotPrefixes<'_> {
    type Output = Vec<i32>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> Vec<i32> {
        let mut products = vec![0; self.prefixes.len()];
        for (product, (prefix, _)) in products.iter_mut().zip(self.prefixes) {
            *product = dot(self.question, prefix);
        }
        products
    }
}

/// The dot product over the length of the shorter vector.
#[inline(always)]
fn dot(one: &[i8], other: &[i8]) -> i32 {
    one.iter().zip(other).map(|(one, other)| i32::from(i16::from(*one) * i16::from(*other))).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: EmbedderId = EmbedderId(7);

    fn cosine(one: &Vector, other: &Vector) -> f32 {
        one.dot(other.numbers()) as f32 / (one.length() * other.length())
    }

    proptest! {
        #[test]
        fn bytes_keep_the_angle(
            numbers in prop::collection::vec((-1.0..1.0_f32, -1.0..1.0_f32), 384..=1024),
        ) {
            let (one, other): (Vec<f32>, Vec<f32>) = numbers.into_iter().unzip();
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
            let exact = dot(&one, &other) / (dot(&one, &one) * dot(&other, &other)).sqrt();
            let (one, other) = (Vector::quantize(&one), Vector::quantize(&other));
            prop_assert!((cosine(&one, &other) - exact).abs() < 0.01);
            prop_assert_eq!(Vector::from_bytes(&one.to_bytes(ID), ID), Some(one));
        }
    }

    #[test]
    fn bytes_of_other_embedders_and_invalid_bytes_are_none() {
        let vector = Vector::quantize(&[0.0; 16]);
        assert_eq!(vector.length(), 1.0);
        assert_eq!(Vector::from_bytes(&[], ID), None);
        assert_eq!(Vector::from_bytes(&vector.to_bytes(ID)[..ID_BYTES], ID), None);
        assert_eq!(Vector::from_bytes(&vector.to_bytes(EmbedderId(8)), ID), None);
    }
}
