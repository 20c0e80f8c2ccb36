//! Removes secrets, personal data and addresses from a query. They are recognized by their form and by the words before
//! them. In doubt, a word is removed.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::{Captures, Regex};

/// A longer quotation is not a secret.
const MAX_QUOTED_CHARS: usize = 80;
/// A shorter word after "password" is not taken for one.
const MIN_ODD_CHARS: usize = 4;

/// The text in one line, without private data.
pub(super) fn remove(text: &str) -> String {
    let mut text = PRIVATE_KEY.replace_all(text, " ").into_owned();
    // Before the patterns, which could remove a part of an announced secret and leave the rest.
    for (announcement, secret) in ANNOUNCEMENTS.iter() {
        text = remove_announced(&text, announcement, *secret);
    }
    for pattern in PATTERNS.iter() {
        if let Cow::Owned(cleaned) = pattern.replace_all(&text, " ") {
            text = cleaned;
        }
    }
    let without_hosts =
        DOTTED_NAME.replace_all(&text, |found: &Captures| match is_host(&found["name"], &found["after"]) {
            true => " ".to_owned(),
            false => found[0].to_owned(),
        });
    let kept: Vec<&str> = without_hosts.split_whitespace().filter(|word| !is_noise(word)).collect();
    kept.join(" ")
}

static PRIVATE_KEY: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r"-----BEGIN [A-Z ]+-----[\s\S]*?(?:-----END [A-Z ]+-----|$)";
    Regex::new(pattern).expect("the pattern is a constant")
});

/// A password, passcode or PIN in English, German, French, Spanish, Italian, Portuguese, Dutch, Polish and Croatian. The
/// first ones also end compounds.
const PASSWORD: &str = concat!(
    r"pass[ -]?wor[dt]s?|passwörter|pass[ -]?(?:code|phrase)s?|kennw[oö]rt(?:er)?|geheimzahl|wachtwoord(?:en)?",
    r"|(?:^|[^\p{L}])(?:pwd?|passwd|pin(?:[ -]?(?:code|number|nummer|kod))?|zugangs?code|mots? de passe|mdp",
    r"|code (?:secret|d['’]acc[èe]s)|contrase[ñn]as?|c[óo]digo (?:de (?:acceso|acesso)|secreto)",
    r"|parola(?: d['’]ordine)?|parole d['’]ordine|codice (?:di accesso|segreto)|senhas?|palavras?[ -]passe|toegangscode",
    r"|has[łl](?:o|a|em)|kod dost[ęe]pu|lozink(?:a|e|i|u|om)|zapork(?:a|e|i|u|om)|[šs]ifr(?:a|e|i|u|om)|pristupni kod)",
);
/// A token, a secret, or an unambiguous kind of key.
const TOKEN: &str = concat!(
    r"(?:^|[^\p{L}])(?:tokens?|secrets?|(?:api|access|secret|private|licen[cs]e|product)[ _-]?keys?",
    r"|geheimnis|(?:api|zugangs|lizenz)[ -]?schlüssel|jetons?|cl(?:é|e|ef) (?:d['’])?(?:api|acc[èe]s)|secreto",
    r"|(?:clave|llave|chiave|chave) (?:d[eia] )?(?:api|acceso|accesso|acesso)|segreto|segredo|sekret|tajna",
    r"|api[ -]?(?:sleutel|klucz|klju[čc])|(?:klucz|klju[čc]) api)",
);
/// A key or a login. These words also have other meanings.
const KEY: &str = concat!(
    r"(?:^|[^\p{L}])(?:keys?|log-?in|pass|user ?name|schlüssel|benutzername|anmeldename|cl(?:é|ef)|identifiant",
    r"|clave|llave|usuario|chiave|nome utente|chave|usuário|utilizador|sleutel|ww|geheim|gebruikersnaam|inlognaam",
    r"|klucz|nazwa użytkownika|klju[čc]|korisničko ime)",
);
const IS: &str = concat!(
    r"\s+(?:is|was|ist|war|lautet|heißt|heisst|est|était|es|era|è|e['’]|é|luidt|jest|brzmi|je|glasi)",
    r"(?:\s+(?:now|still|jetzt|nun|maintenant|ahora|adesso|ora|agora|nu|teraz|sada))?(?:\s*[:=]\s*|\s+)",
);
/// A colon, an equals sign or an arrow. Before it the end of a quotation or of Markdown, or a remark; after it Markdown.
const COLON: &str = r#"["'”’»*_]*\s*(?:\([^()\n]{0,40}\)\s*)?(?::?=>?|:|[-–]>|→)[*_]*\s*"#;
/// Other words between the announcing word and "is".
const BETWEEN: &str = r"(?:\s+[\p{L}\d'’.-]+){0,4}?";

/// What counts as a secret after an announcement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Secret {
    /// Any text.
    Any,
    /// Quoted text, or a word with a digit or symbol.
    Odd,
}

