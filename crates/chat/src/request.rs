//! A chat request and its bounds. Each type checks its own bound when it is made; the limits stand in one place.

use std::fmt;

/// Every bound of a chat request.
pub mod limits {
    use std::ops::RangeInclusive;

    /// Messages per request.
    pub const MESSAGES: RangeInclusive<usize> = 1..=20;
    /// Unicode scalar values in one message's content.
    pub const CONTENT_CHARS: usize = 10_000;
    /// Unicode scalar values in all messages' content together.
    pub const TOTAL_CHARS: usize = 32_000;
    /// Sampling temperature.
    pub const TEMPERATURE: RangeInclusive<f64> = 0.0..=2.0;
    /// Completion tokens that a request may ask for.
    pub const MAX_TOKENS: RangeInclusive<u16> = 1..=512;
}

/// A valid chat request: 1 to 20 messages within their lengths, and how to sample.
#[derive(Clone, PartialEq)]
pub struct ChatRequest {
    messages: Vec<Message>,
    temperature: Temperature,
    max_tokens: MaxTokens,
}

impl ChatRequest {
    /// Puts a request together; fails if there are too few or too many messages, or too much text in all of them.
    pub fn new(messages: Vec<Message>, temperature: Temperature, max_tokens: MaxTokens) -> Result<Self, LimitError> {
        if !limits::MESSAGES.contains(&messages.len()) {
            return Err(LimitError::MessageCount(messages.len()));
        }
        let total = messages.iter().map(|message| message.chars).sum();
        if total > limits::TOTAL_CHARS {
            return Err(LimitError::TotalLength(total));
        }
        Ok(Self { messages, temperature, max_tokens })
    }

    /// A request as a runtime gets it. Whoever sends it has checked what a caller may send, and may have added to it.
    pub fn for_runtime(
        messages: Vec<Message>,
        temperature: Temperature,
        max_tokens: MaxTokens,
    ) -> Result<Self, LimitError> {
        match messages.is_empty() {
            true => Err(LimitError::MessageCount(0)),
            false => Ok(Self { messages, temperature, max_tokens }),
        }
    }

    /// The same request with instructions of ours: below the caller's own if the conversation begins with such, or
    /// else before it.
    #[must_use]
    pub fn with_instructions(&self, text: &str) -> Self {
        let mut messages = self.messages.clone();
        match messages.first_mut() {
            Some(first) if first.role == Role::System => {
                *first = Message::for_runtime(Role::System, format!("{}\n\n{text}", first.content));
            }
            _ => messages.insert(0, Message::for_runtime(Role::System, text.to_owned())),
        }
        Self { messages, ..*self }
    }

    /// The conversation, oldest first; never empty.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The sampling temperature.
    pub fn temperature(&self) -> Temperature {
        self.temperature
    }

    /// How many tokens the completion may have.
    pub fn max_tokens(&self) -> MaxTokens {
        self.max_tokens
    }
}

/// Shows the shape only: message text must not reach a log by accident.
impl fmt::Debug for ChatRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChatRequest({} messages, {:?}, {:?})", self.messages.len(), self.temperature, self.max_tokens)
    }
}

/// One message of a conversation.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    role: Role,
    content: String,
    chars: usize,
}

impl Message {
    /// Fails if the content is longer than a message may be.
    pub fn new(role: Role, content: String) -> Result<Self, LimitError> {
        let chars = content.chars().count();
        if chars > limits::CONTENT_CHARS {
            return Err(LimitError::ContentLength(chars));
        }
        Ok(Self { role, content, chars })
    }

    /// A message as a runtime gets it, of any length.
    pub fn for_runtime(role: Role, content: String) -> Self {
        Self { role, chars: content.chars().count(), content }
    }

    /// Who says it.
    pub fn role(&self) -> Role {
        self.role
    }

    /// What is said.
    pub fn content(&self) -> &str {
        &self.content
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({}, {} characters)", self.role.as_str(), self.chars)
    }
}

/// Who says a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Instructions to the model.
    System,
    /// The person or program that asks.
    User,
    /// The model itself, earlier in the conversation.
    Assistant,
}

impl Role {
    /// Every role, in the order in which the API lists them.
    pub const ALL: [Self; 3] = [Self::System, Self::User, Self::Assistant];

