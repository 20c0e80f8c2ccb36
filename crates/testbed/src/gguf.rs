//! Small GGUF files.

/// A GGUF file to be written.
#[derive(Debug, Clone)]
pub struct GgufFile {
    version: u32,
    pairs: Vec<Vec<u8>>,
    tensors: Vec<Tensor>,
}

#[derive(Debug, Clone)]
struct Tensor {
    name: String,
    kind: u32,
    shape: Vec<u64>,
    data: Vec<u8>,
}

/// Kinds of values and of tensors, by the format's numbers.
const NUMBER: u32 = 4;
const INTEGER: u32 = 5;
const REAL: u32 = 6;
const FLAG: u32 = 7;
const TEXT: u32 = 8;
const ARRAY: u32 = 9;
const F32: u32 = 0;
const Q4_1: u32 = 3;

impl GgufFile {
    /// Without weights.
    pub fn for_architecture(architecture: &str) -> Self {
        Self { version: 3, pairs: Vec::new(), tensors: Vec::new() }.text("general.architecture", architecture)
    }

    /// A model with `blocks` blocks of `Q4_1` weights, 20 bytes each.
    pub fn model(name: &str, blocks: u64) -> Self {
        let mut file = Self::for_architecture("llama")
            .text("general.name", name)
            .number("general.file_type", 3)
            .text("general.type", "model")
            .texts("tokenizer.ggml.tokens", &["<s>", "", "čaša"])
            .reals("tokenizer.ggml.scores", &[0.0; 3])
            .flag("tokenizer.ggml.add_bos_token", true);
        for (kind, shape, bytes) in [(F32, vec![8, 1], 32), (Q4_1, vec![32, blocks], 20 * blocks)] {
            let name = format!("blk.{}.weight", file.tensors.len());
            file.tensors.push(Tensor { name, kind, shape, data: (0..bytes).map(weight).collect() });
        }
        file
    }

    /// Sets the value of a metadata key.
    pub fn pair(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        let key = text(key);
        self.pairs.retain(|pair| !pair.starts_with(&key));
        self.pairs.push([&key[..], &kind.to_le_bytes(), value].concat());
        self
    }

    pub fn text(self, key: &str, value: &str) -> Self {
        self.pair(key, TEXT, &text(value))
    }

    pub fn number(self, key: &str, value: u32) -> Self {
        self.pair(key, NUMBER, &value.to_le_bytes())
    }

    pub fn real(self, key: &str, value: f32) -> Self {
        self.pair(key, REAL, &value.to_le_bytes())
    }

    pub fn flag(self, key: &str, value: bool) -> Self {
        self.pair(key, FLAG, &[u8::from(value)])
    }

    pub fn texts<T: AsRef<str>>(self, key: &str, values: &[T]) -> Self {
        self.array(key, TEXT, values.iter().map(|value| text(value.as_ref())))
    }

    pub fn integers(self, key: &str, values: &[i32]) -> Self {
        self.array(key, INTEGER, values.iter().map(|value| value.to_le_bytes().to_vec()))
    }

    pub fn reals(self, key: &str, values: &[f32]) -> Self {
        self.array(key, REAL, values.iter().map(|value| value.to_le_bytes().to_vec()))
    }

    fn array(self, key: &str, kind: u32, values: impl ExactSizeIterator<Item = Vec<u8>>) -> Self {
        let mut array = [&kind.to_le_bytes()[..], &(values.len() as u64).to_le_bytes()].concat();
        array.extend(values.flatten());
        self.pair(key, ARRAY, &array)
    }

    /// Removes a metadata key.
    pub fn without(mut self, key: &str) -> Self {
        self.pairs.retain(|pair| !pair.starts_with(&text(key)));
        self
    }

    /// Adds weights of 32 bits.
    pub fn tensor(mut self, name: &str, shape: &[u64], numbers: &[f32]) -> Self {
        assert_eq!(numbers.len() as u64, shape.iter().product::<u64>());
        let data = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.tensors.push(Tensor { name: name.into(), kind: F32, shape: shape.to_vec(), data });
        self
    }

    /// Changes the weights of a tensor.
    pub fn change(mut self, name: &str, change: impl Fn(usize, f32) -> f32) -> Self {
        let tensor = self.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap();
        for (at, number) in tensor.data.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *number = change(at, f32::from_le_bytes(*number)).to_le_bytes();
        }
        self
    }

    /// The file's bytes. The last byte belongs to a weight, so that every truncation shows.
    pub fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.pairs.len() as u64).to_le_bytes());
        file.extend(self.pairs.concat());
        let mut offset = 0_u64;
        for Tensor { name, kind, shape, data } in &self.tensors {
            file.extend(text(name));
            file.extend((shape.len() as u32).to_le_bytes());
            file.extend(shape.iter().flat_map(|side| side.to_le_bytes()));
            file.extend(kind.to_le_bytes());
            file.extend(offset.to_le_bytes());
            offset = (offset + data.len() as u64).next_multiple_of(32);
        }
        for tensor in &self.tensors {
            file.resize(file.len().next_multiple_of(32), 0);
            file.extend(&tensor.data);
        }
        file
    }

    pub fn version(self, version: u32) -> Self {
        Self { version, ..self }
    }
}

/// Weights that neither repeat nor compress, so that swapped weights are detected and file sizes stay.
fn weight(index: u64) -> u8 {
    let mixed = index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 56) as u8
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}
