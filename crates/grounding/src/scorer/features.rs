//! From a conversation to features: what the last user turn says, what it is about, what it looks like, what it was supplied with,
//! and what went before. A feature is a hash of its name; the name itself is only made when somebody wants an explanation.

use chat::{Message, Role};

use super::lexicon::{Concept, Lexicon};
use super::material;
use super::text::{Kind, Text, Token};

/// Words of a long turn that are looked at closely, from either end.
const CLOSE: usize = 48;
/// Words of earlier turns that are looked at.
const EARLIER: usize = 40;

/// Features, collected in groups. Each group weighs the same however many features it has.
#[derive(Debug, Default)]
pub struct Features {
    /// Hash and value.
    pub values: Vec<(u32, f32)>,
    names: Option<Vec<String>>,
    group_start: usize,
}

impl Features {
    /// With the name of each feature beside it.
    pub fn named() -> Self {
        Self { names: Some(Vec::new()), ..Self::default() }
    }

    /// The names, in the order of the values.
    pub fn names(&self) -> &[String] {
        self.names.as_deref().unwrap_or_default()
    }

    fn add(&mut self, space: &str, parts: &[&str]) {
        self.values.push((hash(space, parts), 1.0));
        if let Some(names) = &mut self.names {
            names.push(format!("{space}:{}", parts.join(" ")));
        }
    }

    /// Ends a group: what is in it shares a weight.
    fn end_group(&mut self, weight: f32) {
        let group = &mut self.values[self.group_start..];
        if !group.is_empty() {
            #[expect(clippy::cast_precision_loss, reason = "a few thousand features")]
            let each = weight / (group.len() as f32).sqrt();
            group.iter_mut().for_each(|(_, value)| *value = each);
        }
        self.group_start = self.values.len();
    }
}

/// FNV-1a, finished as by MurmurHash3 so that all bits count.
fn hash(space: &str, parts: &[&str]) -> u32 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut take = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    space.bytes().for_each(&mut take);
    for part in parts {
        take(0);
        part.bytes().for_each(&mut take);
    }
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    (hash >> 32) as u32
}

/// One turn, read.
struct Turn {
    text: Text,
    /// Words joined by single blanks, each sentence's place in it, for the lexicon.
    plain: String,
    sentences: Vec<usize>,
    words: usize,
}

impl Turn {
    fn read(content: &str) -> Self {
        let text = Text::read(content);
        let mut plain = String::with_capacity(text.folded.len() + 8);
        let mut sentences = Vec::with_capacity(text.sentences.len());
        for range in &text.sentences {
            sentences.push(plain.len());
            for token in &text.tokens[range.clone()] {
                if !matches!(token.kind, Kind::Ideograph | Kind::Katakana) {
                    plain.push(' ');
                }
                plain.push_str(if token.kind == Kind::Line { "." } else { text.str(token) });
            }
        }
        let words = text.words().count();
        Self { text, plain, sentences, words }
    }

    /// The concepts it touches, once each, with the sentence in which each first occurs.
    fn concepts(&self, lexicon: &Lexicon) -> Vec<(Concept, usize)> {
        let mut touched = Vec::new();
        lexicon.touched(&self.plain, |concept, at| {
            let sentence = self.sentences.partition_point(|start| *start <= at).saturating_sub(1);
            touched.push((concept, sentence));
        });
        touched.sort_unstable();
        touched.dedup();
        touched
    }
}

