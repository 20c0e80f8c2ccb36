//! What went before: the user turn before this one, the answer to it, and how a short turn leans on them.

use chat::{Message, Role};

use super::collected::Features;
use super::turn::{Turn, size};
use crate::scorer::lexicon::{Concept, Lexicon};
use crate::scorer::text::Kind;

/// Words of earlier turns that are looked at.
const HEAD: usize = 40;

/// What went before.
pub(super) struct Earlier<'a> {
    pub(super) before: &'a [Message],
    pub(super) user: Option<Turn>,
    pub(super) assistant: Option<Turn>,
}

impl<'a> Earlier<'a> {
    pub(super) fn read(before: &'a [Message], lexicon: &Lexicon) -> Self {
        let last = |role: Role| {
            let message = before.iter().rfind(|message| message.role() == role)?;
            Some(Turn::read(&super::both_ends(message.content(), super::LONGEST_EARLIER), lexicon))
        };
        Self { before, user: last(Role::User), assistant: last(Role::Assistant) }
    }

    /// Whether this turn is not the first.
    pub(super) fn context(&self) -> &'static str {
        if self.user.is_some() || self.assistant.is_some() { "in" } else { "out" }
    }

    /// How long the longest thing is that was said by a user, or in the system message. Bytes stand for words: it is the order of
    /// magnitude that counts.
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
    user.ngrams("p", user.head(HEAD), 2, features);
    let space = match turn.words {
        0..4 => "p tiny",
        4..9 => "p short",
        _ => "p long",
    };
    user.ngrams(space, user.head(HEAD), 2, features);
    if let Some(assistant) = &earlier.assistant {
        assistant.ngrams("a", assistant.head(HEAD), 1, features);
    }
    features.end_group(0.6);
}

/// How many turns there were, how long, and whether any of them looks like something that was supplied.
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

/// What was asked before, and what is asked now.
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

/// What the answer to it was like.
fn answered(turn: &Turn, assistant: &Turn, lexicon: &Lexicon, features: &mut Features) {
    let short = turn.size();
    for concept in assistant.concepts() {
        features.add("said", &[lexicon.name(concept)]);
    }
    features.add("said", &[assistant.size()]);
    features.add("said", &[assistant.names()]);
    if assistant.asks(&(0..assistant.text.tokens.len())) {
        features.add("said", &["asks"]);
        features.add("said", &["asks", short]);
    }
    let numbers = assistant.text.tokens.iter().any(|token| matches!(token.kind, Kind::Number | Kind::Year));
    features.add("said", &[if numbers { "numbers" } else { "no numbers" }, short]);
}
