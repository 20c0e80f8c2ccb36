//! The network: three branches compute features of each token and its neighbours (in windows of 2, 3 and 5). The features
//! are summed over the text, and four more layers turn the sum into the vector.
//!
//! A branch's first layer sums products over the window that depend on one token each. So they are computed once for each
//! distinct token of a group of texts.

use std::collections::HashMap;

use ndarray::linalg::general_mat_mul;
use ndarray::{Array1, Array2, ArrayView2, Axis, Slice};

use crate::arrays::Arrays;
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
    layers: [Array2<f32>; 6],
}

struct Branch {
    before: usize,
    projection: Dense,
    norm: Norm,
    first: Vec<Array2<f32>>,
    first_bias: Array1<f32>,
    second: Vec<Array2<f32>>,
    second_bias: Array1<f32>,
}

struct Dense {
    weights: Array2<f32>,
    bias: Array1<f32>,
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
            let mut layer = |name: &str| -> Result<_, EncoderError> {
                let all = arrays.matrix(&format!("{name}_{size}"), size * WIDTH, WIDTH)?;
                Ok((0..size)
                    .map(|at| all.slice_axis(Axis(0), Slice::from(at * WIDTH..(at + 1) * WIDTH)).to_owned())
                    .collect::<Vec<_>>())
            };
            let (first, second) = (layer("w1")?, layer("w2")?);
            let mut vector = |name: &str| arrays.vector(&format!("{name}{size}"), WIDTH);
            let norm = Norm { gain: vector("ln_g")?, bias: vector("ln_b")?, epsilon };
            let (first_bias, second_bias) = (vector("b1_")?.into(), vector("b2_")?.into());
            let bias = vector("proj_b")?.into();
            let projection = Dense { weights: arrays.matrix(&format!("proj{size}"), DIMENSIONS, WIDTH)?, bias };
            branches.push(Branch { before, projection, norm, first, first_bias, second, second_bias });
        }
        let norm = Norm { gain: arrays.vector("ln_g", FEATURES)?, bias: arrays.vector("ln_b", FEATURES)?, epsilon };
        let bias = arrays.vector("cnn_b", DIMENSIONS)?.into();
        Ok(Self {
            table,
            scales: arrays.vector("scale", PARTS)?,
            lowest: arrays.vector("lo", PARTS)?,
            branches,
            norm,
            sum: Dense { weights: arrays.matrix("cnn_W", FEATURES, DIMENSIONS)?, bias },
            layers: [
                arrays.matrix("d0", DIMENSIONS, HIDDEN)?,
                arrays.matrix("p1", DIMENSIONS, HIDDEN)?,
                arrays.matrix("d1", HIDDEN, HIDDEN)?,
                arrays.matrix("d2", HIDDEN, DIMENSIONS)?,
                arrays.matrix("p3", HIDDEN, DIMENSIONS)?,
                arrays.matrix("d3", DIMENSIONS, DIMENSIONS)?,
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
            vectors.extend(self.vectors(sums.view(), group).rows().into_iter().map(|row| row.to_vec()));
            rest = after;
        }
        vectors
    }

    /// The sums of the features of each text.
    fn sums(&self, group: &Group) -> Array2<f32> {
        let embeddings = self.embeddings(&group.tokens);
        let branches: Vec<_> = self.branches.iter().map(|branch| branch.apply(group, &embeddings)).collect();
        let mut sums = Array2::zeros((group.texts.len(), FEATURES));
        let mut features = vec![0.0; FEATURES];
        for (rows, mut sum) in group.texts.iter().zip(sums.rows_mut()) {
            for row in rows.clone() {
                let Some(token) = group.rows[row] else { continue };
                let (own, rest) = features.split_at_mut(DIMENSIONS);
                own.copy_from_slice(embeddings.row(token).as_slice().unwrap_or_default());
                for (part, branch) in rest.chunks_exact_mut(WIDTH).zip(&branches) {
                    part.copy_from_slice(branch.row(row).as_slice().unwrap_or_default());
                }
                self.norm.apply(&mut features);
                sum.iter_mut().zip(&features).for_each(|(sum, feature)| *sum += feature);
            }
        }
        sums
    }

    fn vectors(&self, sums: ArrayView2<'_, f32>, texts: &[Vec<u32>]) -> Array2<f32> {
        let mut mean = sums.dot(&self.sum.weights);
        for (mut row, text) in mean.rows_mut().into_iter().zip(texts) {
            let length = text.len() as f32;
            row.scaled_add(length, &self.sum.bias);
            row /= length.sqrt();
        }
        let relu = |mut layer: Array2<f32>| {
            layer.mapv_inplace(|number| number.max(0.0));
            layer
        };
        let [d0, p1, d1, d2, p3, d3] = &self.layers;
        let first = relu(mean.dot(d0));
        let second = relu(mean.dot(p1) + first.dot(d1));
        let third = relu(second.dot(d2));
        let mut last = (second.dot(p3) + third.dot(d3)).mapv_into(f32::tanh);
        for mut row in last.rows_mut() {
            let length = row.dot(&row).sqrt().max(f32::MIN_POSITIVE);
            row /= length;
        }
        last
    }

    fn embeddings(&self, tokens: &[u32]) -> Array2<f32> {
        let mut embeddings = Array2::zeros((tokens.len(), DIMENSIONS));
        for (token, mut row) in tokens.iter().zip(embeddings.rows_mut()) {
            let token = *token as usize % (PARTS * ROWS_PER_PART);
            let (scale, lowest) = (self.scales[token % PARTS], self.lowest[token % PARTS]);
            let stored = &self.table[token * DIMENSIONS..][..DIMENSIONS];
            row.iter_mut().zip(stored).for_each(|(number, byte)| *number = f32::from(*byte) * scale + lowest);
        }
        embeddings
    }
}