/// Every feature of a conversation that is judged by its last user turn; none if no user says anything.
pub(super) fn extract(messages: &[Message], lexicon: &Lexicon, features: &mut Features) {
    let Some(last) = messages.iter().rposition(|message| message.role() == Role::User) else { return };
    let before = &messages[..last];
    let content = messages[last].content();
    let transform = lexicon.find("transform");
    let parts = material::split(content, |before| {
        let mut found = false;
        let plain = Turn::read(before).plain;
        lexicon.touched(&plain, |concept, _| found |= Some(concept) == transform);
        found
    });
    let turn = Turn::read(&parts.ask);
    let whole = Turn::read(content);
    let brought = Turn::read(&parts.material);
    let earlier = Earlier::read(before);
    let context = if before.iter().any(|message| message.role() != Role::System) { "in" } else { "out" };

    let concepts = turn.concepts(lexicon);
    wording(&whole, context, features);
    spelling(&whole, features);
    edges(&whole, context, features);
    shape(&turn, &concepts, lexicon, features);
    topics(&turn, &concepts, context, lexicon, features);
    looks(&turn, messages[last].content(), context, features);
    earlier_turns(&turn, &concepts, &earlier, lexicon, features);
    overlap(&turn, before, context, features);
    supplied(&turn, &brought, &concepts, context, lexicon, features);
}

/// What was brought along, and what is asked about it.
fn supplied(
    turn: &Turn,
    brought: &Turn,
    concepts: &[(Concept, usize)],
    context: &str,
    lexicon: &Lexicon,
    features: &mut Features,
) {
    let amount = size(brought.words);
    if brought.words == 0 {
        features.add("brought", &["nothing"]);
        features.add("brought", &["nothing", context]);
        features.end_group(0.2);
        return;
    }
    features.add("brought", &[amount]);
    features.add("brought", &[amount, size(turn.words)]);
    let mut unique: Vec<Concept> = concepts.iter().map(|(concept, _)| *concept).collect();
    unique.dedup();
    for concept in unique {
        features.add("brought", &["asked", lexicon.name(concept)]);
    }
    features.add("brought", &["asked", if turn.plain.contains(" ?") { "?" } else { "." }]);
    features.end_group(0.8);
    ngrams("for", &turn.text, close(turn).0, 2, features);
    features.end_group(1.0);
    let head = &brought.text.tokens[..brought.text.tokens.len().min(EARLIER)];
    ngrams("m", &brought.text, head, 1, features);
    features.end_group(0.3);
}

/// The tokens that are looked at closely: all, or those at both ends of a long turn.
fn close(turn: &Turn) -> (&[Token], &[Token]) {
    let tokens = &turn.text.tokens;
    match tokens.len() > 2 * CLOSE {
        true => (&tokens[..CLOSE], &tokens[tokens.len() - CLOSE..]),
        false => (tokens, &[]),
    }
}

/// A number is a number, whichever it is.
fn word<'a>(text: &'a Text, token: &Token) -> &'a str {
    match token.kind {
        Kind::Year => "<year>",
        Kind::Number if token.end - token.start > 1 => "<number>",
        Kind::Line => "<line>",
        _ => text.str(token),
    }
}

fn is_cjk(token: &Token) -> bool {
    matches!(token.kind, Kind::Ideograph | Kind::Katakana)
}

fn ngrams(space: &str, text: &Text, tokens: &[Token], longest: usize, features: &mut Features) {
    let mut parts: Vec<&str> = Vec::with_capacity(5);
    for start in 0..tokens.len() {
        // Characters say less than words.
        let longest = if is_cjk(&tokens[start]) { longest + 1 } else { longest };
        parts.clear();
        for token in tokens[start..].iter().take(longest) {
            parts.push(word(text, token));
            features.add(space, &parts);
        }
    }
}

fn wording(turn: &Turn, context: &str, features: &mut Features) {
    let (head, tail) = close(turn);
    for tokens in [head, tail] {
        ngrams("w", &turn.text, tokens, 3, features);
    }
    features.end_group(1.6);
    for tokens in [head, tail] {
        ngrams(context, &turn.text, tokens, 1, features);
    }
    features.end_group(0.5);
}

fn spelling(turn: &Turn, features: &mut Features) {
    let (head, tail) = close(turn);
    let mut padded = String::new();
    for token in head.iter().chain(tail).filter(|token| token.is_word() && !is_cjk(token)) {
        padded.clear();
        padded.push('^');
        padded.push_str(word(&turn.text, token));
        padded.push('$');
        if !padded.is_ascii() {
            continue;
        }
        for size in 3..=5 {
            for start in 0..(padded.len() + 1).saturating_sub(size) {
                features.add("c", &[&padded[start..start + size]]);
            }
        }
    }
    features.end_group(1.0);
}

