//! Embeddings that know a few words: a server with OpenAI's `/embeddings`, and a tiny BERT as a GGUF file. Both find texts
//! of the same meaning, which a search by words does not.

use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

use crate::gguf::GgufFile;
use crate::read_request;

/// Words of one meaning. The first ones are in the pairs by which the program recognises embedding models.
const MEANINGS: [&[&str]; 15] = [
    &["password"],
    &["closed"],
    &["cost"],
    &["water"],
    &["expenses", "trips"],
    &["vacation", "leave"],
    &["paint", "coating"],
    &["dog", "pets"],
    &["speed", "drive"],
    &["bread", "loaf"],
    &["bridge", "crossing"],
    &["library", "readers"],
    &["badge", "card"],
    &["jam", "stuck"],
    &["baby", "birth"],
];
const WIDTH: usize = MEANINGS.len() + 1;

fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|letter: char| !letter.is_alphanumeric()).map(str::to_lowercase)
}

fn vector(text: &str, width: usize) -> Vec<f32> {
    let mut numbers = vec![0.0; width];
    numbers[0] = 0.5; // all texts have something in common
    for word in words(text) {
        if let Some(meaning) = MEANINGS.iter().position(|meaning| meaning.contains(&&word[..])) {
            numbers[meaning + 1] += 1.0;
        }
    }
    numbers
}

/// What the server does.
#[derive(Debug, Clone, PartialEq)]
pub enum Embedding {
    /// Its model has this name and this many dimensions.
    Model(&'static str, usize),
    /// Every text has the same vector.
    Constant,
    Respond(u16, String),
    /// Never responds.
    Hang,
}

impl Embedding {
    pub const WELL: Self = Self::Model("words-1", WIDTH);
    /// Another model.
    pub const OTHER: Self = Self::Model("words-2", WIDTH + 8);
}

/// Listens for as long as the tests run.
pub struct FakeEmbeddings {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

struct State {
    embedding: Embedding,
    texts: Vec<String>,
    heads: Vec<String>,
}

impl FakeEmbeddings {
    pub fn start(embedding: Embedding) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let state = Arc::new(Mutex::new(State { embedding, texts: Vec::new(), heads: Vec::new() }));
        let server = Self { address: listener.local_addr().unwrap(), state: state.clone() };
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let state = state.clone();
                thread::spawn(move || serve(socket, &state));
            }
        });
        server
    }

    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    pub fn set(&self, embedding: Embedding) {
        self.state.lock().unwrap().embedding = embedding;
    }

    /// All texts that it received.
    pub fn texts(&self) -> Vec<String> {
        self.state.lock().unwrap().texts.clone()
    }

    /// The request line and headers of every request.
    pub fn heads(&self) -> Vec<String> {
        self.state.lock().unwrap().heads.clone()
    }
}

fn serve(mut socket: TcpStream, state: &Mutex<State>) {
    let mut reader = BufReader::new(socket.try_clone().unwrap());
    while let Some((head, body)) = read_request(&mut reader) {
        let request: Value = serde_json::from_slice(&body).unwrap_or_default();
        let texts: Vec<String> = serde_json::from_value(request["input"].clone()).unwrap_or_default();
        let embedding = {
            let mut state = state.lock().unwrap();
            state.heads.push(head.clone());
            state.texts.extend(texts.clone());
            state.embedding.clone()
        };
        let list = |model: &str, vectors: Vec<Vec<f32>>| {
            let data: Vec<_> =
                vectors.iter().enumerate().map(|(at, it)| json!({ "index": at, "embedding": it })).collect();
            json!({ "object": "list", "model": model, "data": data }).to_string()
        };
        let (status, body) = match embedding {
            Embedding::Hang => continue,
            Embedding::Respond(status, body) => (status, body),
            Embedding::Model(name, _) if head.starts_with("GET") => {
                (200, json!({ "data": [{ "id": name }] }).to_string())
            }
            Embedding::Constant if head.starts_with("GET") => (200, json!({ "data": [{ "id": "same" }] }).to_string()),
            Embedding::Constant => (200, list("same", vec![vec![0.25; WIDTH]; texts.len()])),
            Embedding::Model(name, width) => (200, list(name, texts.iter().map(|text| vector(text, width)).collect())),
        };
        let response = format!("HTTP/1.1 {status} Test\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        if socket.write_all(response.as_bytes()).is_err() {
            return;
        }
    }
}

/// A BERT with one layer that changes nothing: a text's vector is the mean of its words'.
pub fn embedding_model() -> GgufFile {
    const NORMAL: i32 = 1;
    const UNKNOWN: i32 = 2;
    const CONTROL: i32 = 3;
    let (mut tokens, mut kinds) = (Vec::new(), Vec::new());
    let mut embeddings = Vec::new();
    let mut add = |token: String, kind: i32, meaning: usize| {
        tokens.push(token);
        kinds.push(kind);
        embeddings.extend((0..WIDTH).map(|at| if at == meaning { 1.0 } else { 0.0 }));
    };
    for (token, kind) in [("[PAD]", CONTROL), ("[UNK]", UNKNOWN), ("[CLS]", CONTROL), ("[SEP]", CONTROL)] {
        add(token.into(), kind, 0);
    }
    for (meaning, words) in (1..).zip(MEANINGS) {
        words.iter().for_each(|word| add(format!("\u{2581}{word}"), NORMAL, meaning));
    }
    // Words without a meaning, and control tokens, have a low weight.
    let weights: Vec<f32> = (0..WIDTH).map(|at| if at == 0 { 0.02 } else { 1.0 }).collect();
    let (width, square) = (WIDTH as u64, [WIDTH as u64, WIDTH as u64]);
    let mut file = GgufFile::for_architecture("bert")
        .text("general.name", "tiny meanings")
        .number("bert.block_count", 1)
        .number("bert.context_length", 256)
        .number("bert.embedding_length", WIDTH as u32)
        .number("bert.feed_forward_length", WIDTH as u32)
        .number("bert.attention.head_count", 1)
        .real("bert.attention.layer_norm_epsilon", 1e-6)
        .flag("bert.attention.causal", false)
        .number("bert.pooling_type", 1)
        .text("tokenizer.ggml.model", "bert")
        .number("tokenizer.ggml.token_type_count", 1)
        .number("tokenizer.ggml.padding_token_id", 0)
        .number("tokenizer.ggml.unknown_token_id", 1)
        .number("tokenizer.ggml.bos_token_id", 2)
        .number("tokenizer.ggml.cls_token_id", 2)
        .number("tokenizer.ggml.seperator_token_id", 3)
        .texts("tokenizer.ggml.tokens", &tokens)
        .integers("tokenizer.ggml.token_type", &kinds)
        .tensor("token_embd.weight", &[width, tokens.len() as u64], &embeddings)
        .tensor("token_types.weight", &[width, 1], &[0.0; WIDTH])
        .tensor("position_embd.weight", &[width, 256], &[0.0; 256 * WIDTH]);
    for name in ["token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"] {
        file = file.tensor(&format!("{name}.weight"), &[width], &weights);
        file = file.tensor(&format!("{name}.bias"), &[width], &[0.0; WIDTH]);
    }
    for name in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down"] {
        file = file.tensor(&format!("blk.0.{name}.weight"), &square, &[0.0; WIDTH * WIDTH]);
    }
    file
}
