//! The material in the turn, and the question about it.

use super::feature_set::Features;
use super::turn::{Turn, size};
use crate::scorer::lexicon::{Concept, Lexicon};

/// Of the material.
const MAX_NGRAM_TOKENS: usize = 40;

/// `turn` is the question.
pub(super) fn supplied(
    turn: &Turn,
    material: &Turn,
    concepts: &[Concept],
    context: &str,
    lexicon: &Lexicon,
    features: &mut Features,
) {
    if material.words == 0 {
        features.add("brought", &["nothing"]);
        features.add("brought", &["nothing", context]);
        features.end_group(0.2);
        return;
    }
    let amount = size(material.words);
    features.add("brought", &[amount]);
    features.add("brought", &[amount, turn.size()]);
    for concept in concepts {
        features.add("brought", &["asked", lexicon.name(*concept)]);
    }
    let asks = turn.text.tokens.iter().any(|token| turn.text.str(token) == "?");
    features.add("brought", &["asked", if asks { "?" } else { "." }]);
    features.end_group(0.8);
    let [head, _] = turn.ends();
    turn.ngrams("for", head, 2, features);
    features.end_group(1.0);
    material.ngrams("m", material.head(MAX_NGRAM_TOKENS), 1, features);
    features.end_group(0.3);
}