    /// The word for it in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }

    /// The role of that name, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == name)
    }
}

/// A sampling temperature from 0.0 to 2.0; 0.7 unless asked otherwise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Temperature(f64);

impl Temperature {
    /// Fails outside the bounds, and for what is not a number.
    pub fn new(value: f64) -> Result<Self, LimitError> {
        if limits::TEMPERATURE.contains(&value) {
            Ok(Self(value.abs())) // a JSON `-0` is zero
        } else {
            Err(LimitError::Temperature(value))
        }
    }

    /// The number itself.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl Default for Temperature {
    fn default() -> Self {
        Self(0.7)
    }
}

/// How many tokens a completion may have, from 1 to 512; 248 unless asked otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxTokens(u16);

impl MaxTokens {
    /// Fails outside the bounds.
    pub fn new(value: i128) -> Result<Self, LimitError> {
        match u16::try_from(value) {
            Ok(tokens) if limits::MAX_TOKENS.contains(&tokens) => Ok(Self(tokens)),
            _ => Err(LimitError::MaxTokens(value)),
        }
    }

    /// The number itself.
    pub fn get(self) -> u16 {
        self.0
    }
}

impl Default for MaxTokens {
    fn default() -> Self {
        Self(248)
    }
}

/// A bound that was not kept, with what was sent. Reads as the second half of a sentence that names the member.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum LimitError {
    /// Too few or too many messages.
    #[error("must hold {} to {} messages; got {}", limits::MESSAGES.start(), limits::MESSAGES.end(), .0)]
    MessageCount(usize),
    /// One message too long.
    #[error("must have at most {} characters; got {}", limits::CONTENT_CHARS, .0)]
    ContentLength(usize),
    /// All messages together too long.
    #[error("must have at most {} characters of content in all; got {}", limits::TOTAL_CHARS, .0)]
    TotalLength(usize),
    /// Temperature out of range.
    #[error("must be from {:?} to {:?}; got {}", limits::TEMPERATURE.start(), limits::TEMPERATURE.end(), shown(*.0))]
    Temperature(f64),
    /// Maximum of tokens out of range.
    #[error("must be from {} to {}; got {}", limits::MAX_TOKENS.start(), limits::MAX_TOKENS.end(), .0)]
    MaxTokens(i128),
    /// Maximum of tokens so far out of range that it is no integer any more.
    #[error("must be from {} to {}; got {}", limits::MAX_TOKENS.start(), limits::MAX_TOKENS.end(), shown(*.0))]
    MaxTokensOverflow(f64),
}

/// A number as a person would write it: large and small ones with an exponent.
fn shown(number: f64) -> String {
    match number.abs() {
        magnitude if magnitude != 0.0 && !(1e-6..1e15).contains(&magnitude) => format!("{number:e}"),
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn talk(turns: &[(Role, &str)]) -> ChatRequest {
        let messages = turns.iter().map(|(role, text)| Message::new(*role, (*text).into()).unwrap()).collect();
        ChatRequest::new(messages, Temperature::new(0.25).unwrap(), MaxTokens::new(7).unwrap()).unwrap()
    }

    #[test]
    fn our_instructions_stand_below_the_callers_or_before_the_conversation() {
        let both = talk(&[(Role::System, "Be kind."), (Role::User, "Hi")]).with_instructions("Facts.");
        assert_eq!(both, talk(&[(Role::System, "Be kind.\n\nFacts."), (Role::User, "Hi")]));
        let ours = talk(&[(Role::User, "Hi")]).with_instructions("Facts.");
        assert_eq!(ours, talk(&[(Role::System, "Facts."), (Role::User, "Hi")]));
    }

    #[test]
    fn there_is_room_for_instructions_in_the_largest_request() {
        let longest = "x".repeat(limits::CONTENT_CHARS);
        let talk = talk(&[(Role::System, &longest), (Role::User, &longest), (Role::User, &longest)]);
        let instructed = talk.with_instructions("Facts.");
        assert!(instructed.messages()[0].content().ends_with("Facts."));
        let many = vec![(Role::User, "x"); *limits::MESSAGES.end()];
        assert_eq!(self::talk(&many).with_instructions("Facts.").messages().len(), 21);
    }
}
