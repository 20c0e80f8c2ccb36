//! The shape of a sentence: short words unchanged, other words by concept or kind. It generalizes to names and topics that
//! no labelled row has.

use super::feature_set::{Features, Key};
use super::turn::Turn;
use crate::scorer::lexicon::Lexicon;
use crate::scorer::text::Kind;

const MAX_NGRAM: usize = 4;

pub(super) fn shape(turn: &Turn, lexicon: &Lexicon, features: &mut Features) {
    let concepts = turn.token_concepts();
    let shape_of = |index: usize| -> Option<&str> {
        let token = &turn.text.tokens[index];
        Some(match token.kind {
            Kind::Name => "Name",
            Kind::Acronym => "ACRONYM",
            Kind::Number => "<number>",
            Kind::Katakana => "Katakana",
            Kind::Year | Kind::Mark | Kind::Line => turn.token_text(index),
            Kind::Ideograph => return None,
            Kind::Word => match concepts[index] {
                Some(concept) => lexicon.name(concept),
                None if token.end - token.start <= 4 => turn.token_text(index),
                None => "word",
            },
        })
    };
    let space = Key::from_text("shape");
    for range in turn.ends() {
        let shapes: Vec<Option<(&str, Key)>> =
            range.map(|index| shape_of(index).map(|shape| (shape, Key::from_text(shape)))).collect();
        for start in 0..shapes.len() {
            let mut key = space;
            for (before, shape) in shapes[start..].iter().take(MAX_NGRAM).enumerate() {
                let Some((_, shape)) = shape else { break };
                key = key.then(*shape);
                if before > 0 {
                    features.add_key(key, || {
                        let run = &shapes[start..=start + before];
                        let run: Vec<&str> = run.iter().flatten().map(|(shape, _)| *shape).collect();
                        format!("shape:{}", run.join(" "))
                    });
                }
            }
        }
    }
    features.end_group(0.7);
}
