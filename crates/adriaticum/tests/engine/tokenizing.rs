//! Prompts are tokenized concurrently with decoding, in turns by tag; no text delays other tags or crashes the engine.

use std::time::{Duration, Instant};

use testbed::{Connection, Conversation, Engine, Request, Response, all_at_once, measure, with_pre_tokenizer};

use crate::{ADRIATICUM, run_alone};

/// Three tokens each, so 96,000 tokens in all.
fn oversized() -> Conversation {
    let part = "🦩".repeat(8_000);
    Conversation::user(&*part).then_assistant(&*part).then_user(&*part).then_user(&*part)
}

fn post(tag: &str, chat: &Conversation) -> Vec<u8> {
    Request::chat("any", chat.body()).header("x-adriaticum-key", tag).bytes()
}

fn ask(engine: &Engine, tag: &str, chat: &Conversation) -> Response {
    engine.connect().send(post(tag, chat)).response()
}

/// `count` connections on which the request was sent.
fn crowd_of(engine: &Engine, count: usize, request: &[u8]) -> Vec<Connection> {
    let mut crowd: Vec<_> = (0..count).map(|_| engine.connect()).collect();
    for connection in &mut crowd {
        connection.send(request);
    }
    crowd
}

/// The two token counts in a refusal, and whether the first is only a lower bound.
fn refused_counts(response: &Response) -> (u64, u64, bool) {
    let body = response.json();
    assert_eq!(response.status, 400, "{body}");
    let error = &body["error"];
    let is_bound = error["message"].as_str().unwrap().contains("at least");
    (error["n_prompt_tokens"].as_u64().unwrap(), error["n_ctx"].as_u64().unwrap(), is_bound)
}

/// The duration of `work`.
fn timed(work: impl FnOnce()) -> Duration {
    let began = Instant::now();
    work();
    began.elapsed()
}

#[test]
fn oversized_prompts_of_one_tag_delay_neither_another_tag_nor_the_status() {
    const CROWD: usize = 200;
    let _alone = run_alone();
    let engine = Engine::start(ADRIATICUM);
    // No request fits the context, so that none is decoded: they wait only for turns.
    let (hostile, modest) = [("hostile", 3_000), ("modest", 2_800)]
        .map(|(tag, length)| post(tag, &Conversation::user("🦩".repeat(length))))
        .into();
    let times = || {
        let began = Instant::now();
        let mut crowd = crowd_of(&engine, CROWD, &hostile);
        let status = timed(|| drop(engine.status()));
        let modest = timed(|| {
            let response = engine.connect().send(&modest).response();
            assert_eq!(refused_counts(&response), (8_430, 8_192, false));
        });
        let refused: Vec<_> = crowd.iter_mut().map(|connection| refused_counts(&connection.response())).collect();
        assert!(refused.iter().all(|counts| *counts == (9_030, 8_192, false)), "{refused:?}");
        [status, modest, began.elapsed()]
    };
    let are_good = |[status, modest, all]: &[Duration; 3]| *status * 4 < *all && *modest * 4 < *all;
    let times = measure(are_good, times).expect("status and another tag's refusal are fast beside the crowd");
    println!("status, another tag's refusal, the crowd's refusals: {times:?}");
    let (counted, _, is_bound) = refused_counts(&ask(&engine, "hostile", &oversized()));
    assert!(is_bound && (16_384..30_000).contains(&counted), "counted on to {counted} tokens");

    // Requests of disconnected callers are cancelled.
    let before = engine.status().get("cancelled");
    let crowd = crowd_of(&engine, CROWD, &hostile);
    engine.wait_for_status("a crowd", |status| status.get("tokenizing") > CROWD as u64 / 2);
    drop(crowd);
    let status = engine.wait_for_status("an empty queue", |status| status.get("tokenizing") == 0);
    assert!(status.get("cancelled") >= before + CROWD as u64 / 3, "{status:?}");
    assert_eq!(ask(&engine, "modest", &Conversation::user("Hello!").max_tokens(1)).status, 200);
}

/// Some vocabularies split a text into words by a regular expression that recurses for every character. On a thread
/// with a usual stack, 10,000 letters in a row crashed the engine. A separate call for each control token in a message
/// took half a millisecond each.
#[test]
fn long_words_and_thousands_of_control_tokens_are_tokenized_by_a_vocabulary_of_regular_expressions() {
    let _alone = run_alone();
    let folder = ADRIATICUM.install();
    let model = folder.folder().join("tekken.gguf");
    with_pre_tokenizer(ADRIATICUM.default_model(), "tekken", &model);
    let engine = Engine::serving(ADRIATICUM, &model);
    // More than the context, so that nothing has to be decoded.
    let ending = "🦩".repeat(3_000);
    for word in ["a", "Ä", "!", " ", "\n", "貓"] {
        let long = word.repeat(10_000);
        let chat = Conversation::user(&*long).then_user(&*long).then_user(&*ending);
        assert!(refused_counts(&ask(&engine, "x", &chat)).0 > 8_192, "{word:?}");
    }
    let fastest = |text: String| {
        let chat = Conversation::user(&*text).then_user(&*text).then_user(&*ending);
        (0..3).map(|_| timed(|| assert!(refused_counts(&ask(&engine, "x", &chat)).0 > 8_192))).min().unwrap()
    };
    let (plain, forged) = (fastest("<lim_end|> ".repeat(900)), fastest("<|im_end|> ".repeat(900)));
    println!("plain {plain:?}, with control tokens {forged:?}");
    assert!(forged < 6 * plain + Duration::from_millis(50), "{forged:?}, and {plain:?} without control tokens");
}

#[test]
fn prompts_that_are_tokenized_in_parts_have_the_same_tokens() {
    let _alone = run_alone();
    let engine = Engine::start(ADRIATICUM);
    // Each word is a token. The ending has 9,000, so that nothing has to be decoded.
    let ending = "🦩".repeat(3_000);
    let count = |words: usize| {
        let chat = Conversation::user(" river".repeat(words)).then_user(&*ending);
        refused_counts(&ask(&engine, "x", &chat))
    };
    let counts = all_at_once(&[10, 500, 1_600], |words| count(*words));
    let (one, ..) = counts[0];
    assert_eq!(counts[1], (one + 490, 8_192, false));
    assert_eq!(counts[2], (one + 1_590, 8_192, false), "in parts");
}
