//! Turns a conversation into a prompt's tokens with the model's own chat template.

use std::collections::VecDeque;
use std::sync::Arc;

use chat::{ChatRequest, Role};
use minijinja::Error;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::cache::Token;
use crate::jinja::Jinja;
use crate::markup::{Marks, Markup, Piece};
use crate::model::{Model, ModelError};
use crate::reasoning::Reasoning;
use crate::text::cut;

pub(crate) struct ChatTemplate {
    model: Arc<Model>,
    jinja: Jinja,
    markup: Markup,
    /// In bytes, if there is such a bound.
    longest_token: Option<usize>,
    tokenizes_words: bool,
    /// The token that a prompt must begin with, if any.
    first_token: Option<Token>,
    /// Roles whose end is marked by text alone, so that a message can continue in another role's name.
    pub(crate) unmarked_roles: Vec<Role>,
    pub(crate) reasoning: Reasoning,
}

/// Longer texts are tokenized in parts, because some vocabularies split a text into words by a regular expression that
/// recurses for every character of a word.
const MAX_TEXT_BYTES: usize = 4096;
/// The approximate cost of a turn, in bytes of text: a few milliseconds.
const TURN_COST: usize = 4096;
/// The fixed cost of a call, in bytes of text: regular expressions are compiled for each call.
const COST_PER_CALL: usize = 256;

/// A rendered prompt that is tokenized in part.
pub(crate) struct UnfinishedPrompt {
    tokens: Vec<Token>,
    /// The pieces that are not tokenized yet.
    pieces: VecDeque<Piece>,
    marks: Marks,
}

impl UnfinishedPrompt {
    /// The number of tokens so far.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens.len()
    }

    /// The whole prompt, if it is finished.
    pub(crate) fn finish(self) -> Result<Vec<Token>, Self> {
        if self.pieces.is_empty() { Ok(self.tokens) } else { Err(self) }
    }
}

/// The template rejected the conversation. Holds the template's message.
#[derive(Debug, thiserror::Error)]
#[error("the model's chat template rejects this conversation: {0}")]
pub(crate) struct TemplateError(String);

impl ChatTemplate {
    /// Compiles the model's template, and renders short conversations to learn how it marks roles and reasoning.
    pub(crate) fn new(model: Arc<Model>) -> Result<Self, ModelError> {
        let source = model.template()?;
        let bad = |reason: String| ModelError::BadTemplate(model.file.clone(), reason);
        let markup = Markup::new(model.control_tokens(&source)).map_err(|error| bad(error.to_string()))?;
        let (begin, end) = model.begin_and_end();
        let jinja = Jinja::compile(&source, begin, end).map_err(|error| bad(error.to_string()))?;
        let mut template = Self {
            longest_token: model.longest_token(),
            tokenizes_words: model.tokenizes_words(),
            first_token: model.first_token(),
            model: model.clone(),
            jinja,
            markup,
            unmarked_roles: Vec::new(),
            reasoning: Reasoning::No,
        };
        let said = |role, content: &str| (role, content.to_owned());
        let turns = ["first7", "second7", "third7", "last7"];
        let roles = [Role::System, Role::User, Role::Assistant, Role::User];
        let messages: Vec<_> = roles.into_iter().zip(turns).map(|(role, content)| said(role, content)).collect();
        let rendered = with_memory_bound(|| {
            let hello = template.jinja.render(&[said(Role::User, "Hello!")])?;
            Ok((hello, template.render_or_rewrite(messages)?))
        });
        let (hello, rendered) = rendered.map_err(|error: Error| bad(error.to_string()))?;
        template.reasoning = Reasoning::from_template(&source, &hello);
        let unmarked = template.markup.unmarked_ends(&rendered, &turns);
        template.unmarked_roles = unmarked.into_iter().map(|at| roles[at]).collect();
        Ok(template)
    }

    /// A lower bound of a conversation's tokens, by its size alone.
    pub(crate) fn least_tokens(&self, request: &ChatRequest) -> usize {
        let bytes: usize = request.messages().iter().map(|message| message.content().len()).sum();
        self.longest_token.map_or(0, |longest| bytes / longest)
    }

    /// Renders a conversation up to where the completion begins. The result is tokenized in turns.
    pub(crate) fn prompt(&self, request: &ChatRequest) -> Result<UnfinishedPrompt, TemplateError> {
        let messages = request.messages();
        let marks = Marks::absent_from(messages.iter().map(|message| message.content()));
        let guarded: Vec<_> =
            messages.iter().map(|message| (message.role(), self.markup.guard(message.content(), marks))).collect();
        let rendered = self.render_or_rewrite(guarded);
        let rendered =
            rendered.map_err(|refusal| TemplateError(refusal.detail().unwrap_or("it cannot be rendered").into()))?;
        let mut pieces = VecDeque::new();
        for piece in self.markup.split_rendered(&rendered, marks) {
            match piece {
                Piece::Text(text) if self.tokenizes_words => {
                    pieces.extend(cut(&text, MAX_TEXT_BYTES).map(|part| Piece::Text(part.to_owned())));
                }
                piece => pieces.push_back(piece),
            }
        }
        Ok(UnfinishedPrompt { tokens: Vec::new(), pieces, marks })
    }

