//! Shared prefixes are computed once, and completions do not depend on it.
//!
//! Greedy completions are compared exactly. Batches of another shape round differently, which may change a close
//! decision. So no conversation contains one: each continues its own earlier text.

use testbed::{Conversation, Engine, Request, all_at_once};

use crate::{ADRIATICUM, run_alone};

/// The subject of each conversation.
const WORDS: [&str; 8] = ["yes", "no", "hello", "cat", "red", "one", "good", "water"];
/// A lower bound for the system prompt's tokens.
const PREFIX: u64 = 300;

/// The system prompt of all conversations.
fn library() -> Conversation {
    let rule = |number| format!(" Rule {number}: be kind to readers who ask about books, opening hours and fines.");
    let rules: String = (0..18).map(rule).collect();
    Conversation::system(format!("You are the assistant of a small library.{rules}"))
}

/// A short conversation about a word.
fn question(word: &str) -> Conversation {
    let mut chat = library();
    for _ in 0..8 {
        chat = chat.then_user(format!("Say {word}.")).then_assistant(word);
    }
    chat.then_user(format!("Say {word}.")).max_tokens(12)
}

#[test]
fn completions_with_and_without_a_shared_prefix_are_equal() {
    let _alone = run_alone();
    let alone = Engine::start(ADRIATICUM).complete(&question(WORDS[0]));
    assert_eq!(alone.cached_tokens, 0, "nothing is shared yet: {alone:?}");
    assert!(alone.prompt_tokens > PREFIX, "{alone:?}");

    // One after the other: the prefix was computed by a request that has finished.
    let engine = Engine::start(ADRIATICUM);
    let in_turn: Vec<_> = WORDS.iter().rev().map(|word| engine.complete(&question(word))).collect();
    assert!(in_turn[1..].iter().all(|reply| reply.cached_tokens > PREFIX), "{in_turn:?}");
    assert_eq!(in_turn[7].content, alone.content);
    // Again: all tokens but the last are cached.
    let again = engine.complete(&question(WORDS[0]));
    assert_eq!((again.content, again.cached_tokens), (alone.content.clone(), alone.prompt_tokens - 1));
    // While another request that shares it runs, up to its limit of tokens.
    let mut running = engine.connect();
    running.send(Request::chat("any", library().then_endless().body()).bytes());
    engine.wait_for_status("a running request", |status| status.get("running") == 1);
    let meanwhile = engine.complete(&question(WORDS[0]));
    assert!(meanwhile.cached_tokens > PREFIX, "{meanwhile:?}");
    assert_eq!(meanwhile.content, alone.content);
    drop((running, engine));

    // All at the same time: the first computes it for all.
    let engine = Engine::start(ADRIATICUM);
    let together = all_at_once(&WORDS, |word| engine.complete(&question(word)));
    for (reply, in_turn) in together.iter().zip(in_turn.iter().rev()) {
        assert_eq!(reply.content, in_turn.content);
        assert_eq!(
            (&reply.finish_reason, reply.completion_tokens),
            (&in_turn.finish_reason, in_turn.completion_tokens)
        );
    }
    let computing = together.iter().filter(|reply| reply.cached_tokens < PREFIX).count();
    assert_eq!(computing, 1, "the prefix is computed once: {together:?}");
    let status = engine.status();
    assert!(status.get("shared_tokens") > 7 * PREFIX, "{status:?}");
    let sum = |figure: fn(&_) -> u64| together.iter().map(figure).sum::<u64>();
    assert_eq!(status.get("prompt_tokens"), sum(|reply| reply.prompt_tokens));
    assert_eq!(status.get("shared_tokens"), sum(|reply| reply.cached_tokens));
}

#[test]
fn a_conversations_next_turn_finds_its_history() {
    let _alone = run_alone();
    let engine = Engine::start(ADRIATICUM);
    let mut chat = Conversation::user("Tell me about whales.").max_tokens(20);
    let mut history = 0;
    for turn in ["And dolphins?", "And seals?", "Which is the largest?"] {
        let reply = engine.complete(&chat);
        assert!(reply.cached_tokens >= history, "{reply:?} after {history} tokens");
        assert!(reply.prompt_tokens > history, "{reply:?}");
        history = reply.prompt_tokens;
        chat = chat.then_assistant(reply.content).then_user(turn);
    }
}
