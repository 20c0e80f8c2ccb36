//! Completions end to end: through the API, with a key, into the ledger, with exact token counts.

use serde_json::Value;
use testbed::{Conversation, all_at_once, words};

use crate::embedded::{EmbeddedBuilder, EmbeddedService};
use crate::run_alone;

/// A question, and its tokens with the template. The completion depends on how the CPU rounds.
const QUESTION: &str = "What is the capital of France?";
const QUESTION_TOKENS: u64 = 37;

/// A conversation with one likely continuation on every CPU: the same text again.
fn pattern() -> Conversation {
    let mut chat = Conversation::user("Say yes.");
    for _ in 0..8 {
        chat = chat.then_assistant("Yes.").then_user("Say yes.");
    }
    chat.max_tokens(512)
}

/// Finish reason, prompt tokens and completion tokens, which must be the same in the ledger.
fn finish_and_tokens(service: &EmbeddedService, key: &str, chat: &Conversation) -> (String, u64, u64) {
    let completed = service.complete(key, chat).completion();
    let [prompt, completion, total] = completed.tokens.map(|figure| figure.expect("a measured figure"));
    assert_eq!(total, prompt + completion);
    let row = service.row(&completed.id);
    assert_eq!((&row["status"], &row["code"]), (&200.into(), &Value::Null), "{row}");
    let figures = ["prompt_tokens", "completion_tokens", "total_tokens"].map(|name| row[name].as_u64());
    assert_eq!(figures, completed.tokens, "{row}");
    (completed.finish_reason, prompt, completion)
}

#[test]
fn tokens_are_counted_exactly_in_the_response_and_in_the_ledger() {
    let _alone = run_alone();
    let service = EmbeddedService::shared();
    let key = service.key();
    for max_tokens in [1, 5, 3] {
        let figures = finish_and_tokens(service, &key, &Conversation::user(QUESTION).max_tokens(max_tokens));
        assert_eq!(figures, ("length".into(), QUESTION_TOKENS, max_tokens.into()));
    }
    let (finish_reason, _, completion) = finish_and_tokens(service, &key, &pattern());
    assert_eq!(finish_reason, "stop");
    assert!((2..512).contains(&completion), "{completion}");
}

#[test]
fn a_completion_makes_sense_and_a_greedy_one_is_always_the_same() {
    let _alone = run_alone();
    let service = EmbeddedService::shared();
    let key = service.key();
    let responses = [0, 1, 2].map(|_| service.complete(&key, &pattern()).completion().content);
    assert!(responses[0].contains("Yes"), "{responses:?}");
    assert!(responses.iter().all(|response| *response == responses[0]), "{responses:?}");
}

#[test]
fn completions_at_a_high_temperature_differ() {
    let _alone = run_alone();
    let service = EmbeddedService::shared();
    let key = service.key();
    let story = Conversation::user("Write a story.").temperature(1.5).max_tokens(16);
    let mut stories = [0, 1, 2, 3].map(|_| service.complete(&key, &story).completion().content);
    stories.sort_unstable();
    assert!(stories.windows(2).all(|pair| pair[0] != pair[1]), "{stories:?}");
}

#[test]
fn sixty_four_concurrent_requests_are_all_answered() {
    let _alone = run_alone();
    let service = EmbeddedBuilder::new().start();
    let keys = [0, 1, 2, 3].map(|_| service.key());
    let chats: Vec<_> = (0..64)
        .map(|at| {
            let max_tokens = 1 + (at as u32 * 7) % 12;
            let chat = Conversation::user(format!("Number {at}: {}", words(at, at))).max_tokens(max_tokens);
            (at, max_tokens, chat.temperature([0.0, 0.5, 1.0, 2.0][at % 4]))
        })
        .collect();
    let responses = all_at_once(&chats, |(at, _, chat)| service.complete(&keys[at / 16], chat).completion());
    for ((_, max_tokens, _), response) in chats.iter().zip(&responses) {
        let [prompt, completion, total] = response.tokens.map(|figure| figure.expect("a measured figure"));
        assert!(prompt > 30 && (1..=u64::from(*max_tokens)).contains(&completion), "{response:?}");
        assert_eq!(total, prompt + completion);
        let cut_off = completion == u64::from(*max_tokens);
        assert!(cut_off || response.finish_reason == "stop", "{response:?}");
        assert!(!response.content.contains('\u{FFFD}'), "{response:?}");
    }
    service.wait_for_status("an idle engine", |status| status.is_idle());
}

#[test]
fn a_prompt_beyond_the_context_is_refused_with_both_counts() {
    let _alone = run_alone();
    let service = EmbeddedService::shared();
    let key = service.key();
    for text in ["貓", "🦩"] {
        let long = text.repeat(8_000);
        let chat = Conversation::user(&*long).then_assistant(&*long).then_user(&*long).then_user(&*long);
        let response = service.complete(&key, &chat);
        let message = response.expect_error("invalid_request");
        let counts: Vec<u64> =
            message.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect();
        let [prompt, context] = counts[..] else { panic!("two counts: {message}") };
        assert_eq!(context, 8192, "{message}");
        assert!(prompt > 8192, "{message}");
        let row = service.row(&response.error().request_id);
        assert_eq!((&row["status"], &row["prompt_tokens"]), (&400.into(), &Value::Null), "{row}");
    }
}

#[test]
fn a_completion_ends_where_the_context_does() {
    let _alone = run_alone();
    let service = EmbeddedBuilder::new().set("engine.cells", "512").start();
    let key = service.key();
    let chat = |count| Conversation::user(format!("Go on for ever: {}", words(count, 1))).max_tokens(512);
    let (finish_reason, prompt, completion) = finish_and_tokens(&service, &key, &chat(440));
    assert!((440..512).contains(&prompt), "{prompt}");
    assert_eq!((finish_reason.as_str(), prompt + completion), ("length", 512));
    let message = service.complete(&key, &chat(600)).expect_error("invalid_request");
    assert!(message.contains("512 tokens"), "{message}");
}
