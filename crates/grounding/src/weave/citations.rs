//! The answer's own `[n]` marks, held against the sources: one that names no source is a claim of nothing and goes.

/// The text without marks that cite nothing. Numbers in brackets that are no citations stay: in code, behind a name
/// (`list[7]`), or followed by a round bracket as in a Markdown link.
pub fn without_dangling(text: &str, sources: usize) -> String {
    let mut kept = String::with_capacity(text.len());
    for (index, piece) in text.split_inclusive('`').enumerate() {
        // Every other stretch between backticks is code.
        match index % 2 {
            0 => strip(piece, sources, &mut kept),
            _ => kept.push_str(piece),
        }
    }
    kept
}

fn strip(piece: &str, sources: usize, kept: &mut String) {
    let mut rest = piece;
    while let Some(open) = rest.find('[') {
        let (before, bracket) = rest.split_at(open);
        kept.push_str(before);
        let inside = bracket[1..].split_once(']').map(|(inside, _)| inside);
        let number = inside.filter(|inside| (1..=3).contains(&inside.len())).and_then(|inside| {
            inside.bytes().all(|byte| byte.is_ascii_digit()).then(|| inside.parse::<usize>().ok())?
        });
        let Some((number, length)) = number.zip(inside.map(|inside| inside.len() + 2)) else {
            kept.push('[');
            rest = &bracket[1..];
            continue;
        };
        let follows_name = kept.chars().next_back().is_some_and(|last| last.is_alphanumeric() || last == '_');
        let is_link = bracket[length..].starts_with('(');
        if (1..=sources).contains(&number) || follows_name || is_link {
            kept.push_str(&bracket[..length]);
        } else if kept.ends_with(' ') {
            // The blank before it was there for it.
            kept.pop();
        }
        rest = &bracket[length..];
    }
    kept.push_str(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_marks_that_cite_nothing_go() {
        let cases = [
            ("It is 12 [1].", "It is 12 [1]."),
            ("It is 12 [7].", "It is 12."),
            ("It is 12 [1][7] and [0] more [2]", "It is 12 [1] and more [2]"),
            ("list[7] and `x = [9]` and [5](https://a.example)", "list[7] and `x = [9]` and [5](https://a.example)"),
            ("[a] [] [12345] [", "[a] [] [12345] ["),
            ("日本 [3]。", "日本。"),
        ];
        for (text, expected) in cases {
            assert_eq!(without_dangling(text, 2), expected, "{text}");
        }
    }
}