impl Branch {
    /// The features of each row of the group.
    fn apply(&self, group: &Group, embeddings: &Array2<f32>) -> Array2<f32> {
        let mut projected = embeddings.dot(&self.projection.weights) + &self.projection.bias;
        for mut row in projected.rows_mut() {
            self.norm.apply(row.as_slice_mut().unwrap_or_default());
        }
        let parts: Vec<_> = self.first.iter().map(|weights| projected.dot(weights)).collect();
        let mut hidden = Array2::zeros((group.rows.len(), WIDTH));
        for (row, mut sum) in hidden.rows_mut().into_iter().enumerate() {
            let Some(token) = group.rows[row] else { continue };
            sum.assign(&self.first_bias);
            for (at, part) in parts.iter().enumerate() {
                if let Some(neighbour) = group.rows[row + at - self.before] {
                    sum += &part.row(neighbour);
                }
            }
            sum.mapv_inplace(|number| number.max(0.0));
            sum += &projected.row(token);
        }
        let inner = MARGIN..group.rows.len() - MARGIN;
        let mut found = Array2::zeros(hidden.raw_dim());
        let mut second = found.slice_axis_mut(Axis(0), Slice::from(inner.clone()));
        second += &self.second_bias.view().insert_axis(Axis(0));
        for (at, weights) in self.second.iter().enumerate() {
            let shifted = inner.start + at - self.before..inner.end + at - self.before;
            general_mat_mul(1.0, &hidden.slice_axis(Axis(0), Slice::from(shifted)), weights, 1.0, &mut second);
        }
        second.mapv_inplace(|number| number.max(0.0));
        found + hidden
    }
}

impl Norm {
    fn apply(&self, numbers: &mut [f32]) {
        let count = numbers.len() as f32;
        let mean = numbers.iter().sum::<f32>() / count;
        let variance = numbers.iter().map(|number| (number - mean) * (number - mean)).sum::<f32>() / count;
        let scale = 1.0 / (variance + self.epsilon).sqrt();
        for ((number, gain), bias) in numbers.iter_mut().zip(&self.gain).zip(&self.bias) {
            *number = (*number - mean) * scale * gain + bias;
        }
    }
}
