//! Features of the previous user turn, the completion in between, and the references of a short turn to them.

use chat::{Message, Role};

use super::feature_set::Features;
use super::turn::{Turn, size};
use crate::scorer::lexicon::{Concept, Lexicon};
use crate::scorer::text::Kind;

const MAX_NGRAM_TOKENS: usize = 40;

pub(super) struct Earlier<'a> {
    pub(super) before: &'a [Message],
    pub(super) user: Option<Turn>,
    pub(super) assistant: Option<Turn>,
}

impl<'a> Earlier<'a> {
    pub(super) fn read(before: &'a [Message], lexicon: &Lexicon) -> Self {
        let last = |role: Role| {
            let message = before.iter().rfind(|message| message.role() == role)?;
            Some(Turn::read(&super::both_ends(message.content(), super::MAX_EARLIER_BYTES), lexicon))
        };
        Self { before, user: last(Role::User), assistant: last(Role::Assistant) }
    }

    /// Whether there are earlier turns: `in` or `out` of a conversation.
    pub(super) fn context(&self) -> &'static str {
        if self.user.is_some() || self.assistant.is_some() { "in" } else { "out" }
    }

    /// The size of the longest user or system message. Estimated from bytes, because only the order of magnitude matters.
    pub(super) fn longest(&self) -> &'static str {
        let supplied = self.before.iter().filter(|message| message.role() != Role::Assistant);
        size(supplied.map(|message| message.content().len()).max().unwrap_or(0) / 6)
    }

    fn has_system(&self) -> bool {
        self.before.iter().any(|message| message.role() == Role::System)
    }
}

pub(super) fn earlier_turns(
    turn: &Turn,
    concepts: &[Concept],
    earlier: &Earlier<'_>,
    lexicon: &Lexicon,
    features: &mut Features,
) {
    if earlier.has_system() {
        features.add("earlier", &["system"]);
    }
    let Some(user) = &earlier.user else {
        features.end_group(0.5);
        return;
    };
    layout(turn, user, earlier, features);
    features.end_group(0.4);
    asked(turn, user, concepts, lexicon, features);
    if let Some(assistant) = &earlier.assistant {
        answered(turn, assistant, lexicon, features);
    }
    features.end_group(0.8);
    user.ngrams("p", user.head(MAX_NGRAM_TOKENS), 2, features);
    let space = match turn.words {
        0..4 => "p tiny",
        4..9 => "p short",
        _ => "p long",
    };
    user.ngrams(space, user.head(MAX_NGRAM_TOKENS), 2, features);
    if let Some(assistant) = &earlier.assistant {
        assistant.ngrams("a", assistant.head(MAX_NGRAM_TOKENS), 1, features);
    }
    features.end_group(0.6);
}

/// The number of turns, their lengths, and whether any looks like material.
fn layout(turn: &Turn, user: &Turn, earlier: &Earlier<'_>, features: &mut Features) {
    let supplied = || earlier.before.iter().filter(|message| message.role() != Role::Assistant).map(Message::content);
    let turns = earlier.before.iter().filter(|message| message.role() == Role::User).count();
    let longest = earlier.longest();
    features.add(
        "earlier",
        &[
            "turns",
            match turns {
                0..2 => "one",
                2 => "two",
                _ => "many",
            },
        ],
    );
    let short = turn.size();
    features.add("earlier", &["longest", longest]);
    features.add("earlier", &["longest", longest, short]);
    if supplied().any(|content| content.contains('\n')) {
        features.add("earlier", &["lines"]);
        features.add("earlier", &["lines", short]);
    }
    features.add("earlier", &[user.names()]);
    features.add("earlier", &[user.names(), short]);
}

/// Concepts of the previous turn, alone and paired with those of this one.
fn asked(turn: &Turn, user: &Turn, concepts: &[Concept], lexicon: &Lexicon, features: &mut Features) {
    for concept in user.concepts() {
        let name = lexicon.name(concept);
        features.add("before", &[name]);
        features.add("before", &[name, turn.size()]);
        for later in concepts {
            features.add("then", &[name, lexicon.name(*later)]);
        }
        if concepts.is_empty() {
            features.add("then", &[name, "nothing"]);
        }
    }
}

/// The completion in between.
fn answered(turn: &Turn, assistant: &Turn, lexicon: &Lexicon, features: &mut Features) {
    let short = turn.size();
    for concept in assistant.concepts() {
        features.add("said", &[lexicon.name(concept)]);
    }
    features.add("said", &[assistant.size()]);
    features.add("said", &[assistant.names()]);
    if assistant.is_question(&(0..assistant.text.tokens.len())) {
        features.add("said", &["asks"]);
        features.add("said", &["asks", short]);
    }
    let numbers = assistant.text.tokens.iter().any(|token| matches!(token.kind, Kind::Number | Kind::Year));
    features.add("said", &[if numbers { "numbers" } else { "no numbers" }, short]);
}
