//! The form of a turn regardless of its words: length, questions, numbers, punctuation, lines.

use super::feature_set::Features;
use super::turn::Turn;
use crate::scorer::text::Kind;

#[derive(Default)]
struct Counts {
    questions: usize,
    lines: usize,
    numbers: usize,
    years: usize,
    code: usize,
    quotes: usize,
    colons: usize,
    amounts: usize,
}

impl Counts {
    fn from_turn(turn: &Turn) -> Self {
        let mut counts = Self::default();
        for token in &turn.text.tokens {
            let count = match (token.kind, turn.text.str(token)) {
                (Kind::Line, _) => &mut counts.lines,
                (Kind::Number, _) => &mut counts.numbers,
                (Kind::Year, _) => &mut counts.years,
                (Kind::Mark, "?") => &mut counts.questions,
                (Kind::Mark, "\"") => &mut counts.quotes,
                (Kind::Mark, ":") => &mut counts.colons,
                (Kind::Mark, "$" | "€" | "£" | "¥" | "%") => &mut counts.amounts,
                (Kind::Mark, "{" | "}" | "(" | ")" | "=" | ";" | "<" | ">" | "[" | "]" | "`" | "|") => &mut counts.code,
                _ => continue,
            };
            *count += 1;
        }
        counts
    }
}

/// `content` is the whole turn, `turn` its question.
pub(super) fn looks(turn: &Turn, content: &str, context: &str, features: &mut Features) {
    let counts = Counts::from_turn(turn);
    let size = turn.size();
    let mut look = |name: &str| {
        features.add("looks", &[name]);
        features.add("looks", &[name, context]);
        features.add("looks", &[name, size]);
    };
    look(size);
    look(turn.names());
    look(match counts.questions {
        0 => "no question",
        1 => "a question",
        _ => "questions",
    });
    look(match counts.lines {
        0 => "one line",
        1..3 => "some lines",
        _ => "many lines",
    });
    let introduces = content.contains(": ") && counts.lines == 0 && turn.words > 15 || content.contains(":\n");
    let flags = [
        (turn.is_question(&(0..turn.text.tokens.len())), "ends as a question"),
        (counts.numbers > 2, "numbers"),
        (counts.numbers == 1, "a number"),
        (counts.years > 0, "a year"),
        (counts.code > 5, "code or tables"),
        (content.contains("```"), "fenced"),
        (counts.quotes >= 2, "quotes"),
        (counts.colons > 0, "a colon"),
        (introduces, "introduces material"),
        (counts.amounts > 0, "money or percent"),
        (content.is_ascii() && !content.bytes().any(|byte| byte.is_ascii_uppercase()), "lower case"),
    ];
    flags.iter().filter(|(holds, _)| *holds).for_each(|(_, name)| look(name));
    features.end_group(0.6);
}