    /// The cost of rendering a conversation, in bytes of text that are tokenized in the same time.
    pub(crate) fn rendering_cost(request: &ChatRequest) -> usize {
        let bytes: usize = request.messages().iter().map(|message| message.content().len()).sum();
        COST_PER_CALL + bytes / 16
    }

    /// Tokenizes the next pieces of a prompt, about one turn's worth. Returns their cost.
    pub(crate) fn tokenize_turn(&self, prompt: &mut UnfinishedPrompt) -> usize {
        let mut cost = 0;
        while cost < TURN_COST
            && let Some(piece) = prompt.pieces.pop_front()
        {
            match piece {
                Piece::Control(token) => prompt.tokens.push(token),
                Piece::Text(text) => {
                    let calls = self.tokenize_text(&text, prompt.marks, &mut prompt.tokens);
                    cost += text.len() + calls * COST_PER_CALL;
                }
            }
        }
        if prompt.pieces.is_empty()
            && let Some(first) = self.first_token.filter(|first| prompt.tokens.first() != Some(first))
        {
            prompt.tokens.insert(0, first);
        }
        cost
    }

    /// Tokenizes a text. Returns the number of calls that it took, each of which has a fixed cost.
    fn tokenize_text(&self, text: &str, marks: Marks, tokens: &mut Vec<Token>) -> usize {
        let Some(written) = marks.without_marks(text) else {
            tokens.extend(self.model.tokenize(text));
            return 1;
        };
        // Hardly any tokenizer turns a text that spells out a control token into that token. Only for such a tokenizer, the
        // text is split within each control token: thousands of calls take far longer than one.
        let before = tokens.len();
        tokens.extend(self.model.tokenize(&written));
        if !tokens[before..].iter().any(|token| self.markup.is_control(*token)) {
            return 1;
        }
        tokens.truncate(before);
        marks.split(text).map(|part| tokens.extend(self.model.tokenize(part))).count() + 1
    }

    /// Some templates have no system role, or require alternating roles. For these the conversation is rewritten.
    fn render_or_rewrite(&self, messages: Vec<(Role, String)>) -> Result<String, Error> {
        let rendered = self.jinja.render(&messages);
        rendered.or_else(|refusal| self.jinja.render(&alternating_roles(messages)).map_err(|_| refusal))
    }
}

/// A template can double a text with each of its steps. If the first renderings take more than this, only this process
/// ends, and the supervisor attributes the failure to the model.
const TRIAL_MEMORY: u64 = 256 << 20;

fn with_memory_bound<T>(work: impl FnOnce() -> T) -> T {
    let before = getrlimit(Resource::Data);
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|pages| pages.split(' ').nth(5)?.parse::<u64>().ok()); // heap and stacks
    let bound = pages.map(|pages| pages * rustix::param::page_size() as u64 + TRIAL_MEMORY);
    let bound = bound.filter(|bound| before.current.is_none_or(|current| *bound < current));
    let is_bounded = bound.is_some() && setrlimit(Resource::Data, Rlimit { current: bound, ..before }).is_ok();
    let result = work();
    if is_bounded {
        let _ = setrlimit(Resource::Data, before); // cannot fail: it is the former limit
    }
    result
}

/// The same conversation with system messages turned into user messages and consecutive messages of one role merged.
pub(crate) fn alternating_roles(messages: Vec<(Role, String)>) -> Vec<(Role, String)> {
    let mut turns: Vec<(Role, String)> = Vec::new();
    for (role, content) in messages {
        let role = if role == Role::System { Role::User } else { role };
        match turns.last_mut() {
            Some((last, text)) if *last == role => {
                text.push_str("\n\n");
                text.push_str(&content);
            }
            _ => turns.push((role, content)),
        }
    }
    turns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_messages_become_user_messages_and_roles_alternate() {
        let said = |role, text: &str| (role, text.to_owned());
        let turns = alternating_roles(vec![
            said(Role::System, "s"),
            said(Role::User, "u"),
            said(Role::User, "v"),
            said(Role::Assistant, "a"),
        ]);
        assert_eq!(turns, [said(Role::User, "s\n\nu\n\nv"), said(Role::Assistant, "a")]);
    }
}
