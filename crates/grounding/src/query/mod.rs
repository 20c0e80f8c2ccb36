//! The query: the only text that is sent to a search server. It comes from the last user turn and, if that is too short to
//! stand alone, from the previous user turn; never from the system message, a completion or pasted material. `private`
//! removes private data.

mod private;

use chat::{Message, Role};
use unicode_normalization::UnicodeNormalization;

use crate::cjk::is_half_a_word;
use crate::invisible::is_invisible;
use crate::scorer::split_material;

/// Search engines hardly read more.
const MAX_QUERY_CHARS: usize = 240;
/// A shorter turn cannot be understood without the previous one.
const MIN_STANDALONE_WORDS: usize = 5;
/// The same for the built-in index, for which no text leaves the machine.
const MIN_STANDALONE_WORDS_FOR_INDEX: usize = 9;

/// The query for a remote server; `None` if nothing is left to search for.
pub fn derive(messages: &[Message]) -> Option<String> {
    derive_with(messages, MIN_STANDALONE_WORDS)
}

/// The query for the built-in index.
pub fn derive_for_index(messages: &[Message]) -> Option<String> {
    derive_with(messages, MIN_STANDALONE_WORDS_FOR_INDEX)
}

fn derive_with(messages: &[Message], min_standalone_words: usize) -> Option<String> {
    let mut user_turns = messages.iter().rev().filter(|message| message.role() == Role::User);
    let last = question_of(user_turns.next()?.content());
    let query = match user_turns.next() {
        Some(before) if words(&last) < min_standalone_words => {
            let before = question_of(before.content());
            let max_chars = MAX_QUERY_CHARS.saturating_sub(last.chars().count() + 1);
            // The previous turn may announce a secret that this one contains.
            private::remove(&format!("{} {last}", cut_at_word(&before, max_chars)))
        }
        _ => last,
    };
    let query = cut_at_word(query.trim(), MAX_QUERY_CHARS).trim().to_owned();
    query.chars().any(char::is_alphanumeric).then_some(query)
}

/// The question of a turn, without pasted material and private data.
fn question_of(content: &str) -> String {
    let visible: String = content.chars().filter(|character| !is_invisible(*character)).nfc().collect();
    shorten(&private::remove(&split_material(&visible, |_| false).ask))
}

/// The questions of a long text. Without questions, its end, where requests usually are.
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

fn words(text: &str) -> usize {
    let half_words = text.chars().filter(|character| is_half_a_word(*character)).count();
    text.split_whitespace().count() + half_words / 2
}

