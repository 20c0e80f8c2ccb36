//! The query: all that a search server is sent. It comes from the last user turn and, where that is too short to stand
//! alone, from the user turn before it; never from the system message, a completion or pasted material. Secrets and
//! personal data are removed.

use std::sync::LazyLock;

use chat::{Message, Role};
use regex::Regex;

use crate::cjk::is_half_a_word;
use crate::invisible::is_invisible;
use crate::scorer::split_material;

/// Search engines read little more.
const MAX_QUERY_CHARS: usize = 240;
/// A shorter turn cannot be understood without the one before it.
const MIN_STANDALONE_WORDS: usize = 5;

/// `None` if nothing is left to search for.
pub fn derive(messages: &[Message]) -> Option<String> {
    let mut user_turns = messages.iter().rev().filter(|message| message.role() == Role::User);
    let last = question_of(user_turns.next()?.content());
    let query = match user_turns.next() {
        Some(before) if needs_context(&last) => {
            let before = question_of(before.content());
            let max_chars = MAX_QUERY_CHARS.saturating_sub(last.chars().count() + 1);
            format!("{} {last}", cut_at_word(&before, max_chars))
        }
        _ => last,
    };
    let query = cut_at_word(query.trim(), MAX_QUERY_CHARS).trim().to_owned();
    query.chars().any(char::is_alphanumeric).then_some(query)
}

/// What a turn asks, without pasted material and private data.
fn question_of(content: &str) -> String {
    let visible: String = content.chars().filter(|character| !is_invisible(*character)).collect();
    let parts = split_material(&visible, |_| false);
    let cleaned = remove_secrets(&parts.ask);
    let words: Vec<&str> = cleaned.split_whitespace().collect();
    shorten(&words.join(" "))
}

/// The questions of a long text, or else its end: requests tend to stand there.
fn shorten(text: &str) -> String {
    if text.chars().count() <= MAX_QUERY_CHARS {
        return text.to_owned();
    }
    let sentences: Vec<&str> = text.split_inclusive(['.', '?', '!', '。', '？', '！']).collect();
    let questions: String =
        sentences.iter().copied().filter(|sentence| sentence.trim_end().ends_with(['?', '？'])).collect();
    if !questions.trim().is_empty() {
        return questions.trim().to_owned();
    }
    let mut end = String::new();
    for sentence in sentences.iter().rev() {
        if !end.is_empty() && end.chars().count() + sentence.chars().count() > MAX_QUERY_CHARS {
            break;
        }
        end.insert_str(0, sentence);
    }
    end.trim().to_owned()
}

fn needs_context(text: &str) -> bool {
    let half_words = text.chars().filter(|character| is_half_a_word(*character)).count();
    text.split_whitespace().count() + half_words / 2 < MIN_STANDALONE_WORDS
}

/// At most that many characters, cut where a word ends.
fn cut_at_word(text: &str, max_chars: usize) -> &str {
    let Some((end, _)) = text.char_indices().nth(max_chars) else { return text };
    let head = &text[..end];
    match text[end..].starts_with(char::is_whitespace) {
        true => head,
        false => head.rfind(char::is_whitespace).map_or(head, |space| &head[..space]),
    }
}

/// Replaced by a space, longest forms first.
static SECRETS: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    let patterns = [
        // Code between backticks; placeholders for material.
        r"`[^`]*`|\u{1}\w+",
        r"-----BEGIN [A-Z ]+-----[\s\S]*?(?:-----END [A-Z ]+-----|$)",
        // URLs can carry tokens and names.
        r"(?i)\b(?:[a-z][a-z0-9+.-]*://|www\.)\S+",
        r"(?i)[\p{L}0-9._%+'-]+\s?(?:@|\(at\)|\[at\])\s?[\p{L}0-9-]+(?:\.[\p{L}0-9-]+)+",
        // Words that introduce a secret, and the secret.
        r"(?i)\b(?:password|passwort|passwd|pwd|pass ?phrase|pin|secret|token|api[ _-]?key|kennwort|contraseña|mot de passe|senha|lozinka|parola)(?:\s*[:=]\s*|\s+(?:is|ist|est|es|è|é|je)\s+)\S+",
        r"(?i)\bbearer\s+\S+",
        // API keys: a known prefix, an underscore or hyphen, then noise.
        r"\b(?:adria|sk|pk|rk|ghp|gho|ghs|ghu|github_pat|glpat|xox[abprs]|hf|npm|pypi|AIza|AKIA|ASIA|ya29|eyJ)[-_]?[A-Za-z0-9][A-Za-z0-9_.\-]{11,}",
        // An IBAN.
        r"\b[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]{4}){2,7}(?:[ -]?[A-Z0-9]{1,4})?\b",
        // Card and account numbers: many digits, grouped or not.
        r"\b\d(?:[ -]?\d){12,18}\b",
        r"\b\d{9,}\b",
        // United States social security numbers.
        r"\b\d{3}-\d{2}-\d{4}\b",
        // Telephone numbers: international, with a leading zero, or with an area code.
        r"(?:\+|\b00)\d[\d\s().\-/]{5,}\d",
        r"\(\d{2,5}\)\s?\d[\d\s.\-]{3,}\d",
        r"\b0\d{1,4}[\s./-]\d[\d\s./-]{3,}\d\b",
        r"\b\d{3}[-. ]\d{3}[-. ]\d{4}\b",
        // IP addresses.
        r"\b(?:\d{1,3}\.){3}\d{1,3}\b",
        r"(?i)\b(?:[0-9a-f]{1,4}:){3,7}:?[0-9a-f]{0,4}\b",
    ];
    // Word boundaries as ASCII has them: for Unicode's the engine leaves its automaton where a text is not ASCII, and
    // takes a hundred times as long (found by fuzzing).
    let patterns = patterns.iter().map(|pattern| pattern.replace(r"\b", r"(?-u:\b)"));
    patterns.map(|pattern| Regex::new(&pattern).expect("the patterns are constants")).collect()
});

