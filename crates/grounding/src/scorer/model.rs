//! The model: a weight for each bucket that features are hashed into, one byte each, and how a sum of them becomes a score.

/// Buckets, as a power of two.
pub(super) const BITS: u32 = 18;
const MAGIC: &[u8; 4] = b"AGSM";
const HEAD: usize = 16;

/// Weights, and a line through the sums that makes scores of them: 0.5 is where facts begin to be required.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Model {
    weights: Vec<i8>,
    /// What one step of a weight is worth.
    step: f32,
    /// Added to every sum; moves the border to where both verdicts are equally likely.
    bias: f32,
    /// How steeply scores change with sums.
    slope: f32,
}

impl Model {
    /// Rounds weights to bytes.
    pub(super) fn new(weights: &[f32], bias: f32, slope: f32) -> Self {
        let largest = weights.iter().fold(f32::MIN_POSITIVE, |largest, weight| largest.max(weight.abs()));
        let step = largest / f32::from(i8::MAX);
        #[expect(clippy::cast_possible_truncation, reason = "within a byte, by the choice of the step")]
        let weights = weights.iter().map(|weight| (weight / step).round() as i8).collect();
        Self { weights, step, bias, slope }
    }

    /// The bucket of a feature.
    pub(super) fn bucket(hash: u32) -> usize {
        (hash >> (u32::BITS - BITS)) as usize
    }

    /// What a feature adds to the sum.
    pub(super) fn contribution(&self, hash: u32, value: f32) -> f32 {
        f32::from(self.weights[Self::bucket(hash)]) * self.step * value
    }

    /// From 0 to 1, for features with their values.
    pub(super) fn score(&self, features: &[(u32, f32)]) -> f32 {
        let sum: f32 = features.iter().map(|(hash, value)| f32::from(self.weights[Self::bucket(*hash)]) * value).sum();
        1.0 / (1.0 + libm::expf(-self.slope * (sum * self.step + self.bias)))
    }

    /// As bytes, for the file.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD + self.weights.len());
        bytes.extend_from_slice(MAGIC);
        for number in [self.step, self.bias, self.slope] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend(self.weights.iter().map(|weight| weight.to_le_bytes()[0]));
        bytes
    }

    /// From bytes; none if they are not a model.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, weights) = bytes.split_at_checked(HEAD)?;
        let (magic, numbers) = head.split_at_checked(MAGIC.len())?;
        if magic != MAGIC || weights.len() != 1 << BITS {
            return None;
        }
        let mut numbers = numbers.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]));
        let (step, bias, slope) = (numbers.next()?, numbers.next()?, numbers.next()?);
        let weights = weights.iter().map(|byte| i8::from_le_bytes([*byte])).collect();
        Some(Self { weights, step, bias, slope })
    }
}
