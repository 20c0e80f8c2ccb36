//! Decides whether indexed documents help with a request that needs no facts by its score, such as the description of a
//! problem: "my badge does not open the door".
//!
//! The evidence is the scorer's score, whether the request is a question or a problem rather than a task (`classifier`),
//! how well the best passage matches, and whether it continues a conversation. Pure.

mod classifier;

pub use classifier::{QuestionClassifier, last_turn};

use chat::{Message, Role};

use crate::index::Hit;
use crate::scorer::Score;

/// The evidence for a decision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evidence {
    pub score: Score,
    /// The classifier's log-odds: above zero for a question or a problem, below zero for a task.
    pub question: f32,
    /// The best hit's score.
    pub best: f32,
    /// How near the best passages are, by their meaning and by the question's words that they have.
    pub nearness: f32,
    pub is_follow_up: bool,
}

/// Calibrated on the first set of `data/retrieval`. `examples/retrieval.rs` prints the results.
const PER_SCORE: f32 = 0.75;
const PER_QUESTION: f32 = 0.48;
const PER_BEST: f32 = 1.1;
const FOLLOW_UP: f32 = 2.6;
const BIAS: f32 = 2.0;
/// The weight of the question's words beside the cosine.
const PER_COVERAGE: f32 = 0.5;
/// Below this, the documents are about something else. Calibrated on questions that no document of the set answers.
const MIN_NEARNESS: f32 = 0.1;
/// More than all other evidence.
const TOO_FAR: f32 = -20.0;
/// Hits whose words are counted.
const NEAREST: usize = 3;

impl Evidence {
    /// For a conversation with this score, whose last turn has this vector. `None` if there are no hits by vectors.
    pub fn new(
        score: Score,
        turn: &[f32],
        classifier: &QuestionClassifier,
        messages: &[Message],
        hits: &[Hit],
    ) -> Option<Self> {
        let first = hits.first()?;
        let coverage = hits.iter().take(NEAREST).map(|hit| hit.coverage).fold(0.0, f32::max);
        let nearness = first.meaning? + PER_COVERAGE * coverage;
        let is_follow_up = messages.iter().filter(|message| message.role() == Role::User).count() > 1;
        Some(Self { score, question: classifier.log_odds(turn), best: first.score, nearness, is_follow_up })
    }

    /// Above zero if the documents help.
    pub fn sum(&self) -> f32 {
        self.parts().iter().map(|(_, part)| part).sum()
    }

    /// What each piece of evidence adds to the sum.
    pub fn parts(&self) -> [(&'static str, f32); 6] {
        [
            ("the scorer's score", PER_SCORE * self.score.log_odds()),
            ("a question or a problem rather than a task", PER_QUESTION * self.question),
            ("the best passage's score", PER_BEST * self.best),
            ("continues a conversation", if self.is_follow_up { FOLLOW_UP } else { 0.0 }),
            ("no passage is near the question", if self.nearness < MIN_NEARNESS { TOO_FAR } else { 0.0 }),
            ("in favour of the documents", BIAS),
        ]
    }

    pub fn is_helpful(&self) -> bool {
        self.sum() > 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scorer::Scorer;

    fn evidence(text: &str, question: f32, best: f32, is_follow_up: bool) -> Evidence {
        let score = Scorer::new().score(&[Message::new(Role::User, text.into()).unwrap()]);
        Evidence { score, question, best, nearness: best, is_follow_up }
    }

    #[test]
    fn documents_help_with_questions_and_problems_and_not_with_tasks() {
        let problem = "my badge does not open the door any more";
        assert!(evidence(problem, 1.0, 0.5, false).is_helpful());
        assert!(!evidence(problem, -12.0, 0.5, false).is_helpful(), "if it were a task");
        assert!(!evidence("Write a limerick about a jammed printer.", -1.0, 0.6, false).is_helpful());
        assert!(evidence(problem, -2.0, 0.5, true).sum() > evidence(problem, -2.0, 0.5, false).sum());
        assert!(!evidence(problem, 9.0, 0.05, false).is_helpful(), "no passage is near");
        assert!(evidence(problem, -2.0, 0.7, false).sum() > evidence(problem, -2.0, 0.2, false).sum());
    }

    #[test]
    fn the_built_in_classifier_has_a_weight_for_each_number() {
        let zeros = vec![0.0; encoder::DIMENSIONS];
        let classifier = QuestionClassifier::new();
        assert!(classifier.log_odds(&zeros).is_finite() && classifier.log_odds(&zeros) != 0.0);
    }
}
