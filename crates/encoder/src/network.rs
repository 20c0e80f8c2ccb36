//! The network: three branches compute features of each token and its neighbours (in windows of 2, 3 and 5). The features
//! are summed over the text, and four more layers turn the sum into the vector.
//!
//! A branch's first layer sums products over the window that depend on one token each. So they are computed once for each
//! distinct token of a group of texts.

use std::collections::HashMap;

use crate::arrays::Arrays;
use crate::weights::Weights;
use crate::{DIMENSIONS, EncoderError};

/// The table's rows are distributed over parts in turn. Each part has a scale and a lowest value.
const PARTS: usize = 17;
const ROWS_PER_PART: usize = 7530;
/// Features of a branch.
const WIDTH: usize = 256;
/// The size of a window, and the number of its tokens before the current one.
const WINDOWS: [(usize, usize); 3] = [(2, 0), (3, 1), (5, 2)];
/// The reach of a window to either side, and so the number of empty rows between texts.
const MARGIN: usize = 2;
const FEATURES: usize = DIMENSIONS + WINDOWS.len() * WIDTH;
const HIDDEN: usize = 320;
/// Texts are computed in groups of about this number of tokens, which bounds the memory.
const GROUP_TOKENS: usize = 4096;

pub(crate) struct Network {
    table: Vec<u8>,
    scales: Vec<f32>,
    lowest: Vec<f32>,
    branches: Vec<Branch>,
    norm: Norm,
    sum: Dense,
    /// In order of use in `vectors`.
    layers: [Weights; 6],
}

struct Branch {
    before: usize,
    projection: Dense,
    norm: Norm,
    /// By position in the window.
    first: Vec<Weights>,
    first_bias: Vec<f32>,
    second: Vec<Weights>,
    second_bias: Vec<f32>,
}

struct Dense {
    weights: Weights,
    bias: Vec<f32>,
}

/// Layer normalization.
struct Norm {
    gain: Vec<f32>,
    bias: Vec<f32>,
    epsilon: f32,
}

/// A group of texts with one row for each token, and empty rows between two texts.
struct Group {
    /// The distinct tokens.
    tokens: Vec<u32>,
    /// For each row, the index of its token; `None` for empty rows.
    rows: Vec<Option<usize>>,
    /// The rows of each text.
    texts: Vec<std::ops::Range<usize>>,
}

impl Group {
    fn new(texts: &[Vec<u32>]) -> Self {
        let (mut known, mut tokens) = (HashMap::new(), Vec::new());
        let (mut rows, mut ranges) = (vec![None; MARGIN], Vec::with_capacity(texts.len()));
        for text in texts {
            let start = rows.len();
            rows.extend(text.iter().map(|token| {
                Some(*known.entry(*token).or_insert_with(|| {
                    tokens.push(*token);
                    tokens.len() - 1
                }))
            }));
            ranges.push(start..rows.len());
            rows.extend([None; MARGIN]);
        }
        Self { tokens, rows, texts: ranges }
    }
}

