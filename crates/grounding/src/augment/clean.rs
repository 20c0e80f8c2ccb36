//! Text from elsewhere, made harmless: one line, visible characters only, and none that could open or close anything.
//!
//! What comes out holds no line break, no square or angle bracket in any script's form, no run of marks that could pass for a
//! fence, and no control token of a chat template. So it cannot begin a line, forge a number, or end the fence around it.

use std::sync::LazyLock;

use regex::Regex;
use scraper::{Html, Node};
use unicode_normalization::UnicodeNormalization;

use crate::invisible::is_invisible;

/// Marks of which three in a row could pass for a fence, a heading or a rule.
const RUNS: &str = "=-_*#~`|+^:";

/// One clean line of at most so many characters, cut at the end of a word.
pub(super) fn line(text: &str, longest: usize) -> String {
    let text = if HTML.is_match(text) { text_of(text) } else { text.to_owned() };
    let mut clean = String::with_capacity(text.len());
    let (mut last, mut run, mut count) = (' ', 0, 0);
    for character in text.nfkc().filter(|character| !is_invisible(*character)).map(harmless) {
        let character = if character.is_whitespace() { ' ' } else { character };
        run = if character == last { run + 1 } else { 1 };
        last = character;
        if character == ' ' && run > 1 || RUNS.contains(character) && run > 2 {
            continue;
        }
        count += 1;
        if count > longest {
            let end = clean.rfind(' ').filter(|end| *end > clean.len() / 2).unwrap_or(clean.len());
            clean.truncate(end);
            clean.push('…');
            break;
        }
        clean.push(character);
    }
    clean.trim().to_owned()
}

/// Brackets become round ones, what looks like them too; bars and long dashes become short ones.
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

/// Tags and entities of real pages; `Vec<String>` and `a <b` are none.
static HTML: LazyLock<Regex> = LazyLock::new(|| {
    let tags = "a|abbr|article|b|blockquote|body|br|button|code|div|em|font|form|h[1-6]|head|hr|html|i|iframe|img|input|li|link|mark|meta|nav|noscript|ol|p|pre|script|section|small|span|strong|style|sub|sup|svg|table|tbody|td|template|th|thead|title|tr|u|ul";
    let pattern = format!(r"(?i)</?(?:{tags})(?:\s[^<>]*)?/?>|<!--|&(?:[a-z]{{2,8}}|#\d{{1,7}}|#x[0-9a-f]{{1,6}});");
    Regex::new(&pattern).expect("the pattern is a constant")
});

/// What one would read of it in a browser.
fn text_of(html: &str) -> String {
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
