//! What a model writes for itself before it answers: it is not a part of the answer.

/// How a model sets its thoughts apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reasoning {
    /// It has none.
    No,
    /// In `<think>` tags, at the beginning.
    Tags {
        /// The prompt ends with the opening one.
        is_open: bool,
    },
    /// In channels beside the one named `final`, as gpt-oss has them. Their control tokens are needed as text.
    Channels,
}

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const FINAL: &str = "final";
/// What ends a message, or begins the next one.
const ENDS: [&str; 4] = ["<|end|>", "<|return|>", "<|start|>", CHANNEL];

impl Reasoning {
    /// By a template, and by what it writes for a short conversation.
    pub(crate) fn of(template: &str, prompt: &str) -> Self {
        if template.contains(CHANNEL) {
            return Self::Channels;
        }
        let opened = prompt.rfind(OPEN);
        match template.contains(CLOSE) || opened.is_some() {
            true => Self::Tags { is_open: opened.is_some_and(|at| !prompt[at..].contains(CLOSE)) },
            false => Self::No,
        }
    }

    /// What of a completion is the answer. Empty if the model had no time to begin with it.
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
                // Without a channel, all of it is said.
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
    fn thoughts_are_no_part_of_the_answer() {
        let tags =
            Reasoning::of("{% if enable_thinking %}...</think>", "<|im_start|>assistant\n<think>\n\n</think>\n\n");
        assert_eq!(tags, Reasoning::Tags { is_open: false });
        let open = Reasoning::of("...<think>", "<|Assistant|><think>\n");
        assert_eq!(open, Reasoning::Tags { is_open: true });
        let channels = Reasoning::of("<|start|>assistant<|channel|>", "<|start|>assistant");
        let none = Reasoning::of("<|im_start|>", "<|im_start|>assistant\n");
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
