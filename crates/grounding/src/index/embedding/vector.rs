//! A vector in bytes. Its length does not matter: vectors are compared by the angle between them.

use encoder::DIMENSIONS;

use super::EMBEDDER;

const ID_BYTES: usize = size_of_val(&EMBEDDER);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::index) struct Vector([i8; DIMENSIONS]);

impl Vector {
    pub(in crate::index) fn quantize(numbers: &[f32]) -> Self {
        let largest = numbers.iter().fold(f32::MIN_POSITIVE, |largest, number| largest.max(number.abs()));
        let mut bytes = [0; DIMENSIONS];
        for (byte, number) in bytes.iter_mut().zip(numbers) {
            *byte = (number / largest * f32::from(i8::MAX)).round() as i8;
        }
        Self(bytes)
    }

    /// With the id of what made it.
    pub(in crate::index) fn to_bytes(&self) -> Vec<u8> {
        EMBEDDER.to_le_bytes().into_iter().chain(self.0.iter().map(|number| number.to_le_bytes()[0])).collect()
    }

    /// `None` if the bytes are no vector of this embedder.
    pub(in crate::index) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (id, numbers) = bytes.split_at_checked(ID_BYTES)?;
        let mut vector = [0; DIMENSIONS];
        if id != EMBEDDER.to_le_bytes() || numbers.len() != DIMENSIONS {
            return None;
        }
        vector.iter_mut().zip(numbers).for_each(|(number, byte)| *number = i8::from_le_bytes([*byte]));
        Some(Self(vector))
    }

    pub(in crate::index) fn length(&self) -> f32 {
        (self.dot(self) as f32).sqrt().max(1.0)
    }

    pub(in crate::index) fn dot(&self, other: &Self) -> i32 {
        dot(&self.0, &other.0)
    }

    /// The first numbers.
    pub(in crate::index) fn prefix<const COUNT: usize>(&self) -> [i8; COUNT] {
        std::array::from_fn(|at| self.0[at])
    }

    pub(in crate::index) fn dot_prefix<const COUNT: usize>(&self, prefix: &[i8; COUNT]) -> i32 {
        dot(&self.0[..COUNT], prefix)
    }
}

fn dot(one: &[i8], other: &[i8]) -> i32 {
    one.iter().zip(other).map(|(one, other)| i32::from(i16::from(*one) * i16::from(*other))).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cosine(one: &Vector, other: &Vector) -> f32 {
        one.dot(other) as f32 / (one.length() * other.length())
    }

    proptest! {
        #[test]
        fn bytes_keep_the_angle(
            one in prop::collection::vec(-1.0..1.0_f32, DIMENSIONS),
            other in prop::collection::vec(-1.0..1.0_f32, DIMENSIONS),
        ) {
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
            let exact = dot(&one, &other) / (dot(&one, &one) * dot(&other, &other)).sqrt();
            let (one, other) = (Vector::quantize(&one), Vector::quantize(&other));
            prop_assert!((cosine(&one, &other) - exact).abs() < 0.01);
            prop_assert_eq!(Vector::from_bytes(&one.to_bytes()), Some(one));
        }
    }

    #[test]
    fn what_is_no_vector_of_this_embedder_is_none() {
        let vector = Vector::quantize(&[0.0; DIMENSIONS]);
        assert_eq!(vector.length(), 1.0);
        assert_eq!(Vector::from_bytes(&[]), None);
        assert_eq!(Vector::from_bytes(&vector.to_bytes()[1..]), None);
        let mut other = vector.to_bytes();
        other[0] ^= 1;
        assert_eq!(Vector::from_bytes(&other), None);
    }
}
