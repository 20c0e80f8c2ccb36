//! Keeps text in a message from being read as a control token by a remote runtime, as far as a client can.
//!
//! Servers such as vLLM, SGLang, TGI and llama.cpp's render the template first and parse every control token in the
//! result, even those from messages: a message could end its own turn and begin one of the system. Their vocabulary is
//! not known here, so all text in the form of a control token of a well-known model family is broken by an invisible
//! character after its first one. A completion that repeats such text is restored. The embedded engine does not need
//! this: it knows its control tokens, and changes no text.

use std::borrow::Cow;
use std::sync::LazyLock;

use chat::{ChatRequest, Completion};
use regex::Regex;

/// WORD JOINER: invisible, and not a space.
const BREAK: char = '\u{2060}';

/// The forms of control tokens. A name has no spaces, so operators such as `a <| b |> c` do not match.
static CONTROL_TOKEN: LazyLock<Regex> = LazyLock::new(|| {
    const FORMS: [&str; 8] = [
        // <|im_start|>, <|eot_id|>, <|start_header_id|>, <|user|>, <|START_OF_TURN_TOKEN|>, <|turn>
        r"<\|[A-Za-z0-9_/:.▁-]{1,64}\|?>",
        // <turn|>
        r"<[A-Za-z0-9_/:.▁-]{1,64}\|>",
        // <｜User｜>, <｜end▁of▁sentence｜>
        r"<｜[A-Za-z0-9_/:. ▁-]{1,64}｜>",
        // [|user|]
        r"\[\|[A-Za-z0-9_/]{1,64}\|\]",
        // [INST], [/INST], [SYSTEM_PROMPT], [TOOL_CALLS], [gMASK]
        r"\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|MODEL_SETTINGS|ARGS|CALL_ID|PREFIX|MIDDLE|SUFFIX|THINK|gMASK|sMASK)\]",
        r"</?s>",
        // Gemma, Nemotron, Seed
        r"<(?:start_of_turn|end_of_turn|bos|eos|pad|unk|sop|eop|extra_id_[0-9]{1,4}|SPECIAL_[0-9]{1,4}|seed:[a-z_]{1,32})>",
        // MiniMax
        r"\]~!?b[\[\]]|\[e~\[",
    ];
    Regex::new(&FORMS.join("|")).expect("the pattern is well-formed")
});

/// The request with broken control tokens; `None` if it has none.
pub(crate) fn guard(request: &ChatRequest) -> Option<ChatRequest> {
    let is_clean = request.messages().iter().all(|message| matches!(guard_text(message.content()), Cow::Borrowed(_)));
    (!is_clean).then(|| request.map_contents(|content| guard_text(content).into_owned()))
}

/// Removes the break from control tokens that a completion repeats.
pub(crate) fn restore(completion: Completion) -> Completion {
    if !completion.text.contains(BREAK) {
        return completion;
    }
    let mut text = String::with_capacity(completion.text.len());
    for c in completion.text.chars() {
        if c != BREAK || !text.ends_with(['<', '[', ']']) {
            text.push(c);
        }
    }
    Completion { text, ..completion }
}

fn guard_text(text: &str) -> Cow<'_, str> {
    // All forms begin with one of these characters, which few texts have.
    if memchr::memchr3(b'<', b'[', b']', text.as_bytes()).is_none() {
        return Cow::Borrowed(text);
    }
    let mut guarded = String::new();
    let mut copied = 0;
    // All forms begin with an ASCII character. After it, another control token may begin within the match.
    while let Some(found) = CONTROL_TOKEN.find_at(text, copied) {
        guarded.push_str(&text[copied..=found.start()]);
        guarded.push(BREAK);
        copied = found.start() + 1;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    guarded.push_str(&text[copied..]);
    Cow::Owned(guarded)
}

#[cfg(test)]
mod tests {
    use chat::{FinishReason, MaxTokens, Message, Role, Temperature, TokenUsage};
    use proptest::prelude::*;

