//! What the model produced: the text, why it ended, and the token counts as the runtime measured them.

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    pub text: String,
    pub finish_reason: FinishReason,
    pub usage: TokenUsage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    Stop,
    /// `max_tokens` or the context ended it.
    Length,
}

impl FinishReason {
    pub const ALL: [Self; 2] = [Self::Stop, Self::Length];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// Token counts as the runtime measured them. What it did not report is `None`: never estimated, never summed up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenUsage {
    pub prompt: Option<u32>,
    pub completion: Option<u32>,
    pub total: Option<u32>,
}
