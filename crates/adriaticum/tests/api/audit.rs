//! The audit log: entries are data, and every output shows the same sentence.

use serde_json::{Value, json};

use crate::ADRIATICUM;
use crate::visitor::Visitor;

#[test]
fn entries_are_data_and_read_as_sentences() {
    let service = ADRIATICUM.service().start();
    let ada = Visitor::new(&service).join(&service, "Ada", "admin");
    let key = service.key_with("first", &[]);
    let id = &key[6..18];
    service.run_ok(&["limits", "set", "tokens-per-day", "4,000", "--everyone"]);
    service.run_ok(&["keys", "set", id, "--project", "search"]);
    service.run_ok(&["keys", "rename", id, "bot"]);
    service.run_ok(&["keys", "rotate", id, "--overlap", "1d"]);
    let entries: Value = serde_json::from_str(&ada.page("/audit.json?actor=operator")).unwrap();
    let entries = entries.as_array().unwrap();
    let entry = |action: &str| entries.iter().find(|entry| entry["action"] == action).unwrap_or(&Value::Null);
    let page = ada.page("/audit").replace("<strong>", "").replace("</strong>", "");
    for (action, kind, subject, details, sentence) in [
        (
            "limited",
            "everyone",
            "everyone",
            json!({"kind": "tokens-per-day", "amount": 4000}),
            "limited everyone to 4,000 tokens per day",
        ),
        ("moved-key", "key", "first", json!({"project": "search"}), "moved key first to project search"),
        ("renamed-key", "key", "bot", json!({"from": "first"}), "renamed key first to bot"),
        (
            "rotated-key",
            "key",
            "bot",
            json!({"overlap_seconds": 86_400}),
            "rotated key bot: the old secret works for 1 day",
        ),
    ] {
        let entry = entry(action);
        assert_eq!(entry["sentence"], sentence, "{entries:?}");
        assert_eq!((&entry["subject_kind"], &entry["subject"]), (&json!(kind), &json!(subject)), "{entry}");
        assert_eq!(entry["details"], details, "{entry}");
        assert_eq!(entry["subject_id"] == id, kind == "key", "{entry}");
        assert!(page.contains(sentence), "without {sentence}: {page}");
        assert!(ada.page("/audit.csv").contains(sentence));
    }
    let found = |query: &str| {
        let entries: Value = serde_json::from_str(&ada.page(&format!("/audit.json?{query}"))).unwrap();
        entries.as_array().unwrap().len()
    };
    for (query, count) in [
        ("action=rotated-key", 1),
        ("action=Rotated+Key", 1),
        ("action=4000", 1),
        ("action=painted", 0),
        ("subject=bot", 2),
        (&format!("subject={id}"), 4),
        ("subject=everyone&action=limited", 1),
    ] {
        assert_eq!(found(query), count, "{query}");
    }
}
