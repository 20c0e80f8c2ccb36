//! Removes citations such as `[9]` from a completion if there is no such source.
//!
//! A citation is one number in brackets after a statement, as the instructions request. Other brackets belong to the
//! text: in code, after a name (`list[7]`), with several numbers (`[1, 2]`), in an expression (`[7] * 3`), at the
//! beginning of a line, or before a parenthesis as in a Markdown link.

use std::sync::LazyLock;

use regex::Regex;

/// Code, or a number in brackets.
static CODE_OR_MARK: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"`[^`]*(?:`|$)|\[([0-9]{1,3})\]").expect("the pattern is a constant"));

/// With 0 sources, all citations are removed.
pub fn strip_dangling_citations(text: &str, sources: usize) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut copied = 0;
    // The end of the last kept citation: the next one may follow it without a space.
    let mut last_citation = None;
    for found in CODE_OR_MARK.captures_iter(text) {
        let Some(number) = found.get(1).and_then(|number| number.as_str().parse().ok()) else { continue };
        let mark = found.get_match();
        let after = &text[mark.end()..];
        kept.push_str(&text[copied..mark.start()]);
        copied = mark.end();
        let is_citation = (last_citation == Some(kept.len()) || is_behind_statement(&kept)) && !goes_on(after);
        if !is_citation || (1..=sources).contains(&number) {
            kept.push_str(mark.as_str());
            last_citation = is_citation.then_some(kept.len());
        } else if kept.ends_with(' ') && !after.starts_with('[') {
            // Removes the space before the citation.
            kept.pop();
        }
    }
    kept.push_str(&text[copied..]);
    kept
}

/// Whether a text ends with a word and a space, or with a sentence.
fn is_behind_statement(before: &str) -> bool {
    let statement = before.trim_end_matches(is_space);
    let mut last_word = statement.chars().rev().take_while(|character| !character.is_whitespace()).peekable();
    let is_apart =
        statement.len() < before.len() || statement.ends_with(['.', ',', ';', '!', '?', '。', '，', '；', '！', '？']);
    is_apart && last_word.peek().is_some() && !last_word.all(is_operator)
}

/// Whether an expression or a link continues after a bracket.
fn goes_on(after: &str) -> bool {
    let next = after.trim_start_matches(is_space);
    let mut next_word = next.chars().take_while(|character| !character.is_whitespace()).peekable();
    match next.len() == after.len() {
        true => next.starts_with(|next| is_operator(next) || next.is_alphanumeric() || "_(]".contains(next)),
        false => next_word.peek().is_some() && next_word.all(is_operator),
    }
}

fn is_space(character: char) -> bool {
    character.is_whitespace() && character != '\n'
}

fn is_operator(character: char) -> bool {
    "+-*/^=<>".contains(character)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_citations_without_a_source_are_removed() {
        let cases = [
            ("It is 12 [1].", "It is 12 [1]."),
            ("It is 12 [7].", "It is 12."),
            ("It is 12 [1][7] and [0] more [2]", "It is 12 [1] and more [2]"),
            ("as others say [9][8].", "as others say."),
            ("It was 11 [7][1], and 12 [8] [2].", "It was 11 [1], and 12 [2]."),
            ("**It is 12** [7]. Or 13.[8] Or 12 % [9]", "**It is 12**. Or 13. Or 12 %"),
            ("- It is 12 [7]\n- It is 13 [8] – or so", "- It is 12\n- It is 13 – or so"),
            ("日本 [3]。", "日本。"),
        ];
        for (text, expected) in cases {
            assert_eq!(strip_dangling_citations(text, 2), expected, "{text}");
        }
    }

    #[test]
    fn arrays_and_indexes_stay() {
        let texts = [
            "list[7] and `x = [9]` and [5](https://a.example)",
            "the list [1, 2], or [8, 9], or [1,7]",
            "[7] * 3 is [7, 7, 7]",
            "Then y = [7], and [7] + [8] is [7] * 2, but a [7]*2 is not.",
            "f(a)[7], a[0][7], print([7]), [[7], [8]], [[7]9]",
            "x <- [7]",
            "```python\nsorted([9]) + [7]\n```",
            "[7]: a footnote\n[8] Another",
            "[a] [] [12345] [ 7 ] [",
        ];
        for text in texts {
            for sources in [0, 2] {
                assert_eq!(strip_dangling_citations(text, sources), text);
            }
        }
    }
}
