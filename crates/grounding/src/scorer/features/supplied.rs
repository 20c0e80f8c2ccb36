//! What was brought along in the turn itself, and what is asked about it.

use super::collected::Features;
use super::turn::{Turn, size};
use crate::scorer::lexicon::{Concept, Lexicon};

/// Words of the material that are looked at.
const HEAD: usize = 40;

/// `turn` is what is asked, `brought` what was brought along.
pub(super) fn supplied(
    turn: &Turn,
    brought: &Turn,
    concepts: &[Concept],
    context: &str,
    lexicon: &Lexicon,
    features: &mut Features,
) {
    if brought.words == 0 {
        features.add("brought", &["nothing"]);
        features.add("brought", &["nothing", context]);
        features.end_group(0.2);
        return;
    }
    let amount = size(brought.words);
    features.add("brought", &[amount]);
    features.add("brought", &[amount, turn.size()]);
    for concept in concepts {
        features.add("brought", &["asked", lexicon.name(*concept)]);
    }
    let asks = turn.text.tokens.iter().any(|token| turn.text.str(token) == "?");
    features.add("brought", &["asked", if asks { "?" } else { "." }]);
    features.end_group(0.8);
    let [head, _] = turn.close();
    turn.ngrams("for", head, 2, features);
    features.end_group(1.0);
    brought.ngrams("m", brought.head(HEAD), 1, features);
    features.end_group(0.3);
}