/// How the turn begins and ends: where requests are.
fn edges(turn: &Turn, context: &str, features: &mut Features) {
    let text = &turn.text;
    let count = text.sentences.len();
    let first = text.sentence(Some(0));
    let last = text.sentence(count.checked_sub(1));
    for (space, tokens) in [("first", first), ("last", last)] {
        ngrams(space, text, &tokens[..tokens.len().min(24)], 2, features);
    }
    features.end_group(1.1);
    let mut parts = vec![context];
    for token in first.iter().take(4) {
        parts.push(word(text, token));
        features.add("begins", &parts);
    }
    let mut parts = vec![context];
    for token in last.iter().rev().take(3) {
        parts.push(word(text, token));
        features.add("ends", &parts);
    }
    for range in &text.sentences {
        let tokens = &text.tokens[range.clone()];
        if tokens.last().is_some_and(|token| text.str(token) == "?") {
            ngrams("asks", text, &tokens[..tokens.len().min(24)], 2, features);
        }
    }
    features.end_group(0.7);
}

/// The frame of a sentence: frequent words as they are, others by what they are about or by what they look like.
fn shape(turn: &Turn, concepts: &[(Concept, usize)], lexicon: &Lexicon, features: &mut Features) {
    let _ = concepts;
    let text = &turn.text;
    let (head, tail) = close(turn);
    let mut single = String::new();
    for tokens in [head, tail] {
        let shapes: Vec<&str> = tokens
            .iter()
            .map(|token| match token.kind {
                Kind::Name => "Name",
                Kind::Acronym => "ACRONYM",
                Kind::Number => "<number>",
                Kind::Year => "<year>",
                Kind::Katakana => "Katakana",
                Kind::Mark | Kind::Line => word(text, token),
                Kind::Ideograph => "",
                Kind::Word => {
                    single.clear();
                    single.push(' ');
                    single.push_str(text.str(token));
                    let mut about = None;
                    lexicon.touched(&single, |concept, _| about = about.or(Some(concept)));
                    match about {
                        Some(concept) => lexicon.name(concept),
                        None if token.end - token.start <= 4 => text.str(token),
                        None => "word",
                    }
                }
            })
            .collect();
        for window in shapes.windows(2).chain(shapes.windows(3)).chain(shapes.windows(4)) {
            if !window.contains(&"") {
                features.add("shape", window);
            }
        }
    }
    features.end_group(0.7);
}

/// What it is about, alone and in pairs.
fn topics(turn: &Turn, concepts: &[(Concept, usize)], context: &str, lexicon: &Lexicon, features: &mut Features) {
    let mut unique: Vec<Concept> = concepts.iter().map(|(concept, _)| *concept).collect();
    unique.dedup();
    let named = has_names(&turn.text);
    let size = size(turn.words);
    for concept in &unique {
        let name = lexicon.name(*concept);
        features.add("about", &[name]);
        features.add("about", &[name, context]);
        features.add("about", &[name, named]);
        features.add("about", &[name, size]);
    }
    let last = turn.text.sentences.len().saturating_sub(1);
    for (concept, sentence) in concepts {
        let name = lexicon.name(*concept);
        if *sentence == 0 {
            features.add("opens", &[name]);
        }
        if *sentence == last && last > 0 {
            features.add("closes", &[name]);
        }
    }
    features.end_group(1.0);
    for (index, one) in unique.iter().enumerate() {
        for other in &unique[index + 1..] {
            features.add("both", &[lexicon.name(*one), lexicon.name(*other)]);
            features.add("both", &[lexicon.name(*one), lexicon.name(*other), named]);
        }
    }
    features.end_group(0.7);
}

