//! The model: a weight of one byte for each hash bucket of features, and a logistic function from their sum to a score.

/// Binary logarithm of the number of buckets.
pub(super) const BUCKET_BITS: u32 = 18;
const MAGIC: &[u8; 4] = b"AGSM";
const HEADER_BYTES: usize = 16;

/// Facts are required at a score of 0.5 or more.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Model {
    weights: Vec<i8>,
    /// The value of one unit of a weight.
    step: f32,
    /// Added to every sum, so that both verdicts are equally likely at zero.
    bias: f32,
    slope: f32,
}

impl Model {
    /// Quantizes weights to bytes.
    pub(super) fn new(weights: &[f32], bias: f32, slope: f32) -> Self {
        let largest = weights.iter().fold(f32::MIN_POSITIVE, |largest, weight| largest.max(weight.abs()));
        let step = largest / f32::from(i8::MAX);
        #[expect(clippy::cast_possible_truncation, reason = "within a byte, by the choice of the step")]
        let weights = weights.iter().map(|weight| (weight / step).round() as i8).collect();
        Self { weights, step, bias, slope }
    }

    pub(super) fn bucket(hash: u32) -> usize {
        (hash >> (u32::BITS - BUCKET_BITS)) as usize
    }

    pub(super) fn contribution(&self, hash: u32, value: f32) -> f32 {
        f32::from(self.weights[Self::bucket(hash)]) * self.step * value
    }

    /// From 0 to 1, for hashes with values.
    pub(super) fn score(&self, features: &[(u32, f32)]) -> f32 {
        let sum: f32 = features.iter().map(|(hash, value)| f32::from(self.weights[Self::bucket(*hash)]) * value).sum();
        1.0 / (1.0 + libm::expf(-self.slope * (sum * self.step + self.bias)))
    }

    /// The model file.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.weights.len());
        bytes.extend_from_slice(MAGIC);
        for number in [self.step, self.bias, self.slope] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend(self.weights.iter().map(|weight| weight.to_le_bytes()[0]));
        bytes
    }

    /// `None` if the bytes are not a model.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, weights) = bytes.split_at_checked(HEADER_BYTES)?;
        let (magic, numbers) = head.split_at_checked(MAGIC.len())?;
        if magic != MAGIC || weights.len() != 1 << BUCKET_BITS {
            return None;
        }
        let mut numbers = numbers.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]));
        let (step, bias, slope) = (numbers.next()?, numbers.next()?, numbers.next()?);
        let weights = weights.iter().map(|byte| i8::from_le_bytes([*byte])).collect();
        Some(Self { weights, step, bias, slope })
    }
}
