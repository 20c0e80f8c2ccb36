//! What a runtime answers: the text, why it ended, and the token figures as measured.

/// One generated assistant message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// The generated text.
    pub text: String,
    /// Why the text ended.
    pub finish_reason: FinishReason,
    /// The runtime's own token figures.
    pub usage: TokenUsage,
}

/// Why a completion ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it.
    Stop,
    /// `max_tokens` or the context ended it.
    Length,
}

impl FinishReason {
    /// Every reason.
    pub const ALL: [Self; 2] = [Self::Stop, Self::Length];

    /// The word for it in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// Token figures as the runtime measured them. A figure it did not report is `None`: never estimated, never summed up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenUsage {
    /// Tokens of the prompt.
    pub prompt: Option<u32>,
    /// Tokens of the completion.
    pub completion: Option<u32>,
    /// Both, as the runtime says.
    pub total: Option<u32>,
}