impl Network {
    pub(crate) fn read(npz: Vec<u8>) -> Result<Self, EncoderError> {
        let mut arrays = Arrays::open(npz)?;
        let mut table = vec![0; PARTS * ROWS_PER_PART * DIMENSIONS];
        for part in 0..PARTS {
            let rows = arrays.bytes(&format!("q{}", part + 1), ROWS_PER_PART * DIMENSIONS)?;
            for (at, row) in rows.chunks_exact(DIMENSIONS).enumerate() {
                table[(at * PARTS + part) * DIMENSIONS..][..DIMENSIONS].copy_from_slice(row);
            }
        }
        let epsilon = arrays.number("eps")? as f32;
        let mut branches = Vec::with_capacity(WINDOWS.len());
        for (size, before) in WINDOWS {
            let mut layer = |name: &str| -> Result<Vec<Weights>, EncoderError> {
                let all = arrays.vector(&format!("{name}_{size}"), size * WIDTH * WIDTH)?;
                Ok(all.chunks_exact(WIDTH * WIDTH).map(|weights| Weights::new(weights, WIDTH)).collect())
            };
            let (first, second) = (layer("w1")?, layer("w2")?);
            let mut vector = |name: &str| arrays.vector(&format!("{name}{size}"), WIDTH);
            let norm = Norm { gain: vector("ln_g")?, bias: vector("ln_b")?, epsilon };
            let (first_bias, second_bias, bias) = (vector("b1_")?, vector("b2_")?, vector("proj_b")?);
            let projection = Dense { weights: matrix(&mut arrays, &format!("proj{size}"), DIMENSIONS, WIDTH)?, bias };
            branches.push(Branch { before, projection, norm, first, first_bias, second, second_bias });
        }
        let norm = Norm { gain: arrays.vector("ln_g", FEATURES)?, bias: arrays.vector("ln_b", FEATURES)?, epsilon };
        let bias = arrays.vector("cnn_b", DIMENSIONS)?;
        Ok(Self {
            table,
            scales: arrays.vector("scale", PARTS)?,
            lowest: arrays.vector("lo", PARTS)?,
            branches,
            norm,
            sum: Dense { weights: matrix(&mut arrays, "cnn_W", FEATURES, DIMENSIONS)?, bias },
            layers: [
                matrix(&mut arrays, "d0", DIMENSIONS, HIDDEN)?,
                matrix(&mut arrays, "p1", DIMENSIONS, HIDDEN)?,
                matrix(&mut arrays, "d1", HIDDEN, HIDDEN)?,
                matrix(&mut arrays, "d2", HIDDEN, DIMENSIONS)?,
                matrix(&mut arrays, "p3", HIDDEN, DIMENSIONS)?,
                matrix(&mut arrays, "d3", DIMENSIONS, DIMENSIONS)?,
            ],
        })
    }

    /// A vector for the tokens of each text, none of which is empty.
    pub(crate) fn encode(&self, texts: &[Vec<u32>]) -> Vec<Vec<f32>> {
        let mut vectors = Vec::with_capacity(texts.len());
        let mut rest = texts;
        while !rest.is_empty() {
            let mut tokens = 0;
            let fitting = rest.iter().take_while(|text| {
                tokens += text.len();
                tokens <= GROUP_TOKENS
            });
            let (group, after) = rest.split_at(fitting.count().max(1));
            let sums = self.sums(&Group::new(group));
            vectors.extend(self.vectors(&sums, group).chunks_exact(DIMENSIONS).map(<[f32]>::to_vec));
            rest = after;
        }
        vectors
    }

    /// The sums of the features of each text.
    fn sums(&self, group: &Group) -> Vec<f32> {
        let embeddings = self.embeddings(&group.tokens);
        let branches: Vec<_> = self.branches.iter().map(|branch| branch.apply(group, &embeddings)).collect();
        let mut sums = vec![0.0; group.texts.len() * FEATURES];
        let mut features = vec![0.0; FEATURES];
        for (rows, sum) in group.texts.iter().zip(sums.chunks_exact_mut(FEATURES)) {
            for at in rows.clone() {
                let Some(token) = group.rows[at] else { continue };
                let (own, rest) = features.split_at_mut(DIMENSIONS);
                own.copy_from_slice(&embeddings[token * DIMENSIONS..][..DIMENSIONS]);
                for (part, branch) in rest.chunks_exact_mut(WIDTH).zip(&branches) {
                    part.copy_from_slice(row(branch, at));
                }
                self.norm.apply(&mut features);
                add(sum, &features);
            }
        }
        sums
    }

    fn vectors(&self, sums: &[f32], texts: &[Vec<u32>]) -> Vec<f32> {
        let mut mean = self.sum.weights.products(sums);
        for (row, text) in mean.chunks_exact_mut(DIMENSIONS).zip(texts) {
            let length = text.len() as f32;
            for (sum, bias) in row.iter_mut().zip(&self.sum.bias) {
                *sum = (*sum + bias * length) / length.sqrt();
            }
        }
        let [d0, p1, d1, d2, p3, d3] = &self.layers;
        let first = relu(d0.products(&mean));
        let mut second = p1.products(&mean);
        d1.add_products(&first, &mut second);
        let second = relu(second);
        let third = relu(d2.products(&second));
        let mut last = p3.products(&second);
        d3.add_products(&third, &mut last);
        for row in last.chunks_exact_mut(DIMENSIONS) {
            row.iter_mut().for_each(|number| *number = number.tanh());
            let length = row.iter().map(|number| number * number).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
            row.iter_mut().for_each(|number| *number /= length);
        }
        last
    }

