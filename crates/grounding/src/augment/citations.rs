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
    let piece_start = kept.len();
    // Where a citation was removed: what follows there follows the removed one, not the name before it.
    let mut removed_at = None;
    let mut rest = piece;
    while let Some(close) = rest.find(']') {
        let after = &rest[close + 1..];
        kept.push_str(&rest[..=close]);
        rest = after;
        // From the end, so that what was removed within brackets is not between them any more.
        let tail = &kept[piece_start..kept.len() - 1];
        let open = tail.trim_end_matches(|c: char| c.is_ascii_digit() || c.is_whitespace() || c == ',');
        let Some(open) = open.strip_suffix('[').map(|before| piece_start + before.len()) else { continue };
        let Some(numbers) = cited_numbers(&kept[open + 1..kept.len() - 1]) else { continue };
        let follows_name =
            removed_at != Some(open) && kept[..open].ends_with(|last: char| last.is_alphanumeric() || last == '_');
        let known: Vec<String> =
            numbers.iter().filter(|number| (1..=sources).contains(*number)).map(usize::to_string).collect();
        if follows_name || after.starts_with('(') || known.len() == numbers.len() {
            continue;
        }
        kept.truncate(open);
        if !known.is_empty() {
            kept.push_str(&format!("[{}]", known.join(", ")));
            continue;
        }
        // The space before it belongs to it.
        if kept[piece_start..].ends_with(' ') {
            kept.pop();
        }
        removed_at = Some(kept.len());
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
            ("as others say [9][8].", "as others say."),
            ("[[7]9] and [[1]]", " and [[1]]"),
        ];
        for (text, expected) in cases {
            assert_eq!(strip_dangling_citations(text, 2), expected, "{text}");
        }
    }
}