fn remove_secrets(text: &str) -> String {
    let mut text = text.to_owned();
    for pattern in SECRETS.iter() {
        if let std::borrow::Cow::Owned(cleaned) = pattern.replace_all(&text, " ") {
            text = cleaned;
        }
    }
    // Long noise: letters and digits mixed as no word mixes them.
    let kept: Vec<&str> = text.split_whitespace().filter(|word| !is_noise(word)).collect();
    kept.join(" ")
}

fn is_noise(word: &str) -> bool {
    let word = word.trim_matches(|character: char| !character.is_alphanumeric());
    let digits = word.chars().filter(char::is_ascii_digit).count();
    let letters = word.chars().filter(char::is_ascii_alphabetic).count();
    let changes = word.as_bytes().windows(2).filter(|two| two[0].is_ascii_digit() != two[1].is_ascii_digit()).count();
    word.len() >= 16 && digits >= 3 && letters >= 3 && changes >= 3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation(turns: &[(Role, &str)]) -> Vec<Message> {
        turns.iter().map(|(role, text)| Message::new(*role, (*text).into()).unwrap()).collect()
    }

    fn asked(text: &str) -> Option<String> {
        derive(&conversation(&[(Role::User, text)]))
    }

    #[test]
    fn a_question_is_its_own_query() {
        assert_eq!(asked("who is the mayor of Rijeka?").as_deref(), Some("who is the mayor of Rijeka?"));
        assert_eq!(asked("日本の最新の出生率は？").as_deref(), Some("日本の最新の出生率は？"));
        assert_eq!(asked("  \n "), None);
        assert_eq!(asked("```rust\nfn main() {}\n```\n").as_deref(), None);
        assert_eq!(asked("```\nfn internal_name() -> u32 { 7 }").as_deref(), None);
        assert_eq!(derive(&conversation(&[(Role::System, "be kind"), (Role::Assistant, "yes?")])), None);
    }

    #[test]
    fn a_short_turn_takes_the_user_turn_before_it_along_and_nothing_else() {
        let messages = conversation(&[
            (Role::System, "You are the secret agent Zorba."),
            (Role::User, "What is the GDP of Croatia in 2024?"),
            (Role::Assistant, "About 80 billion."),
            (Role::User, "and in 2025?"),
        ]);
        assert_eq!(derive(&messages).as_deref(), Some("What is the GDP of Croatia in 2024? and in 2025?"));
    }

    #[test]
    fn pasted_material_is_not_sent() {
        let code = "why does numpy 2.1 print a warning here?\n\n```python\nprint(internal_secret_name)\n```";
        assert_eq!(asked(code).as_deref(), Some("why does numpy 2.1 print a warning here?"));
        let letter = "Is this legal in Austria?\n\nDear Ms Horvat, your contract of 3 March ends at once because you were ill \
                      for more than two weeks, and we will not pay your last salary. Yours, Huber";
        assert_eq!(asked(letter).as_deref(), Some("Is this legal in Austria?"));
    }

    #[test]
    fn secrets_and_personal_data_are_removed() {
        let secrets = [
            "adria_AbCdEf123456_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG012345",
            "sk-proj-abcDEF1234567890abcDEF",
            "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
            "AKIAIOSFODNN7EXAMPLE",
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-DEF_123",
            "ana.horvat+news@example.co.uk",
            "ana (at) example.hr",
            "4111 1111 1111 1111",
            "5500-0000-0000-0004",
            "+385 91 234 5678",
            "(212) 555-0142",
            "091/234-5678",
            "212-555-0142",
            "HR12 1001 0051 8630 0016 0",
            "123-45-6789",
            "12345678901",
            "192.168.17.4",
            "https://example.org/reset?token=abcdef",
            "password: hunter2!",
            "password is hunter2",
            "2001:db8:85a3:0:0:8a2e:370:7334",
            "a81bc81bdead4e5dabff90865d1e13b1",
        ];
        for secret in secrets {
            let query = asked(&format!("what is the visa fee for Japan {secret} in 2025")).unwrap();
            assert_eq!(query, "what is the visa fee for Japan in 2025", "{secret}");
        }
    }

    #[test]
    fn numbers_that_are_facts_are_kept() {
        for text in [
            "did the Fed move on 2025-03-19 or on 20 March 2025",
            "is 1,250,000 the population of Zagreb in 2021",
            "price of a Ryzen 7 9800X3D with B650",
            "does Python 3.13.1 run on Windows 11 24H2",
            "what is article 17 of regulation 2016/679",
            "is flight LH1418 late",
        ] {
            assert_eq!(asked(text).as_deref(), Some(text));
        }
    }

    #[test]
    fn a_long_turn_is_shortened_to_its_question() {
        let story = "My sister moves from Munich to Oslo next month with her dog. ".repeat(8);
        let query = asked(&format!("{story}What are the entry rules for dogs in Norway?")).unwrap();
        assert_eq!(query, "What are the entry rules for dogs in Norway?");
        let query = asked(&"word ".repeat(400)).unwrap();
        assert!(query.chars().count() <= MAX_QUERY_CHARS && !query.ends_with(' '), "{query}");
    }
}
