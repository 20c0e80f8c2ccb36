//! The reasons for a verdict in words: the features that contributed most.

use std::collections::BTreeMap;

use super::Score;
use super::features::Features;
use super::model::Model;

const MAX_REASONS: usize = 5;

/// Strongest first. Features with the same wording count together.
pub(super) fn strongest(features: &Features, model: &Model, score: Score) -> Vec<String> {
    let mut reasons: BTreeMap<String, f32> = BTreeMap::new();
    for ((hash, value), name) in features.values.iter().zip(features.names()) {
        if let Some(reason) = in_words(name) {
            *reasons.entry(reason).or_default() += model.contribution(*hash, *value);
        }
    }
    let direction = if score.is_required() { 1.0 } else { -1.0 };
    let mut reasons: Vec<(String, f32)> =
        reasons.into_iter().map(|(reason, weight)| (reason, weight * direction)).collect();
    reasons.retain(|(_, weight)| *weight > 0.0);
    reasons.sort_by(|one, other| other.1.total_cmp(&one.1));
    reasons.into_iter().take(MAX_REASONS).map(|(reason, _)| reason).collect()
}

/// `None` for features that mean nothing to people.
fn in_words(name: &str) -> Option<String> {
    let (space, what) = name.split_once(':')?;
    let quoted = |what: &str| what.replace("<line>", "⏎");
    Some(match space {
        // A short word alone means nothing.
        "w" | "in" | "out" | "first" | "last" | "asks" | "for" if what.is_ascii() && what.len() <= 3 => return None,
        "w" | "in" | "out" | "first" | "last" | "asks" | "for" => format!("says “{}”", quoted(what)),
        "begins" => format!("begins with “{}”", quoted(what.split_once(' ')?.1)),
        "ends" => {
            let mut words: Vec<&str> = what.split(' ').skip(1).collect();
            words.reverse();
            format!("ends with “{}”", quoted(&words.join(" ")))
        }
        "shape" => format!("is built like “{}”", quoted(what)),
        "about" | "opens" | "closes" => format!("is about: {}", what.split(' ').next()?.replace('_', " ")),
        "both" => format!("brings together: {}", what.replace('_', " ")),
        "looks" => format!("looks like: {what}"),
        "brought" if !what.starts_with("nothing") => format!("supplied material: {}", what.replace('_', " ")),
        "m" => format!("the material says “{what}”"),
        "earlier" | "before" | "said" => format!("earlier: {}", what.replace('_', " ")),
        "then" => format!("after {}", what.replace('_', " ").replacen(' ', ", now ", 1)),
        "given" if what != "nothing" => format!("the turn contains what it asks about: {what}"),
        "overlap" => format!("its subject occurred before: {what}"),
        "p" | "p tiny" | "p short" | "p long" => format!("the previous turn says “{}”", quoted(what)),
        "a" => format!("the previous answer says “{}”", quoted(what)),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::in_words;

    #[test]
    fn features_become_sentences() {
        let cases = [
            ("w:who was", Some("says “who was”")),
            ("w:the", None),
            ("c:", None),
            ("begins:out who was", Some("begins with “who was”")),
            ("ends:in ? born he", Some("ends with “he born ?”")),
            ("about:money_rate out", Some("is about: money rate")),
            ("then:price nothing", Some("after price, now nothing")),
            ("no space", None),
        ];
        for (name, expected) in cases {
            assert_eq!(in_words(name).as_deref(), expected, "{name}");
        }
    }
}
