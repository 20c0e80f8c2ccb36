//! Removes reasoning, which a model writes before its answer, from completions.

/// How a model separates its reasoning from its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reasoning {
    /// It writes no reasoning.
    No,
    /// In `<think>` tags, at the beginning.
    Tags {
        /// Whether the prompt ends with the opening tag.
        is_open: bool,
    },
    /// In channels other than `final`, as in gpt-oss. Their control tokens are needed as text.
    Channels,
}

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const FINAL: &str = "final";
/// Control tokens that end a message or begin the next one.
const ENDS: [&str; 4] = ["<|end|>", "<|return|>", "<|start|>", CHANNEL];

impl Reasoning {
    /// Recognized from a template and the prompt that it renders for a short conversation.
    pub(crate) fn from_template(template: &str, prompt: &str) -> Self {
        if template.contains(CHANNEL) {
            return Self::Channels;
        }
        let opened = prompt.rfind(OPEN);
        match template.contains(CLOSE) || opened.is_some() {
            true => Self::Tags { is_open: opened.is_some_and(|at| !prompt[at..].contains(CLOSE)) },
            false => Self::No,
        }
    }

    /// The answer within a completion. Empty if the completion ended before the answer began.
    pub(crate) fn answer(self, text: String) -> String {
        match self {
            Self::No => text,
            Self::Tags { is_open } => {
                let thought = if is_open { Some(&text[..]) } else { text.trim_start().strip_prefix(OPEN) };
                match thought.map(|thought| thought.split_once(CLOSE)) {
                    None => text,
                    Some(None) => String::new(),
                    Some(Some((_, answer))) => answer.trim_start().to_owned(),
                }
            }
            Self::Channels => {
                let messages = text.split(CHANNEL).filter_map(|message| message.split_once(MESSAGE));
                let answers: String = messages
                    .filter(|(channel, _)| channel.starts_with(FINAL))
                    .map(|(_, said)| before_end(said))
                    .collect();
                // Without a channel, the whole text is the answer.
                if text.contains(CHANNEL) { answers } else { before_end(&text).to_owned() }
            }
        }
    }
}

fn before_end(message: &str) -> &str {
    let end = ENDS.iter().filter_map(|end| message.find(end)).min();
    &message[..end.unwrap_or(message.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasoning_is_not_part_of_the_answer() {
        let tags = Reasoning::from_template(
            "{% if enable_thinking %}...</think>",
            "<|im_start|>assistant\n<think>\n\n</think>\n\n",
        );
        assert_eq!(tags, Reasoning::Tags { is_open: false });
        let open = Reasoning::from_template("...<think>", "<|Assistant|><think>\n");
        assert_eq!(open, Reasoning::Tags { is_open: true });
        let channels = Reasoning::from_template("<|start|>assistant<|channel|>", "<|start|>assistant");
        let none = Reasoning::from_template("<|im_start|>", "<|im_start|>assistant\n");
        for (reasoning, text, answer) in [
            (none, "<think>x</think>y", "<think>x</think>y"),
            (tags, "Yes.", "Yes."),
            (tags, "\n<think>Hm.</think>\n\nYes.", "Yes."),
            (tags, "<think>Hm.", ""),
            (tags, "Write <think>x</think>.", "Write <think>x</think>."),
            (open, "Hm.</think>Yes.", "Yes."),
            (open, "Hm.", ""),
            (
                channels,
                "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
                "Yes.",
            ),
            (channels, "<|channel|>analysis<|message|>Hm.", ""),
            (channels, "<|channel|>final<|message|>Yes.<|return|>", "Yes."),
            (channels, "<|channel|>final <|constrain|>json<|message|>{}", "{}"),
            (channels, "Yes.", "Yes."),
        ] {
            assert_eq!(reasoning.answer(text.into()), answer, "{reasoning:?}: {text}");
        }
    }
}
