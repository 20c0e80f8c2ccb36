//! Untrusted text made harmless.
//!
//! The result is one line of visible characters, without square or angle brackets in any script's form, without a run
//! of marks that could pass for a fence, and without control tokens of a chat template. So it cannot begin a line,
//! forge a source's number, or close the fence around it.

use std::sync::LazyLock;

use regex::Regex;
use scraper::{Html, Node};
use unicode_normalization::UnicodeNormalization;

use crate::invisible::is_invisible;

/// Marks of which three in a row could pass for a fence, a heading or a rule.
const FENCE_MARKS: &str = "=-_*#~`|+^:";

/// One clean line of at most that many characters, cut at the end of a word.
pub(super) fn clean_line(text: &str, max_chars: usize) -> String {
    let text = if HTML.is_match(text) { visible_text(text) } else { text.to_owned() };
    let mut clean = String::with_capacity(text.len());
    let (mut last, mut run, mut count) = (' ', 0, 0);
    for character in text.nfkc().filter(|character| !is_invisible(*character)).map(harmless) {
        let character = if character.is_whitespace() { ' ' } else { character };
        run = if character == last { run + 1 } else { 1 };
        last = character;
        if character == ' ' && run > 1 || FENCE_MARKS.contains(character) && run > 2 {
            continue;
        }
        count += 1;
        if count > max_chars {
            let end = clean.rfind(' ').filter(|end| *end > clean.len() / 2).unwrap_or(clean.len());
            clean.truncate(end);
            clean.push('…');
            break;
        }
        clean.push(character);
    }
    clean.trim().to_owned()
}

/// Brackets and their look-alikes become round ones; bars and long dashes become short ones.
fn harmless(character: char) -> char {
    match character {
        '[' | '【' | '〔' | '〖' | '〘' | '〚' | '⟦' | '⁅' | '⦋' | '❲' | '｢' | '⎡' | '⎢' | '⎣' => {
            '('
        }
        ']' | '】' | '〕' | '〗' | '〙' | '〛' | '⟧' | '⁆' | '⦌' | '❳' | '｣' | '⎤' | '⎥' | '⎦' => {
            ')'
        }
        '<' | '‹' | '〈' | '⟨' | '❮' | '❬' | '❰' | '≺' | '˂' | '《' | '⟪' | '𝈶' | 'ᐸ' | '﹤' => {
            '‹'
        }
        '>' | '›' | '〉' | '⟩' | '❯' | '❭' | '❱' | '≻' | '˃' | '》' | '⟫' | 'ᐳ' | '﹥' => '›',
        '\u{2500}'..='\u{257f}' | '―' | '⸺' | '⸻' | '⎯' | '‾' | '▬' | '〓' | '゠' | '꞊' | '≡' | '᐀' | '𐆐' => {
            '-'
        }
        '¦' | 'ǀ' | '∣' | '❘' | '︱' => '|',
        '´' | 'ˋ' | '‵' | '՝' => '\'',
        other => other,
    }
}

/// Tags and entities of real pages; `Vec<String>` and `a <b` do not match.
static HTML: LazyLock<Regex> = LazyLock::new(|| {
    let tags = "a|abbr|article|b|blockquote|body|br|button|code|div|em|font|form|h[1-6]|head|hr|html|i|iframe|img|input|li|link|mark|meta|nav|noscript|ol|p|pre|script|section|small|span|strong|style|sub|sup|svg|table|tbody|td|template|th|thead|title|tr|u|ul";
    let pattern = format!(r"(?i)</?(?:{tags})(?:\s[^<>]*)?/?>|<!--|&(?:[a-z]{{2,8}}|#\d{{1,7}}|#x[0-9a-f]{{1,6}});");
    Regex::new(&pattern).expect("the pattern is a constant")
});

/// The text that a browser would show.
fn visible_text(html: &str) -> String {
    let mut text = String::new();
    let fragment = Html::parse_fragment(html);
    for node in fragment.tree.root().descendants() {
        let hidden = |node: ego_tree::NodeRef<'_, Node>| {
            node.value()
                .as_element()
                .is_some_and(|element| matches!(element.name(), "script" | "style" | "template" | "noscript" | "head"))
        };
        match node.value() {
            Node::Text(piece) if !node.ancestors().any(hidden) => text.push_str(piece),
            Node::Element(element)
                if !matches!(element.name(), "b" | "i" | "em" | "strong" | "mark" | "span" | "a") =>
            {
                text.push(' ')
            }
            _ => {}
        }
    }
    text
}
