//! Citations such as `[1]` in a completion, checked against the sources: those that name no source are removed.

/// Numbers in brackets that are no citations stay: in code, behind a name (`list[7]`), or followed by a round bracket
/// as in a Markdown link.
pub fn strip_dangling_citations(text: &str, sources: usize) -> String {
    let mut kept = String::with_capacity(text.len());
    for (index, piece) in text.split_inclusive('`').enumerate() {
        // Every second piece between backticks is code.
        match index % 2 {
            0 => strip_piece(piece, sources, &mut kept),
            _ => kept.push_str(piece),
        }
    }
    kept
}

fn strip_piece(piece: &str, sources: usize, kept: &mut String) {
    let mut rest = piece;
    while let Some(open) = rest.find('[') {
        let (before, bracket) = rest.split_at(open);
        kept.push_str(before);
        // No further than a citation can go, so that many brackets take no more time than others.
        let end = bracket[1..].find(|c: char| !c.is_ascii_digit() && !c.is_whitespace() && c != ',');
        let inside = end.filter(|end| bracket[1 + end..].starts_with(']')).map(|end| &bracket[1..1 + end]);
        let Some((inside, numbers)) = inside.and_then(|inside| Some((inside, cited_numbers(inside)?))) else {
            kept.push('[');
            rest = &bracket[1..];
            continue;
        };
        let after = &bracket[inside.len() + 2..];
        let follows_name = kept.chars().next_back().is_some_and(|last| last.is_alphanumeric() || last == '_');
        let known: Vec<String> =
            numbers.iter().filter(|number| (1..=sources).contains(*number)).map(usize::to_string).collect();
        if follows_name || after.starts_with('(') || known.len() == numbers.len() {
            kept.push_str(&bracket[..inside.len() + 2]);
        } else if !known.is_empty() {
            kept.push_str(&format!("[{}]", known.join(", ")));
        } else if kept.ends_with(' ') {
            // The space before it belongs to it.
            kept.pop();
        }
        rest = after;
    }
    kept.push_str(rest);
}

/// The numbers of `[1]` or `[1, 2]`; `None` if it is no citation.
fn cited_numbers(inside: &str) -> Option<Vec<usize>> {
    let number = |text: &str| {
        let text = text.trim();
        let is_number = (1..=3).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse().ok())?
    };
    inside.split(',').map(number).collect()
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
            ("list[7] and `x = [9]` and [5](https://a.example)", "list[7] and `x = [9]` and [5](https://a.example)"),
            ("so [1, 7] and [1,2] and [8, 9]", "so [1] and [1,2] and"),
            ("[a] [] [12345] [", "[a] [] [12345] ["),
            ("日本 [3]。", "日本。"),
        ];
        for (text, expected) in cases {
            assert_eq!(strip_dangling_citations(text, 2), expected, "{text}");
        }
    }
}