fn has_names(text: &Text) -> &'static str {
    let names = text.tokens.iter().filter(|token| matches!(token.kind, Kind::Name | Kind::Acronym)).count();
    match names {
        0 if text.tokens.iter().any(|token| token.kind == Kind::Katakana) => "katakana",
        0 => "no names",
        1 => "a name",
        2..4 => "names",
        _ => "many names",
    }
}

fn size(words: usize) -> &'static str {
    match words {
        0..2 => "one word",
        2..4 => "a few words",
        4..8 => "short",
        8..16 => "medium",
        16..40 => "long",
        40..90 => "very long",
        _ => "huge",
    }
}

/// What it looks like.
fn looks(turn: &Turn, content: &str, context: &str, features: &mut Features) {
    let text = &turn.text;
    let size = size(turn.words);
    let mut look = |name: &str| {
        features.add("looks", &[name]);
        features.add("looks", &[name, context]);
        features.add("looks", &[name, size]);
    };
    look(size);
    look(has_names(text));
    let count =
        |wanted: fn(&str, Kind) -> bool| text.tokens.iter().filter(|token| wanted(text.str(token), token.kind)).count();
    let questions = count(|token, _| token == "?");
    look(if questions > 1 {
        "questions"
    } else if questions == 1 {
        "a question"
    } else {
        "no question"
    });
    let last_is_question =
        text.tokens.iter().rev().find(|token| token.kind != Kind::Line).is_some_and(|token| text.str(token) == "?");
    if last_is_question {
        look("ends as a question");
    }
    let lines = count(|_, kind| kind == Kind::Line);
    look(match lines {
        0 => "one line",
        1..3 => "some lines",
        _ => "many lines",
    });
    if count(|_, kind| kind == Kind::Number) > 2 {
        look("numbers");
    }
    if count(|_, kind| kind == Kind::Number) == 1 {
        look("a number");
    }
    if count(|_, kind| kind == Kind::Year) > 0 {
        look("a year");
    }
    let code = count(|token, kind| {
        kind == Kind::Mark && matches!(token, "{" | "}" | "(" | ")" | "=" | ";" | "<" | ">" | "[" | "]" | "`" | "|")
    });
    if code > 5 {
        look("code or tables");
    }
    if content.contains("```") {
        look("fenced");
    }
    let quotes = count(|token, _| token == "\"");
    if quotes >= 2 {
        look("quotes");
    }
    if count(|token, _| token == ":") > 0 {
        look("a colon");
    }
    if content.contains(": ") && lines == 0 && turn.words > 15 || content.contains(":\n") {
        look("introduces material");
    }
    if count(|token, _| matches!(token, "$" | "€" | "£" | "¥" | "%")) > 0 {
        look("money or percent");
    }
    if !content.chars().any(char::is_uppercase) && content.is_ascii() {
        look("lower case");
    }
    features.end_group(0.6);
}

/// What went before.
struct Earlier {
    user: Option<Turn>,
    assistant: Option<Turn>,
    system: bool,
    turns: usize,
    /// Words of the longest thing that a user or the system message said.
    longest: usize,
    lines: bool,
}

impl Earlier {
    fn read(before: &[Message]) -> Self {
        let last = |role: Role| before.iter().rfind(|message| message.role() == role).map(Message::content);
        let supplied = before.iter().filter(|message| message.role() != Role::Assistant);
        Self {
            user: last(Role::User).map(Turn::read),
            assistant: last(Role::Assistant).map(Turn::read),
            system: before.iter().any(|message| message.role() == Role::System),
            turns: before.iter().filter(|message| message.role() == Role::User).count(),
            longest: supplied.clone().map(|message| message.content().split_whitespace().count()).max().unwrap_or(0),
            lines: supplied.clone().any(|message| message.content().contains('\n')),
        }
    }
}

