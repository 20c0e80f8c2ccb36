//! Fuzzes conversations: they are scored and turned into a query in linear time, and the query contains no secret.

use chat::{Message, Role};
use fuzzer::{Target, magnitude};
use serde_json::Value;

use crate::query;
use crate::scorer::Scorer;

const SECRET: &str = "sk-live-4eC39HqLyjWDarjtT1zdp7dcAbCdEf";

#[test]
fn conversations() {
    let rows =
        include_str!("../data/dev.jsonl").lines().step_by(5).filter_map(|row| serde_json::from_str::<Value>(row).ok());
    let corpus: Vec<String> = rows
        .filter_map(|row| {
            let messages = row["messages"].as_array()?.iter().filter_map(|message| message["content"].as_str());
            Some(messages.collect::<Vec<_>>().join("\u{1e}"))
        })
        .collect();
    let words = [
        "\u{1e}", "who", "?", "\n", "```", "> ", "2024", "password: ", " PIN is ", " šifra ", "„", "a.b.cd", SECRET,
        "\u{fffd}湖人", "http://", "日本", " the ", "\"", "\u{301}", "!",
    ];
    let scorer = Scorer::new();
    Target::new("conversations").corpus(corpus).dictionary(words).max_bytes(8 * 1024).linear().run_text(|text| {
        let messages: Vec<Message> = text
            .split('\u{1e}')
            .take(20)
            .enumerate()
            .map(|(at, content)| Message::for_runtime([Role::User, Role::Assistant][at % 2], content.to_owned()))
            .collect();
        let score = scorer.score(&messages);
        assert!((0.0..=1.0).contains(&score.get()), "{}", score.get());
        let query = query::derive(&messages).unwrap_or_default();
        assert!(!query.contains(SECRET) && query.len() <= 2_000, "{query}");
        assert!(!query.chars().any(char::is_control), "{query:?}");
        (score.is_required(), magnitude(query.len()), (score.get() * 16.0) as u32)
    });
}
