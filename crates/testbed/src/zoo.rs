//! Tiny models of the well-known families: their real architectures and options, with random weights.
//!
//! Their words are nonsense, but the dependencies between tokens are those of the real models. So a cell that is lost,
//! shared wrongly or visible to another request changes an answer.

use crate::gguf::GgufFile;

/// A family's options, and its architecture's name.
#[derive(Debug, Clone, Copy)]
pub struct Species {
    pub name: &'static str,
    pub architecture: &'static str,
    pub layers: u32,
    pub width: u32,
    pub heads: u32,
    pub kv_heads: u32,
    /// Of a head's keys and values.
    pub head_size: u32,
    /// The sliding window of some layers, and the period at which a layer has full attention.
    pub window: Option<(u32, u32)>,
    vocabulary: Vocabulary,
    layout: Layout,
    numbers: &'static [(&'static str, f32)],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Vocabulary {
    /// Bytes and merges; prompts begin without BOS.
    Bpe,
    /// Pieces with scores; prompts begin with `<s>`.
    SentencePiece,
}

/// Which tensors a layer has.
#[derive(Debug, Clone, Copy)]
struct Layout {
    query: Projection,
    norms: HeadNorms,
    /// Norms before attention and before the inner layer: both, one for both, or none.
    norms_before: u32,
    /// Norms after them.
    norms_after: bool,
    /// Layers normalize by mean and deviation and have biases everywhere.
    has_biases: bool,
    inner: Inner,
    /// Whether the output has another matrix than the embedding.
    has_output: bool,
    has_sinks: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Projection {
    Split,
    SplitWithBias,
    Fused,
}

/// Norms of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HeadNorms {
    No,
    OfEachHead,
    OfAllHeads,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inner {
    Gated,
    /// Gate and up are one matrix.
    Fused,
    Plain,
    /// Four experts with biases, of which two compute each token.
    Experts,
}

const INNER_WIDTH: u64 = 96;
const EXPERTS: u64 = 4;
const WORDS: usize = 352;
/// Maximum tokens of a prompt and its completion together.
pub const CONTEXT: u32 = 640;
/// The first token that is neither a byte nor a control token.
const FIRST_WORD: usize = 260;

const LLAMA: Species = Species {
    name: "llama",
    architecture: "llama",
    layers: 3,
    width: 64,
    heads: 4,
    kv_heads: 2,
    head_size: 16,
    window: None,
    vocabulary: Vocabulary::Bpe,
    layout: Layout {
        query: Projection::Split,
        norms: HeadNorms::No,
        norms_before: 2,
        norms_after: false,
        has_biases: false,
        inner: Inner::Gated,
        has_output: false,
        has_sinks: false,
    },
    numbers: &[],
};

const OLMO2: Species = Species {
    name: "olmo2",
    architecture: "olmo2",
    layout: Layout {
        norms: HeadNorms::OfAllHeads,
        norms_before: 0,
        norms_after: true,
        has_output: true,
        ..LLAMA.layout
    },
    ..LLAMA
};

/// One for each family and option.
pub const SPECIES: [Species; 19] = [
    LLAMA,
    Species { name: "llama-spm", vocabulary: Vocabulary::SentencePiece, ..LLAMA },
    // Odd group sizes, and head sizes for which our attention has no kernel.
    Species { name: "llama-9-3", width: 144, heads: 9, kv_heads: 3, ..LLAMA },
    Species { name: "llama-head-40", width: 80, heads: 2, kv_heads: 1, head_size: 40, ..LLAMA },
    Species { name: "llama-head-256", width: 64, heads: 2, kv_heads: 1, head_size: 256, ..LLAMA },
    Species {
        name: "llama-moe",
        numbers: &[("expert_count", 4.0), ("expert_used_count", 2.0)],
        layout: Layout { inner: Inner::Experts, ..LLAMA.layout },
        ..LLAMA
    },
    Species {
        name: "qwen2",
        architecture: "qwen2",
        layout: Layout { query: Projection::SplitWithBias, ..LLAMA.layout },
        ..LLAMA
    },
    Species {
        name: "qwen3",
        architecture: "qwen3",
        head_size: 32,
        layout: Layout { norms: HeadNorms::OfEachHead, ..LLAMA.layout },
        ..LLAMA
    },
    Species {
        name: "gemma2",
        architecture: "gemma2",
        layers: 4,
        head_size: 32,
        window: Some((32, 2)),
        vocabulary: Vocabulary::SentencePiece,
        layout: Layout { norms_after: true, ..LLAMA.layout },
        numbers: &[("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0)],
        ..LLAMA
    },
    Species {
        name: "gemma3",
        architecture: "gemma3",
        layers: 6,
        head_size: 32,
        kv_heads: 1,
        window: Some((24, 3)),
        vocabulary: Vocabulary::SentencePiece,
        layout: Layout { norms: HeadNorms::OfEachHead, norms_after: true, ..LLAMA.layout },
        ..LLAMA
    },
    Species {
        name: "phi3",
        architecture: "phi3",
        vocabulary: Vocabulary::SentencePiece,
        layout: Layout { query: Projection::Fused, inner: Inner::Fused, has_output: true, ..LLAMA.layout },
        ..LLAMA
    },
    Species {
        name: "granite",
        architecture: "granite",
        numbers: &[("logit_scale", 8.0), ("residual_scale", 0.5), ("embedding_scale", 2.0), ("attention.scale", 0.1)],
        ..LLAMA
    },
    OLMO2,
    Species { name: "olmo3", layers: 4, window: Some((40, 4)), ..OLMO2 },
    Species {
        name: "cohere2",
        architecture: "cohere2",
        layers: 4,
        window: Some((32, 4)),
        layout: Layout { norms_before: 1, ..LLAMA.layout },
        numbers: &[("logit_scale", 0.5)],
        ..LLAMA
    },
    Species {
        name: "gpt-oss",
        architecture: "gpt-oss",
        layers: 4,
        window: Some((24, 2)),
        layout: Layout {
            query: Projection::SplitWithBias,
            inner: Inner::Experts,
            has_output: true,
            has_sinks: true,
            ..LLAMA.layout
        },
        numbers: &[("expert_count", 4.0), ("expert_used_count", 2.0), ("expert_feed_forward_length", 96.0)],
        ..LLAMA
    },
    Species {
        name: "exaone4",
        architecture: "exaone4",
        head_size: 16,
        layout: Layout { norms: HeadNorms::OfEachHead, norms_before: 0, norms_after: true, ..LLAMA.layout },
        ..LLAMA
    },
    // Biases by distance instead of rotations.
    Species {
        name: "bloom",
        architecture: "bloom",
        kv_heads: 4,
        layout: Layout { query: Projection::Fused, has_biases: true, inner: Inner::Plain, ..LLAMA.layout },
        ..LLAMA
    },
    // Its attention is not causal.
    DREAM,
];

/// A diffusion model.
const DREAM: Species = Species { name: "dream", architecture: "dream", ..LLAMA };

impl Species {
    /// The one with this name.
    pub fn named(name: &str) -> Self {
        *SPECIES.iter().find(|species| species.name == name).unwrap()
    }

    /// Whether it predicts the next token from those before it.
    pub fn is_causal(&self) -> bool {
        self.architecture != DREAM.architecture
    }

    /// The model. The same seed gives the same weights.
    pub fn model(&self, seed: u64) -> GgufFile {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut file = self.vocabulary.add_to(self.add_settings(GgufFile::for_architecture(self.architecture)));
        for (name, shape) in self.tensors() {
            let count = shape.iter().product::<u64>() as usize;
            let noise = |random: &mut fastrand::Rng| (0..4).map(|_| random.f32() - 0.5).sum::<f32>() * 1.7;
            let numbers: Vec<f32> = match &name[..] {
                // Control tokens and bytes are unlikely, so that most answers are long.
                "token_embd.weight" | "output.weight" => {
                    let row = shape[0] as usize;
                    (0..count).map(|at| if at / row < FIRST_WORD { 0.05 } else { 1.0 } * noise(&mut random)).collect()
                }
                name if name.contains("norm") && name.ends_with("weight") => {
                    (0..count).map(|_| 1.0 + 0.2 * noise(&mut random)).collect()
                }
                name if name.ends_with("bias") || name.contains("sinks") => {
                    (0..count).map(|_| 0.3 * noise(&mut random)).collect()
                }
                name => {
                    // Attention is concentrated on few tokens, so that each of these matters.
                    let scale = if name.contains("attn_q.") || name.contains("attn_k.") { 2.0 } else { 1.0 };
                    let scale = scale / (shape[0] as f32).sqrt();
                    (0..count).map(|_| scale * noise(&mut random)).collect()
                }
            };
            file = file.tensor(&name, &shape, &numbers);
        }
        file
    }

    fn add_settings(&self, file: GgufFile) -> GgufFile {
        let key = |name: &str| format!("{}.{name}", self.architecture);
        let mut file = file
            .number(&key("block_count"), self.layers)
            .number(&key("context_length"), CONTEXT)
            .number(&key("embedding_length"), self.width)
            .number(&key("feed_forward_length"), INNER_WIDTH as u32)
            .number(&key("attention.head_count"), self.heads)
            .number(&key("attention.head_count_kv"), self.kv_heads)
            .number(&key("attention.key_length"), self.head_size)
            .number(&key("attention.value_length"), self.head_size)
            .number(&key("rope.dimension_count"), self.head_size)
            .real(&key("rope.freq_base"), 10_000.0)
            .real(&key("attention.layer_norm_rms_epsilon"), 1e-5)
            .real(&key("attention.layer_norm_epsilon"), 1e-5);
        if let Some((window, pattern)) = self.window {
            file = file
                .number(&key("attention.sliding_window"), window)
                .number(&key("attention.sliding_window_pattern"), pattern);
        }
        for (name, number) in self.numbers {
            file = match name.starts_with("expert_") {
                true => file.number(&key(name), *number as u32),
                false => file.real(&key(name), *number),
            };
        }
        file
    }

    fn tensors(&self) -> Vec<(String, Vec<u64>)> {
        let Layout { query, norms, norms_before, norms_after, has_biases, inner, has_output, has_sinks } = self.layout;
        let (width, words) = (u64::from(self.width), WORDS as u64);
        let (queries, keys) = (u64::from(self.heads * self.head_size), u64::from(self.kv_heads * self.head_size));
        let mut tensors = vec![("token_embd.weight".to_owned(), vec![width, words])];
        let mut add = |name: String, shape: &[u64]| tensors.push((name, shape.to_vec()));
        let norm_kinds: &[&str] = if has_biases { &["weight", "bias"] } else { &["weight"] };
        for kind in norm_kinds {
            add(format!("output_norm.{kind}"), &[width]);
            if has_biases {
                add(format!("token_embd_norm.{kind}"), &[width]);
            }
        }
        if has_output {
            add("output.weight".into(), &[width, words]);
        }
        for layer in 0..self.layers {
            let mut add = |name: &str, shape: &[u64]| add(format!("blk.{layer}.{name}"), shape);
            for kind in norm_kinds {
                if norms_before > 0 {
                    add(&format!("attn_norm.{kind}"), &[width]);
                }
                // gpt-oss has its second norm under another name.
                if norms_before > 1 && !has_sinks {
                    add(&format!("ffn_norm.{kind}"), &[width]);
                }
            }
            if norms_after || has_sinks {
                add("post_attention_norm.weight", &[width]);
            }
            if norms_after {
                add("post_ffw_norm.weight", &[width]);
            }
            match query {
                Projection::Fused => add("attn_qkv.weight", &[width, queries + 2 * keys]),
                Projection::Split | Projection::SplitWithBias => {
                    for (name, size) in [("attn_q", queries), ("attn_k", keys), ("attn_v", keys)] {
                        add(&format!("{name}.weight"), &[width, size]);
                        if query == Projection::SplitWithBias {
                            add(&format!("{name}.bias"), &[size]);
                        }
                    }
                }
            }
            add("attn_output.weight", &[queries, width]);
            match norms {
                HeadNorms::No => {}
                HeadNorms::OfEachHead => {
                    add("attn_q_norm.weight", &[self.head_size.into()]);
                    add("attn_k_norm.weight", &[self.head_size.into()]);
                }
                HeadNorms::OfAllHeads => {
                    add("attn_q_norm.weight", &[queries]);
                    add("attn_k_norm.weight", &[keys]);
                }
            }
            if has_sinks {
                add("attn_sinks.weight", &[self.heads.into()]);
                add("attn_output.bias", &[width]);
            }
            if has_biases {
                add("attn_qkv.bias", &[queries + 2 * keys]);
                add("attn_output.bias", &[width]);
                add("ffn_up.bias", &[INNER_WIDTH]);
                add("ffn_down.bias", &[width]);
            }
            match inner {
                Inner::Gated | Inner::Fused | Inner::Plain => {
                    let up = if inner == Inner::Fused { 2 * INNER_WIDTH } else { INNER_WIDTH };
                    add("ffn_up.weight", &[width, up]);
                    add("ffn_down.weight", &[INNER_WIDTH, width]);
                    if inner == Inner::Gated {
                        add("ffn_gate.weight", &[width, INNER_WIDTH]);
                    }
                }
                Inner::Experts => {
                    add("ffn_gate_inp.weight", &[width, EXPERTS]);
                    for (name, from, to) in [
                        ("ffn_gate_exps", width, INNER_WIDTH),
                        ("ffn_up_exps", width, INNER_WIDTH),
                        ("ffn_down_exps", INNER_WIDTH, width),
                    ] {
                        add(&format!("{name}.weight"), &[from, to, EXPERTS]);
                        if has_sinks {
                            add(&format!("{name}.bias"), &[to, EXPERTS]);
                        }
                    }
                    if has_sinks {
                        add("ffn_gate_inp.bias", &[EXPERTS]);
                    }
                }
            }
        }
        tensors
    }
}

/// Roles are marked by control tokens.
const TEMPLATE: &str = "{% for message in messages %}{{ '<|turn|>' + message['role'] + '\\n' + message['content'] + '<|end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|turn|>assistant\\n' }}{% endif %}";

impl Vocabulary {
    fn add_to(self, file: GgufFile) -> GgufFile {
        const NORMAL: i32 = 1;
        const UNKNOWN: i32 = 2;
        const CONTROL: i32 = 3;
        const BYTE: i32 = 6;
        // Both vocabularies begin with control tokens and bytes.
        let (mut tokens, mut kinds, mut merges) = (Vec::new(), Vec::new(), Vec::new());
        let mut add = |token: String, kind: i32| {
            tokens.push(token);
            kinds.push(kind);
        };
        let begin = if self == Self::SentencePiece { ("<unk>", UNKNOWN) } else { ("<|pad|>", CONTROL) };
        for (token, kind) in [begin, ("<s>", CONTROL), ("<|end|>", CONTROL), ("<|turn|>", CONTROL)] {
            add(token.into(), kind);
        }
        for byte in 0..=u8::MAX {
            match self {
                Self::Bpe => add(printable(byte).into(), NORMAL),
                Self::SentencePiece => add(format!("<0x{byte:02X}>"), BYTE),
            }
        }
        let letters = || ('a'..='z').chain('A'..='Z').chain('0'..='9');
        let space = if self == Self::Bpe { printable(b' ') } else { '▁' };
        for (left, right) in letters().map(|letter| (space, letter)).chain(letters().map(|letter| (letter, 'e'))) {
            if tokens.len() < WORDS {
                let mut add = |token: String, kind: i32| {
                    tokens.push(token);
                    kinds.push(kind);
                };
                add(format!("{left}{right}"), NORMAL);
                merges.push(format!("{left} {right}"));
            }
        }
        assert_eq!(tokens.len(), WORDS);
        let scores: Vec<f32> = (0..WORDS).map(|at| -(at as f32)).collect();
        let file = file
            .texts("tokenizer.ggml.tokens", &tokens)
            .integers("tokenizer.ggml.token_type", &kinds)
            .number("tokenizer.ggml.bos_token_id", 1)
            .number("tokenizer.ggml.eos_token_id", 2)
            .flag("tokenizer.ggml.add_bos_token", self == Self::SentencePiece)
            .text("tokenizer.chat_template", TEMPLATE);
        match self {
            Self::Bpe => file
                .text("tokenizer.ggml.model", "gpt2")
                .text("tokenizer.ggml.pre", "llama-bpe")
                .texts("tokenizer.ggml.merges", &merges),
            Self::SentencePiece => file.text("tokenizer.ggml.model", "llama").reals("tokenizer.ggml.scores", &scores),
        }
    }
}

/// The character that represents a byte in GPT-2's kind of vocabulary: itself if it is visible.
fn printable(byte: u8) -> char {
    let is_visible = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..);
    match is_visible(byte) {
        true => char::from(byte),
        false => {
            let before = (0..byte).filter(|other| !is_visible(*other)).count() as u32;
            char::from_u32(256 + before).unwrap()
        }
    }
}
