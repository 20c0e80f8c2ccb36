//! Makes untrusted text harmless.
//!
//! The result is one line of visible characters, without square or angle brackets in any script's form, without a run
//! of marks that could look like a fence, and without control tokens of a chat template. So it cannot begin a line, forge
//! a source's number, or close the fence around it. The time is linear in the length, and cleaning is idempotent.

use std::sync::LazyLock;

use regex::Regex;
use unicode_normalization::UnicodeNormalization;

use super::visible_text::visible_text;
use crate::invisible::is_invisible;

/// Far more than is kept of any text. The rest is ignored.
const MAX_INPUT_BYTES: usize = 64 * 1024;
/// Three of these marks in a row could look like a fence, a heading or a rule.
const FENCE_MARKS: &str = "=-_*#~`|+^:";
const CUT: &str = "...";

/// One clean line of at most `max_chars` characters, cut at the end of a word.
pub(super) fn clean_line(text: &str, max_chars: usize) -> String {
    let text = &text[..text.floor_char_boundary(MAX_INPUT_BYTES)];
    match HTML.is_match(text) {
        true => clean_text(&visible_text(text), max_chars),
        false => clean_text(text, max_chars),
    }
}

fn clean_text(text: &str, max_chars: usize) -> String {
    let mut clean = String::with_capacity(text.len().min(4 * max_chars));
    let (mut last, mut run, mut count) = (' ', 1, 0);
    // Invisible characters are also removed before normalization, because characters that they separate may combine.
    let visible = text.chars().filter(|character| !is_invisible(*character)).nfkc();
    for character in visible.filter(|character| !is_invisible(*character)).map(harmless) {
        let character = if character.is_whitespace() { ' ' } else { character };
        run = if character == last { run + 1 } else { 1 };
        last = character;
        if character == ' ' && run > 1 || FENCE_MARKS.contains(character) && run > 2 {
            continue;
        }
        if character == ';' {
            count += usize::from(break_reference(&mut clean));
        }
        clean.push(character);
        count += 1;
        if count > max_chars {
            cut(&mut clean, max_chars);
            break;
        }
    }
    clean.truncate(clean.trim_end().len());
    clean
}

/// Cuts at the end of a word, if there is one in the second half.
fn cut(clean: &mut String, max_chars: usize) {
    let keep = max_chars.saturating_sub(CUT.len());
    let end = clean.char_indices().nth(keep).map_or(clean.len(), |(at, _)| at);
    // The word may end exactly at the cut.
    let end = match clean[end..].starts_with(' ') {
        true => end,
        false => clean[..end].rfind(' ').filter(|space| *space > end / 2).unwrap_or(end),
    };
    clean.truncate(end);
    clean.truncate(clean.trim_end_matches([' ', '.']).len());
    clean.push_str(CUT);
}

/// Breaks text such as `&lt`, which a semicolon would turn into a character for a reader of HTML, with a space after the
/// `&`. Returns whether there was such text.
fn break_reference(clean: &mut String) -> bool {
    const MAX_REFERENCE_BYTES: usize = 9;

    let from = clean.len().saturating_sub(MAX_REFERENCE_BYTES);
    let from = clean.ceil_char_boundary(from);
    match clean[from..].rfind('&') {
        Some(at) if REFERENCE.is_match(&clean[from + at..]) => {
            clean.insert(from + at + 1, ' ');
            true
        }
        _ => false,
    }
}

/// Square brackets and their look-alikes become round ones, angle brackets become quotation marks, and long dashes and
/// bars become ASCII ones.
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
    let pattern = format!(r"(?i)</?(?:{tags})(?:\s[^<>]*)?/?>|<!--|&(?:{NAME});");
    Regex::new(&pattern).expect("the pattern is a constant")
});

/// The part of an entity between `&` and `;`.
const NAME: &str = r"[a-z]{2,8}|#[0-9]{1,7}|#x[0-9a-f]{1,6}";

static REFERENCE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(&format!("(?i)^&(?:{NAME})$")).expect("the pattern is a constant"));