static ANNOUNCEMENTS: LazyLock<[(Regex, Secret); 5]> = LazyLock::new(|| {
    let announcement = |pattern: String| Regex::new(&format!("(?i){pattern}")).expect("the patterns are constants");
    [
        (announcement(format!("(?:{PASSWORD}|{TOKEN}|{KEY}){COLON}")), Secret::Any),
        (announcement(format!(r"(?:{PASSWORD}|{TOKEN}){IS}|has[łl]o\s+to\s+")), Secret::Any),
        (announcement(format!(r"(?:{PASSWORD}){BETWEEN}(?:{IS}|{COLON}|\s+[-–—]\s+)")), Secret::Odd),
        (announcement(format!("{KEY}{IS}")), Secret::Odd),
        (announcement(format!(r"(?:{PASSWORD})\s+")), Secret::Odd),
    ]
});

/// Removes secrets together with their announcements.
fn remove_announced(text: &str, announcement: &Regex, secret: Secret) -> String {
    let mut kept = String::with_capacity(text.len());
    let (mut at, mut copied) = (0, 0);
    while let Some(found) = announcement.find_at(text, at) {
        at = found.end();
        if let Some(length) = secret_len(&text[at..], secret) {
            kept.push_str(&text[copied..found.start()]);
            at += length;
            copied = at;
            kept.push(' ');
            // Keeps the beginnings and ends of code.
            kept.extend(text[found.start()..at].chars().filter(|character| *character == '`'));
        }
    }
    kept.push_str(&text[copied..]);
    kept
}

/// The length of the secret at the beginning of a text: a quotation, a number in groups, or the text up to white space.
fn secret_len(text: &str, secret: Secret) -> Option<usize> {
    if let Some(length) = quotation_len(text) {
        return Some(length);
    }
    let word = text.find(char::is_whitespace).unwrap_or(text.len());
    let digits = text.find(|character: char| !character.is_ascii_digit() && character != ' ').unwrap_or(text.len());
    let end = word.max(text[..digits].trim_end().len());
    (secret == Secret::Any || is_odd(&text[..end])).then_some(end)
}

fn quotation_len(text: &str) -> Option<usize> {
    let closing = match text.chars().next()? {
        quote @ ('"' | '\'' | '`') => [quote; 2],
        '“' | '„' => ['”', '“'],
        '‘' | '‚' => ['’', '‘'],
        '«' => ['»'; 2],
        '»' => ['«'; 2],
        _ => return None,
    };
    let (at, quote) = text.char_indices().skip(1).take(MAX_QUOTED_CHARS).find(|(_, next)| closing.contains(next))?;
    Some(at + quote.len_utf8())
}

fn is_odd(word: &str) -> bool {
    let word = word.trim_end_matches(['.', ',', ';', ':', '!', '?', ')', '"', '\'']);
    let has_sign = word.contains(|character: char| character.is_ascii_digit() || "@#$%^*~!|\\".contains(character));
    has_sign && word.chars().count() >= MIN_ODD_CHARS
}

/// Replaced by a space, longest forms first.
static PATTERNS: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    let patterns = [
        // Code between backticks; placeholders for material.
        r"`[^`]*`|\u{1}\w+",
        // URLs can carry tokens and names.
        r"(?i)\b(?:[a-z][a-z0-9+.-]*://|www\.)\S+",
        r"(?i)[\p{L}0-9._%+'-]+\s?(?:@|\(at\)|\[at\])\s?[\p{L}0-9-]+(?:\.[\p{L}0-9-]+)+",
        r"(?i)\bbearer\s+\S+",
        // API keys: a known prefix, an underscore or hyphen, then random characters.
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
    // ASCII word boundaries: with Unicode ones the engine leaves its automaton in text that is not ASCII, and takes a
    // hundred times as long (found by fuzzing).
    let patterns = patterns.iter().map(|pattern| pattern.replace(r"\b", r"(?-u:\b)"));
    patterns.map(|pattern| Regex::new(&pattern).expect("the patterns are constants")).collect()
});

/// A long random string: letters and digits are mixed more than in any word.
fn is_noise(word: &str) -> bool {
    let word = word.trim_matches(|character: char| !character.is_alphanumeric());
    let digits = word.chars().filter(char::is_ascii_digit).count();
    let letters = word.chars().filter(char::is_ascii_alphabetic).count();
    let changes = word.as_bytes().windows(2).filter(|two| two[0].is_ascii_digit() != two[1].is_ascii_digit()).count();
    word.len() >= 16 && digits >= 3 && letters >= 3 && changes >= 3
}

/// Three or more parts, with a port and a path. ASCII only, because other scripts may not separate it with spaces.
static DOTTED_NAME: LazyLock<Regex> = LazyLock::new(|| {
    let part = "[A-Za-z0-9_-]+";
    let pattern = format!(r"(?<name>{part}(?:\.{part}){{2,}})(?<after>\(?(?::\d+)?(?:/\S*)?)");
    Regex::new(&pattern).expect("the pattern is a constant")
});

/// Whether a dotted name is a host. Names in code have mixed case or underscores, or are called.
fn is_host(name: &str, after: &str) -> bool {
    let has_one_case = !name.contains(char::is_uppercase) || !name.contains(char::is_lowercase);
    let ends_in_letters =
        name.rsplit('.').next().is_some_and(|last| last.len() > 1 && last.chars().all(char::is_alphabetic));
    has_one_case && ends_in_letters && !name.contains('_') && !after.starts_with('(')
}
