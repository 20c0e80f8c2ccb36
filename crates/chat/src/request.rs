//! A chat request and its limits. The limits are in `limits`; each type's constructor checks its own.

use std::fmt;

pub mod limits {
    use std::ops::RangeInclusive;

    pub const MESSAGES: RangeInclusive<usize> = 1..=20;
    /// Unicode scalar values of one message's content.
    pub const CONTENT_CHARS: usize = 10_000;
    /// Unicode scalar values of all contents together.
    pub const TOTAL_CHARS: usize = 32_000;
    pub const TEMPERATURE: RangeInclusive<f64> = 0.0..=2.0;
    /// Completion tokens.
    pub const MAX_TOKENS: RangeInclusive<u16> = 1..=512;
}

/// Within all limits, unless created for a runtime.
#[derive(Clone, PartialEq)]
pub struct ChatRequest {
    messages: Vec<Message>,
    temperature: Temperature,
    max_tokens: MaxTokens,
}

impl ChatRequest {
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

    /// A request as a runtime receives it. Its sender has checked the caller's limits and may have extended the messages.
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

    /// Adds instructions: at the end of the caller's system message if the conversation begins with one, else before it.
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

    /// The same request with other contents, for a runtime.
    #[must_use]
    pub fn map_contents(&self, change: impl Fn(&str) -> String) -> Self {
        self.map_messages(|message| Message::for_runtime(message.role, change(&message.content)))
    }

    /// The same request with other messages, for a runtime.
    #[must_use]
    pub fn map_messages(&self, change: impl Fn(&Message) -> Message) -> Self {
        Self { messages: self.messages.iter().map(change).collect(), ..*self }
    }

    /// Oldest first; never empty.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    pub fn temperature(&self) -> Temperature {
        self.temperature
    }

    pub fn max_tokens(&self) -> MaxTokens {
        self.max_tokens
    }
}

/// Without message text, so that it cannot appear in a log by accident.
impl fmt::Debug for ChatRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChatRequest({} messages, {:?}, {:?})", self.messages.len(), self.temperature, self.max_tokens)
    }
}

#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    role: Role,
    content: String,
    chars: usize,
}

impl Message {
    pub fn new(role: Role, content: String) -> Result<Self, LimitError> {
        let chars = content.chars().count();
        if chars > limits::CONTENT_CHARS {
            return Err(LimitError::ContentLength(chars));
        }
        Ok(Self { role, content, chars })
    }

    /// A message of any length.
    pub fn for_runtime(role: Role, content: String) -> Self {
        Self { role, chars: content.chars().count(), content }
    }

    pub fn role(&self) -> Role {
        self.role
    }

    pub fn content(&self) -> &str {
        &self.content
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({}, {} characters)", self.role.as_str(), self.chars)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    System,
    User,
    Assistant,
}

impl Role {
    /// All roles, in the API's order.
    pub const ALL: [Self; 3] = [Self::System, Self::User, Self::Assistant];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == name)
    }
}

/// Sampling temperature; 0.7 by default.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Temperature(f64);

impl Temperature {
    /// NaN is out of bounds.
    pub fn new(value: f64) -> Result<Self, LimitError> {
        if limits::TEMPERATURE.contains(&value) {
            Ok(Self(value.abs())) // a JSON `-0` becomes 0
        } else {
            Err(LimitError::Temperature(value))
        }
    }

    pub fn get(self) -> f64 {
        self.0
    }
}

impl Default for Temperature {
    fn default() -> Self {
        Self(0.7)
    }
}

/// The maximum number of tokens of a completion; 248 by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxTokens(u16);

impl MaxTokens {
    pub fn new(value: i128) -> Result<Self, LimitError> {
        match u16::try_from(value) {
            Ok(tokens) if limits::MAX_TOKENS.contains(&tokens) => Ok(Self(tokens)),
            _ => Err(LimitError::MaxTokens(value)),
        }
    }

    pub fn get(self) -> u16 {
        self.0
    }
}

impl Default for MaxTokens {
    fn default() -> Self {
        Self(248)
    }
}

/// An exceeded limit, and the value that was sent. Displays as the second half of a sentence that names the member.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum LimitError {
    #[error("must hold {} to {} messages; got {}", limits::MESSAGES.start(), limits::MESSAGES.end(), .0)]
    MessageCount(usize),
    #[error("must have at most {} characters; got {}", limits::CONTENT_CHARS, .0)]
    ContentLength(usize),
    #[error("must have at most {} characters of content in all; got {}", limits::TOTAL_CHARS, .0)]
    TotalLength(usize),
    #[error("must be from {:?} to {:?}; got {}", limits::TEMPERATURE.start(), limits::TEMPERATURE.end(), format_number(*.0))]
    Temperature(f64),
    #[error("must be from {} to {}; got {}", limits::MAX_TOKENS.start(), limits::MAX_TOKENS.end(), .0)]
    MaxTokens(i128),
    /// An integer too large for any integer type, which is parsed as a float.
    #[error("must be from {} to {}; got {}", limits::MAX_TOKENS.start(), limits::MAX_TOKENS.end(), format_number(*.0))]
    MaxTokensOverflow(f64),
}

/// Very large and very small numbers have an exponent.
fn format_number(number: f64) -> String {
    match number.abs() {
        magnitude if magnitude != 0.0 && !(1e-6..1e15).contains(&magnitude) => format!("{number:e}"),
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation(turns: &[(Role, &str)]) -> ChatRequest {
        let messages = turns.iter().map(|(role, text)| Message::new(*role, (*text).into()).unwrap()).collect();
        ChatRequest::new(messages, Temperature::new(0.25).unwrap(), MaxTokens::new(7).unwrap()).unwrap()
    }

    #[test]
    fn instructions_follow_the_callers_system_message_or_precede_the_conversation() {
        let both = conversation(&[(Role::System, "Be kind."), (Role::User, "Hi")]).with_instructions("Facts.");
        assert_eq!(both, conversation(&[(Role::System, "Be kind.\n\nFacts."), (Role::User, "Hi")]));
        let ours = conversation(&[(Role::User, "Hi")]).with_instructions("Facts.");
        assert_eq!(ours, conversation(&[(Role::System, "Facts."), (Role::User, "Hi")]));
    }

    #[test]
    fn the_largest_request_takes_instructions() {
        let longest = "x".repeat(limits::CONTENT_CHARS);
        let request = conversation(&[(Role::System, &longest), (Role::User, &longest), (Role::User, &longest)]);
        let instructed = request.with_instructions("Facts.");
        assert!(instructed.messages()[0].content().ends_with("Facts."));
        let many = vec![(Role::User, "x"); *limits::MESSAGES.end()];
        assert_eq!(conversation(&many).with_instructions("Facts.").messages().len(), 21);
    }
}