fn earlier_turns(
    turn: &Turn,
    concepts: &[(Concept, usize)],
    earlier: &Earlier,
    lexicon: &Lexicon,
    features: &mut Features,
) {
    let short = size(turn.words);
    if earlier.system {
        features.add("earlier", &["system"]);
    }
    let Some(user) = &earlier.user else {
        features.end_group(0.5);
        return;
    };
    features.add(
        "earlier",
        &[
            "turns",
            if earlier.turns > 2 {
                "many"
            } else if earlier.turns == 2 {
                "two"
            } else {
                "one"
            },
        ],
    );
    features.add("earlier", &["longest", size(earlier.longest)]);
    features.add("earlier", &["longest", size(earlier.longest), short]);
    if earlier.lines {
        features.add("earlier", &["lines"]);
        features.add("earlier", &["lines", short]);
    }
    let mut before = user.concepts(lexicon);
    before.dedup_by_key(|(concept, _)| *concept);
    let names_before = has_names(&user.text);
    features.add("earlier", &[names_before]);
    features.add("earlier", &[names_before, short]);
    features.end_group(0.4);
    let mut now: Vec<Concept> = concepts.iter().map(|(concept, _)| *concept).collect();
    now.dedup();
    for (concept, _) in &before {
        let name = lexicon.name(*concept);
        features.add("before", &[name]);
        features.add("before", &[name, short]);
        for later in &now {
            features.add("then", &[name, lexicon.name(*later)]);
        }
        if now.is_empty() {
            features.add("then", &[name, "nothing"]);
        }
    }
    if let Some(assistant) = &earlier.assistant {
        let mut said = assistant.concepts(lexicon);
        said.dedup_by_key(|(concept, _)| *concept);
        for (concept, _) in said {
            features.add("said", &[lexicon.name(concept)]);
        }
        features.add("said", &[size(assistant.words)]);
        features.add("said", &[has_names(&assistant.text)]);
        if assistant.text.tokens.last().is_some_and(|token| assistant.text.str(token) == "?") {
            features.add("said", &["asks"]);
            features.add("said", &["asks", short]);
        }
        let numbers = assistant.text.tokens.iter().any(|token| matches!(token.kind, Kind::Number | Kind::Year));
        features.add("said", &[if numbers { "numbers" } else { "no numbers" }, short]);
    }
    features.end_group(0.8);
    let head = &user.text.tokens[..user.text.tokens.len().min(EARLIER)];
    ngrams("p", &user.text, head, 2, features);
    let space = match turn.words {
        0..4 => "p tiny",
        4..9 => "p short",
        _ => "p long",
    };
    ngrams(space, &user.text, head, 2, features);
    if let Some(assistant) = &earlier.assistant {
        let head = &assistant.text.tokens[..assistant.text.tokens.len().min(EARLIER)];
        ngrams("a", &assistant.text, head, 1, features);
    }
    features.end_group(0.6);
}

/// How much of what is asked about was there before.
fn overlap(turn: &Turn, before: &[Message], context: &str, features: &mut Features) {
    if before.is_empty() {
        return;
    }
    let mut earlier = String::new();
    for message in before {
        earlier.push_str(&Text::read(message.content()).folded);
        earlier.push(' ');
    }
    let text = &turn.text;
    let content = |token: &&Token| {
        matches!(token.kind, Kind::Name | Kind::Acronym | Kind::Number | Kind::Year)
            || token.kind == Kind::Word && token.end - token.start > 4
    };
    let (mut known, mut new) = (0_usize, 0_usize);
    let (mut known_names, mut new_names) = (0_usize, 0_usize);
    for token in text.tokens.iter().filter(content) {
        let there = earlier.contains(text.str(token));
        *(if there { &mut known } else { &mut new }) += 1;
        if matches!(token.kind, Kind::Name | Kind::Acronym) {
            *(if there { &mut known_names } else { &mut new_names }) += 1;
        }
    }
    let amount = |count: usize| match count {
        0 => "none",
        1 => "one",
        2..4 => "some",
        _ => "many",
    };
    features.add("overlap", &["known", amount(known), "new", amount(new)]);
    features.add("overlap", &["known", amount(known), context]);
    features.add("overlap", &["new", amount(new), context]);
    features.add("overlap", &["names", amount(known_names), amount(new_names), context]);
    features.end_group(0.7);
}