/// At most `max_chars` characters, cut at the end of a word.
fn cut_at_word(text: &str, max_chars: usize) -> &str {
    let Some((end, _)) = text.char_indices().nth(max_chars) else { return text };
    let head = &text[..end];
    match text[end..].starts_with(char::is_whitespace) {
        true => head,
        false => head.rfind(char::is_whitespace).map_or(head, |space| &head[..space]),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn conversation(turns: &[(Role, &str)]) -> Vec<Message> {
        turns.iter().map(|(role, text)| Message::new(*role, (*text).into()).unwrap()).collect()
    }

    fn query_of(text: &str) -> Option<String> {
        derive(&conversation(&[(Role::User, text)]))
    }

    #[test]
    fn a_question_is_used_as_the_query() {
        assert_eq!(query_of("who is the mayor of Rijeka?").as_deref(), Some("who is the mayor of Rijeka?"));
        assert_eq!(query_of("日本の最新の出生率は？").as_deref(), Some("日本の最新の出生率は？"));
        assert_eq!(query_of("  \n "), None);
        assert_eq!(query_of("```rust\nfn main() {}\n```\n").as_deref(), None);
        assert_eq!(query_of("```\nfn internal_name() -> u32 { 7 }").as_deref(), None);
        assert_eq!(derive(&conversation(&[(Role::System, "be kind"), (Role::Assistant, "yes?")])), None);
    }

    #[test]
    fn a_short_turn_is_combined_only_with_the_previous_user_turn() {
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
        assert_eq!(query_of(code).as_deref(), Some("why does numpy 2.1 print a warning here?"));
        let letter = "Is this legal in Austria?\n\nDear Ms Horvat, your contract of 3 March ends at once because you were ill \
                      for more than two weeks, and we will not pay your last salary. Yours, Huber";
        assert_eq!(query_of(letter).as_deref(), Some("Is this legal in Austria?"));
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
            let query = query_of(&format!("what is the visa fee for Japan {secret} in 2025")).unwrap();
            assert_eq!(query, "what is the visa fee for Japan in 2025", "{secret}");
        }
    }

    const PASSWORDS: [&str; 39] = [
        "password", "Passwords", "pass code", "passcode", "passphrase", "PIN", "pin code", "pw", "pwd", "DB_PASSWORD",
        "Passwort", "WLAN-Passwort", "Routerkennwort", "Kennwort", "Geheimzahl", "Zugangscode", "mot de passe", "mdp",
        "code secret", "code d'accès", "contraseña", "contrasen\u{303}a", "código de acceso", "parola d'ordine",
        "codice di accesso", "senha", "palavra-passe", "código de acesso", "wachtwoord", "pincode", "toegangscode",
        "hasło", "haslo", "kod dostępu", "lozinka", "zaporka", "šifra", "Šifra", "pristupni kod",
    ];
    const TOKENS: [&str; 22] = [
        "token", "API key", "api_key", "secret", "client_secret", "access key", "Geheimnis", "API-Schlüssel", "jeton",
        "clé API", "secreto", "clave de acceso", "clave API", "segreto", "chiave API", "segredo", "chave de API",
        "API-sleutel", "sekret", "klucz API", "tajna", "API ključ",
    ];
    const KEYS: [&str; 19] = [
        "key", "login", "username", "Schlüssel", "Benutzername", "clé", "identifiant", "clave", "llave", "usuario",
        "chiave", "nome utente", "chave", "sleutel", "gebruikersnaam", "klucz", "nazwa użytkownika", "ključ",
        "korisničko ime",
    ];
    const COLONS: [&str; 9] = [": ", ":", " : ", ":\n", "=", " = ", "\": ", ":** ", " -> "];
    const IS: [&str; 12] =
        [" is ", " is: ", " is now ", " ist ", " lautet ", " est ", " es ", " è ", " é ", " je ", " jest ", " luidt "];
    const QUOTES: [(&str, &str); 7] =
        [("", ""), ("\"", "\""), ("'", "'"), ("`", "`"), ("„", "“"), ("“", "”"), ("«", "»")];

    fn assert_absent(secret: &str, announcement: &str) {
        let turns = [
            format!("what is the visa fee for Japan, my {announcement} for a week"),
            format!("{announcement}. Who is the mayor of Rijeka now, and since when?"),
        ];
        for turn in turns {
            let query = query_of(&turn).unwrap_or_default();
            assert!(!query.contains(secret), "{turn:?} became {query:?}");
            assert!(query.contains("Japan") || query.contains("Rijeka"), "{turn:?} became {query:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn an_announced_secret_is_never_sent(
            (opening, closing) in prop::sample::select(&QUOTES),
            plain in "[zqx]{3}[a-z]{0,9}",
            odd in "[0-9]{4,8}|[A-Za-z]{3,5}[0-9]{1,3}[a-z!#$.-]{0,3}|[a-z]{4}[!#$%*][a-z]{3}",
            phrase in "[zqx]{3}[a-z]{1,6} [zqx]{3}[a-z]{1,6} [a-z0-9]{4}",
        ) {
            for word in PASSWORDS.iter().chain(&TOKENS).chain(&KEYS) {
                for colon in COLONS {
                    assert_absent(&plain, &format!("{word}{colon}{opening}{plain}{closing}"));
                    assert_absent(&odd, &format!("{word}{colon}{opening}{odd}{closing}"));
                }
                for is in IS {
                    assert_absent(&odd, &format!("{word}{is}{opening}{odd}{closing}"));
                }
            }
            for word in PASSWORDS.iter().chain(&TOKENS) {
                for is in IS {
                    assert_absent(&plain, &format!("{word}{is}{opening}{plain}{closing}"));
                }
            }
            for word in PASSWORDS {
                for is in IS {
                    assert_absent(&odd, &format!("{word} for the guest wifi{is}{opening}{odd}{closing}"));
                }
                assert_absent(&odd, &format!("{word} {opening}{odd}{closing}"));
                if !opening.is_empty() {
                    assert_absent(&phrase, &format!("{word}: {opening}{phrase}{closing}"));
                }
            }
        }
    }

    #[test]
    fn secrets_as_people_write_them_are_removed() {
        for secret in [
            "pw: zauberwald",
            "Passwort lautet zauberwald",
            "passcode 4821",
            "passcode 482 199",
            "šifra je zauberwald",
            "šifra: zauberwald",
            "hasło to zauberwald",
            "{\"password\": \"zauber wald\"}",
            "password (wifi): zauberwald",
            "PIN of my card is 4821",
            "password – hunter2",
            "export DB_PASSWORD=zauberwald",
            "secret: -----BEGIN RSA PRIVATE KEY----- MIIE qrs= -----END RSA PRIVATE KEY-----",
            "db1.corp.example",
            "host=db1.corp.example:5432/app",
            "(mail.intern.firma.hr)",
            "pw: zauber`wald",
            "`pw = zauberwald` and `corp`",
        ] {
            let query = query_of(&format!("what is the visa fee for Japan {secret} in 2025")).unwrap();
            for private in ["zauber", "wald", "4821", "482", "199", "hunter", "qrs", "db1", "corp", "intern"] {
                assert!(!query.contains(private), "{secret}: {query}");
            }
            assert!(
                query.starts_with("what is the visa fee for Japan") && query.ends_with("2025"),
                "{secret}: {query}"
            );
        }
        let announced = conversation(&[(Role::User, "my wifi password is"), (Role::User, "zauberwald")]);
        assert!(!derive(&announced).unwrap_or_default().contains("zauberwald"));
    }

    #[test]
    fn ordinary_questions_keep_their_words() {
        for text in [
            "what is a password manager",
            "Wie setze ich mein Passwort zurück?",
            "how long should a password be",
            "is it safe to store passwords in Firefox",
            "was 1password ever breached in 2023",
            "does NIST still recommend changing passwords every 90 days",
            "what are the key points of the 2024 budget",
            "the key to success in chess is what",
            "how does token bucket rate limiting work",
            "what is an ERC20 token",
            "who sang The Secret Garden",
            "combien de caractères pour un mot de passe sûr",
            "¿Cuál es la contraseña más usada del mundo?",
            "qual è la password più usata al mondo",
            "como faço um input de senha em html",
            "hoe reset ik mijn wachtwoord",
            "jak zmienić hasło w Gmail",
            "kako promijeniti lozinku na Gmailu",
            "bashで拡張子が.txtのファイル全部.mdにリネームしたい",
            "quali parole: amore o morte, usa di più Dante",
            "token prices per million: GPT-4o or Claude",
            "write an arduino sketch that blinks pin 13",
            "why does login with OAuth2 fail",
            "how does java.util.List differ from System.Collections.Generic",
            "what does os.path.join() do in Python 3.13.1",
            "is Node.js 22 out, and what is new at example.com",
            "what does d.o.o. mean, and S.p.A. or e.g. GmbH",
        ] {
            assert_eq!(query_of(text).as_deref(), Some(text));
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
            assert_eq!(query_of(text).as_deref(), Some(text));
        }
    }

    #[test]
    fn a_long_turn_is_shortened_to_its_question() {
        let story = "My sister moves from Munich to Oslo next month with her dog. ".repeat(8);
        let query = query_of(&format!("{story}What are the entry rules for dogs in Norway?")).unwrap();
        assert_eq!(query, "What are the entry rules for dogs in Norway?");
        let query = query_of(&"word ".repeat(400)).unwrap();
        assert!(query.chars().count() <= MAX_QUERY_CHARS && !query.ends_with(' '), "{query}");
    }
}
