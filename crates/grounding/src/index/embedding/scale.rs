//! The scale of an embedder's cosines. For some embedders unrelated texts have a cosine of 0.1, for others 0.7; but one
//! rule defines good hits and the weight of words beside them. So questions and statements with their answers are embedded
//! once, and cosines are mapped to the scale of the sentence encoder.

/// Questions, and passages that answer them. Each question is unrelated to the other passages.
pub(super) fn pairs() -> impl Iterator<Item = (&'static str, &'static str)> {
    include_str!("pairs.txt").lines().filter_map(|line| line.split_once('\t'))
}

/// Means of the sentence encoder's cosines over `pairs`.
const UNRELATED: f32 = 0.02;
const RELATED: f32 = 0.33;
/// With a smaller difference between related and unrelated texts, vectors are useless.
const MIN_DIFFERENCE: f32 = 0.02;

/// Maps an embedder's cosines to the scale of the sentence encoder.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::index) struct Scale {
    factor: f32,
    offset: f32,
    /// The weight of words beside the cosine: the gain of the best passage by words. Models that are made for retrieval
    /// rank better than the sentence encoder, so words help them less (docs/grounding.md has the measurements).
    pub(super) words_weight: f32,
}

impl Scale {
    pub(super) const OF_SENTENCE_ENCODER: Self = Self { factor: 1.0, offset: 0.0, words_weight: 0.2 };

    /// From the vectors of the questions and passages in `pairs`. `None` if they do not distinguish related texts from others.
    pub(super) fn measure(questions: &[Vec<f32>], passages: &[Vec<f32>]) -> Option<Self> {
        let (unrelated, related) = means(questions, passages);
        let difference = related - unrelated;
        if difference.is_nan() || difference < MIN_DIFFERENCE {
            return None;
        }
        let factor = (RELATED - UNRELATED) / difference;
        Some(Self { factor, offset: UNRELATED - factor * unrelated, words_weight: 0.1 })
    }

    pub(super) fn apply(self, cosine: f32) -> f32 {
        (self.factor * cosine + self.offset).clamp(-1.0, 1.0)
    }
}

/// Mean cosines of questions with unrelated passages, and with their own passages.
pub(super) fn means(questions: &[Vec<f32>], passages: &[Vec<f32>]) -> (f32, f32) {
    let (mut unrelated, mut related) = (Vec::new(), Vec::new());
    for (at, question) in questions.iter().enumerate() {
        for (other, passage) in passages.iter().enumerate() {
            let cosines = if at == other { &mut related } else { &mut unrelated };
            cosines.push(cosine(question, passage));
        }
    }
    let mean = |cosines: &[f32]| cosines.iter().sum::<f32>() / cosines.len() as f32;
    (mean(&unrelated), mean(&related))
}

fn cosine(one: &[f32], other: &[f32]) -> f32 {
    let dot = |one: &[f32], other: &[f32]| one.iter().zip(other).map(|(one, other)| one * other).sum::<f32>();
    dot(one, other) / (dot(one, one) * dot(other, other)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIRS: usize = 12;

    #[test]
    fn every_line_is_a_pair() {
        assert_eq!((pairs().count(), include_str!("pairs.txt").lines().count()), (PAIRS, PAIRS));
    }

    /// A vector for each text: `own` in a separate direction, and `common` in a shared one.
    fn vectors(common: f32, own: f32) -> Vec<Vec<f32>> {
        let vector = |at: usize| -> Vec<f32> {
            (0..=PAIRS)
                .map(|number| {
                    if number == PAIRS {
                        common
                    } else if number == at {
                        own
                    } else {
                        0.1
                    }
                })
                .collect()
        };
        (0..PAIRS).map(vector).collect()
    }

    #[test]
    fn cosines_are_mapped_to_the_scale_of_the_sentence_encoder() {
        for common in [0.0, 1.0, 3.0] {
            let (questions, passages) = (vectors(common, 1.0), vectors(common, 1.5));
            let (unrelated, related) = means(&questions, &passages);
            let scale = Scale::measure(&questions, &passages).unwrap();
            assert!((scale.apply(unrelated) - UNRELATED).abs() < 1e-3);
            assert!((scale.apply(related) - RELATED).abs() < 1e-3);
        }
    }

    #[test]
    fn vectors_that_do_not_distinguish_texts_have_no_scale() {
        let same = vec![vec![0.3; 8]; PAIRS];
        assert_eq!(Scale::measure(&same, &same), None);
        let zeros = vec![vec![0.0; 8]; PAIRS];
        assert_eq!(Scale::measure(&zeros, &zeros), None);
    }
}