    use super::*;

    /// Tokens that begin and end turns or texts in the templates of well-known families.
    const KNOWN: [&str; 53] = [
        "<|im_start|>",
        "<|im_end|>",
        "<|im_sep|>",
        "<|im_user|>",
        "<|endoftext|>",
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|python_tag|>",
        "<|header_start|>",
        "<|eot|>",
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
        "<|end|>",
        "<|start|>",
        "<|message|>",
        "<|channel|>",
        "<|return|>",
        "<|call|>",
        "<|START_OF_TURN_TOKEN|>",
        "<|END_OF_TURN_TOKEN|>",
        "<|USER_TOKEN|>",
        "<|start_of_role|>",
        "<|end_of_role|>",
        "<|observation|>",
        "<|turn>",
        "<turn|>",
        "<|channel>",
        "<channel|>",
        "<start_of_turn>",
        "<end_of_turn>",
        "<bos>",
        "<eos>",
        "<s>",
        "</s>",
        "[INST]",
        "[/INST]",
        "[SYSTEM_PROMPT]",
        "[/SYSTEM_PROMPT]",
        "[AVAILABLE_TOOLS]",
        "[TOOL_CALLS]",
        "[gMASK]",
        "<｜begin▁of▁sentence｜>",
        "<｜User｜>",
        "<｜Assistant｜>",
        "[|user|]",
        "[|endofturn|]",
        "<extra_id_1>",
        "]~b]",
    ];

    fn completion(text: String) -> Completion {
        let usage = TokenUsage { prompt: None, completion: None, total: None };
        Completion { text, finish_reason: FinishReason::Stop, usage }
    }

    #[test]
    fn every_known_control_token_is_broken_and_restored() {
        for token in KNOWN {
            let text = format!("x{token}{token}\ny {token}");
            let guarded = guard_text(&text);
            assert!(!guarded.contains(token), "{token}");
            assert_eq!(guarded.replace(BREAK, ""), text);
            assert_eq!(restore(completion(guarded.into_owned())).text, text);
        }
    }

    #[test]
    fn ordinary_text_and_code_are_not_changed() {
        for text in [
            "",
            "a < b || c > d",
            "xs |> List.map f <| g",
            "let f = <|> in a <|b |> c",
            "Vec<Option<u8>> and <div class=\"s\"> and <span>x</span>",
            "array[INDEX] = [1, 2]; [x](https://example.org)",
            "closure(|a| a + 1), [|a, b|] and || {}",
            "a\u{2060}b",
        ] {
            assert!(matches!(guard_text(text), Cow::Borrowed(_)), "{text}");
        }
        let own = "a\u{2060}b".to_owned();
        assert_eq!(restore(completion(own.clone())).text, own);
    }

    #[test]
    fn a_request_without_control_tokens_is_not_changed() {
        let request = |text: &str| {
            let messages = ["Hello.", text].map(|text| Message::new(Role::User, text.into()).unwrap());
            ChatRequest::new(messages.into(), Temperature::default(), MaxTokens::default()).unwrap()
        };
        assert_eq!(guard(&request("a |> b")), None);
        assert_eq!(guard(&request("<|im_end|>")), Some(request("<\u{2060}|im_end|>")));
    }

    proptest! {
        /// In any combination, with any text between them.
        #[test]
        fn no_control_token_is_left(parts in proptest::collection::vec(
            prop_oneof![proptest::sample::select(&KNOWN[..]).prop_map(str::to_owned), "[<|>\\[\\]/s~b]{0,4}", ".{0,3}"],
            0..10,
        )) {
            let text = parts.concat();
            let guarded = guard_text(&text);
            prop_assert!(!CONTROL_TOKEN.is_match(&guarded), "{}", guarded);
            prop_assert!(KNOWN.iter().all(|token| !guarded.contains(token)));
        }
    }
}
