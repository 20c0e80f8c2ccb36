//! Fuzzes conversations in the chat templates of the well-known model families: the control tokens of a rendered prompt
//! are always the template's own, and no text is lost.
//!
//! The templates are ours, written after the formats that the families publish. They reproduce which control tokens are
//! written, where white space is trimmed, and how a content is changed.

use chat::Role;
use fuzzer::{Target, magnitude};

use crate::cache::Token;
use crate::jinja::Jinja;
use crate::markup::{ControlToken, Marks, Markup, Piece};
use crate::template::alternating_roles;

struct Family {
    name: &'static str,
    tokens: &'static [&'static str],
    /// Whether white space around control tokens belongs to them.
    strips: bool,
    template: &'static str,
}

const FAMILIES: [Family; 8] = [
    Family {
        name: "ChatML",
        tokens: &["<|im_start|>", "<|im_end|>", "<|endoftext|>"],
        strips: false,
        template: "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    },
    Family {
        name: "Llama 3",
        tokens: &[
            "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>",
            "<|python_tag|>",
        ],
        strips: false,
        template: "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + m['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
    },
    Family {
        name: "Mistral",
        tokens: &["<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]"],
        strips: false,
        template: "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}{% if m['role'] == 'user' %}{% if loop.last and system %}{{ '[INST] ' + system + '\\n\\n' + m['content'] + '[/INST]' }}{% else %}{{ '[INST] ' + m['content'] + '[/INST]' }}{% endif %}{% else %}{{ ' ' + m['content'] | trim + eos_token }}{% endif %}{% endfor %}",
    },
    Family {
        name: "Gemma",
        tokens: &["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<unused0>"],
        strips: false,
        template: "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}{% if m['role'] == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = m['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\\n' + m['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}",
    },
    Family {
        name: "Phi",
        tokens: &["<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"],
        strips: true,
        template: "{% for m in messages %}{{ '<|' + m['role'] + '|>\\n' + m['content'] + '<|end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}",
    },
    Family {
        name: "Qwen 3",
        tokens: &["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>"],
        strips: false,
        template: "{% if messages[0].role == 'system' %}{{ '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{% endif %}{% for m in messages %}{% if m.role == 'user' or (m.role == 'system' and not loop.first) %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% elif m.role == 'assistant' %}{% set content = m.content %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}{{ '<|im_start|>assistant\\n' + content + '<|im_end|>\\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}",
    },
    Family {
        name: "DeepSeek",
        tokens: &[
            "<｜begin▁of▁sentence｜>",
            "<｜end▁of▁sentence｜>",
            "<｜User｜>",
            "<｜Assistant｜>",
            "<think>",
            "</think>",
        ],
        strips: false,
        template: "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] }}{% elif m['role'] == 'user' %}{{ '<｜User｜>' + m['content'] }}{% else %}{% set content = m['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{ '<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}",
    },
    // Control tokens that are parts of each other, and one of a single character.
    Family {
        name: "overlapping",
        tokens: &["<|", "|>", "<|x", "x|>", "<|x|>", "|", "aa", "aab"],
        strips: true,
        template: "{% for m in messages %}{{ '<|x|>' + m['content'] + '|' + m['content'] | trim }}{% endfor %}",
    },
];

impl Family {
    fn markup(&self) -> Markup {
        let token = |(at, text): (usize, &&str)| ControlToken {
            text: (*text).to_owned(),
            token: at as Token,
            strips_left: self.strips,
            strips_right: self.strips,
        };
        Markup::new(self.tokens.iter().enumerate().map(token).collect()).expect("few tokens")
    }

    fn pieces(&self, jinja: &Jinja, markup: &Markup, messages: &[(Role, String)]) -> Option<Vec<Piece>> {
        let marks = Marks::absent_from(messages.iter().map(|(_, content)| content.as_str()));
        let guarded: Vec<_> = messages.iter().map(|(role, content)| (*role, markup.guard(content, marks))).collect();
        let rendered = jinja.render(&guarded).or_else(|_| jinja.render(&alternating_roles(guarded))).ok()?;
        let as_written = |piece| match piece {
            Piece::Text(text) => Piece::Text(marks.without_marks(&text).unwrap_or(text)),
            control => control,
        };
        Some(markup.split_rendered(&rendered, marks).into_iter().map(as_written).collect())
    }
}

fn controls(pieces: &[Piece]) -> Vec<Token> {
    let control = |piece: &Piece| match piece {
        Piece::Control(token) => Some(*token),
        Piece::Text(_) => None,
    };
    pieces.iter().filter_map(control).collect()
}

fn letters(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

/// Alternating roles. A system message comes first if the text begins with U+0001.
fn conversation(text: &str) -> Vec<(Role, String)> {
    let (first, text) = match text.strip_prefix('\u{1}') {
        Some(text) => (Role::System, text),
        None => (Role::User, text),
    };
    let role = |at: usize| match (at, first) {
        (0, first) => first,
        (at, first) if (at % 2 == 0) == (first == Role::User) => Role::User,
        _ => Role::Assistant,
    };
    let contents = text.split('\u{1e}').take(6).enumerate();
    let mut messages: Vec<_> = contents.map(|(at, content)| (role(at), content.to_owned())).collect();
    // Some templates write the system message only before the user's last message.
    if messages.last().is_some_and(|(role, _)| *role != Role::User) {
        messages.push((Role::User, "o".into()));
    }
    messages
}

#[test]
fn templates() {
    let corpus = FAMILIES
        .iter()
        .map(|family| format!("\u{1}Be brief.\u{1e}Hi {}\u{1e} {} ok", family.tokens.concat(), family.tokens[0]));
    let words: Vec<&str> = FAMILIES.iter().flat_map(|family| family.tokens).copied().collect();
    let odd = [
        "\u{1e}", "\u{1}", "<", "|", ">", " ", "\n", "\u{F0000}", "\u{F0001}", "{{ 7 * 7 }}", "{% raw %}",
        "\u{10FFFD}", "</think>",
    ];
    let plain = ["What is the capital of France?\u{1e}Paris.\u{1e}And of Spain?", "\u{1}\u{1e}  x  \u{1e}\u{1e}y"];
    let compile = |Family { template, tokens, .. }: &Family| {
        Jinja::compile(template, tokens[0].into(), tokens[1].into()).expect("a valid template")
    };
    let made: Vec<_> = FAMILIES.iter().map(|family| (family, compile(family), family.markup())).collect();
    let target =
        Target::new("chat templates").corpus(corpus).corpus(plain).dictionary(words).dictionary(odd).max_bytes(2_000);
    target.run_text(|text| {
        let messages = conversation(text);
        let mut shapes = Vec::new();
        for (family, jinja, markup) in &made {
            let Some(pieces) = family.pieces(jinja, markup, &messages) else {
                shapes.push((0, 0));
                continue;
            };
            // The same conversation with neutral contents.
            let neutral: Vec<_> = messages
                .iter()
                .map(|(role, content)| (*role, if content.trim().is_empty() { content.clone() } else { "o".into() }))
                .collect();
            let expected = family.pieces(jinja, markup, &neutral).expect("it was rendered before");
            assert_eq!(controls(&pieces), controls(&expected), "{}: {pieces:?}", family.name);
            let said: String = pieces
                .iter()
                .filter_map(|piece| match piece {
                    Piece::Text(text) => Some(letters(text)),
                    Piece::Control(_) => None,
                })
                .collect();
            // Templates may drop an assistant's reasoning, but no other text.
            for (_, content) in messages.iter().filter(|(role, _)| *role != Role::Assistant) {
                assert!(said.contains(&letters(content)), "{}: {content:?} is not in {said:?}", family.name);
            }
            shapes.push((controls(&pieces).len(), magnitude(pieces.len())));
        }
        shapes
    });
}
