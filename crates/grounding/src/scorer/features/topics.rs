//! Concepts of the lexicon: alone, with the form of the turn, and in pairs.

use super::feature_set::Features;
use super::turn::Turn;
use crate::scorer::lexicon::{Concept, Lexicon};

pub(super) fn topics(turn: &Turn, concepts: &[Concept], context: &str, lexicon: &Lexicon, features: &mut Features) {
    let (names, size) = (turn.names(), turn.size());
    for concept in concepts {
        let name = lexicon.name(*concept);
        features.add("about", &[name]);
        for with in [context, names, size] {
            features.add("about", &[name, with]);
        }
    }
    let last = turn.text.sentences.len().saturating_sub(1);
    for concept in turn.concepts_in_sentence(0) {
        features.add("opens", &[lexicon.name(concept)]);
    }
    if last > 0 {
        for concept in turn.concepts_in_sentence(last) {
            features.add("closes", &[lexicon.name(concept)]);
        }
    }
    features.end_group(1.0);
    for (index, one) in concepts.iter().enumerate() {
        for other in &concepts[index + 1..] {
            let pair = [lexicon.name(*one), lexicon.name(*other), names];
            features.add("both", &pair[..2]);
            features.add("both", &pair);
        }
    }
    features.end_group(0.7);
}