    fn embeddings(&self, tokens: &[u32]) -> Vec<f32> {
        let mut embeddings = Vec::with_capacity(tokens.len() * DIMENSIONS);
        for token in tokens {
            let token = *token as usize % (PARTS * ROWS_PER_PART);
            let (scale, lowest) = (self.scales[token % PARTS], self.lowest[token % PARTS]);
            let stored = &self.table[token * DIMENSIONS..][..DIMENSIONS];
            embeddings.extend(stored.iter().map(|byte| f32::from(*byte) * scale + lowest));
        }
        embeddings
    }
}

impl Branch {
    /// The features of each row of the group.
    fn apply(&self, group: &Group, embeddings: &[f32]) -> Vec<f32> {
        let mut projected = self.projection.weights.products(embeddings);
        for row in projected.chunks_exact_mut(WIDTH) {
            add(row, &self.projection.bias);
            self.norm.apply(row);
        }
        let parts: Vec<_> = self.first.iter().map(|weights| weights.products(&projected)).collect();
        let mut hidden = vec![0.0; group.rows.len() * WIDTH];
        for (at, sum) in hidden.chunks_exact_mut(WIDTH).enumerate() {
            let Some(token) = group.rows[at] else { continue };
            sum.copy_from_slice(&self.first_bias);
            for (part, neighbour) in parts.iter().zip(&group.rows[at - self.before..]) {
                if let Some(neighbour) = neighbour {
                    add(sum, row(part, *neighbour));
                }
            }
            sum.iter_mut().zip(row(&projected, token)).for_each(|(sum, own)| *sum = sum.max(0.0) + own);
        }
        let inner = MARGIN..group.rows.len() - MARGIN;
        let mut found = self.second_bias.repeat(inner.len());
        for (at, weights) in self.second.iter().enumerate() {
            let first = inner.start + at - self.before;
            weights.add_products(&hidden[first * WIDTH..][..inner.len() * WIDTH], &mut found);
        }
        let inner = &mut hidden[inner.start * WIDTH..inner.end * WIDTH];
        inner.iter_mut().zip(&found).for_each(|(sum, found)| *sum += found.max(0.0));
        hidden
    }
}

fn matrix(arrays: &mut Arrays, name: &str, inputs: usize, outputs: usize) -> Result<Weights, EncoderError> {
    Ok(Weights::new(&arrays.vector(name, inputs * outputs)?, outputs))
}

/// A row of a branch's numbers.
fn row(numbers: &[f32], at: usize) -> &[f32] {
    &numbers[at * WIDTH..][..WIDTH]
}

fn add(sums: &mut [f32], numbers: &[f32]) {
    sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
}

fn relu(mut numbers: Vec<f32>) -> Vec<f32> {
    numbers.iter_mut().for_each(|number| *number = number.max(0.0));
    numbers
}

impl Norm {
    fn apply(&self, numbers: &mut [f32]) {
        let count = numbers.len() as f32;
        let mean = sum(numbers, |number| number) / count;
        let variance = sum(numbers, |number| (number - mean) * (number - mean)) / count;
        let scale = 1.0 / (variance + self.epsilon).sqrt();
        for ((number, gain), bias) in numbers.iter_mut().zip(&self.gain).zip(&self.bias) {
            *number = (*number - mean) * scale * gain + bias;
        }
    }
}

/// In sixteen sums, because a single one would wait for each addition.
fn sum(numbers: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let (chunks, rest) = numbers.as_chunks::<16>();
    let mut sums = [0.0; 16];
    for chunk in chunks {
        sums.iter_mut().zip(chunk).for_each(|(sum, number)| *sum += term(*number));
    }
    sums.iter().sum::<f32>() + rest.iter().map(|number| term(*number)).sum::<f32>()
}
