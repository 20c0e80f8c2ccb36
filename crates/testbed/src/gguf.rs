//! Small GGUF files.

/// A GGUF file to be written.
pub struct GgufFile {
    version: u32,
    pairs: Vec<Vec<u8>>,
    tensors: Vec<(u32, [u64; 2], u64)>,
}

impl GgufFile {
    /// A model with so many blocks of `Q4_1` weights, 20 bytes each.
    pub fn model(name: &str, blocks: u64) -> Self {
        let sample =
            Self { version: 3, pairs: Vec::new(), tensors: vec![(0, [8, 1], 32), (3, [32, blocks], 20 * blocks)] };
        let vocabulary = ["<s>", "", "čaša"].map(text).concat();
        sample
            .pair("general.architecture", 8, &text("llama"))
            .pair("general.name", 8, &text(name))
            .pair("general.file_type", 4, &3_u32.to_le_bytes())
            .pair("general.type", 8, &text("model"))
            .pair("tokenizer.ggml.tokens", 9, &[&8_u32.to_le_bytes()[..], &3_u64.to_le_bytes(), &vocabulary].concat())
            .pair("tokenizer.ggml.scores", 9, &[&6_u32.to_le_bytes()[..], &3_u64.to_le_bytes(), &[0; 12]].concat())
            .pair("tokenizer.ggml.add_bos_token", 7, &[1])
    }

    /// Sets the value of a metadata key.
    pub fn pair(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        let key = text(key);
        self.pairs.retain(|pair| !pair.starts_with(&key));
        self.pairs.push([&key[..], &kind.to_le_bytes(), value].concat());
        self
    }

    /// Sets a metadata key to a text.
    pub fn text(self, key: &str, value: &str) -> Self {
        self.pair(key, 8, &text(value))
    }

    /// Removes a metadata key.
    pub fn without(mut self, key: &str) -> Self {
        self.pairs.retain(|pair| !pair.starts_with(&text(key)));
        self
    }

    /// The file's bytes. It ends with its last weight, so that no byte can be missing.
    pub fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.pairs.len() as u64).to_le_bytes());
        file.extend(self.pairs.concat());
        let mut offset = 0_u64;
        for (number, (kind, shape, bytes)) in self.tensors.iter().enumerate() {
            file.extend(text(&format!("blk.{number}.weight")));
            file.extend(2_u32.to_le_bytes());
            file.extend(shape.map(u64::to_le_bytes).concat());
            file.extend(kind.to_le_bytes());
            file.extend(offset.to_le_bytes());
            offset = (offset + bytes).next_multiple_of(32);
        }
        for (_, _, bytes) in &self.tensors {
            file.resize(file.len().next_multiple_of(32), 0);
            file.extend((0..*bytes).map(weight));
        }
        file
    }

    pub fn version(self, version: u32) -> Self {
        Self { version, ..self }
    }
}

/// Weights that neither repeat nor compress, so that a mix-up shows and sizes stay.
fn weight(index: u64) -> u8 {
    let mixed = index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 56) as u8
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}
