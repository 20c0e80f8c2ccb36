//! How well a model predicts a text. Shows whether another form of its weights or another kernel makes it worse.

use crate::cache::{CellOp, Sequence, Token};
use crate::model::{DecodeError, Model, ModelError, Shape};
use crate::scheduler::BatchEntry;
use crate::tuning::DecoderSettings;

/// The maximum of tokens before a predicted one.
const WINDOW: usize = 512;
/// Tokens of a batch. Each has as many logits as the vocabulary has tokens.
const PIECE: usize = 128;

#[derive(Debug, thiserror::Error)]
pub enum PerplexityError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("the text is too short")]
    TooShort,
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

pub(crate) fn perplexity(model: &Model, settings: DecoderSettings, text: &str) -> Result<f64, PerplexityError> {
    let tokens: Vec<Token> = model.first_token().into_iter().chain(model.tokenize(text)).collect();
    let shape = Shape { cells: WINDOW.next_multiple_of(256), sequences: 1, step: PIECE };
    let mut decoder = model.decoder(shape, settings)?;
    let (mut surprise, mut predicted) = (0.0, 0);
    for window in tokens.chunks(WINDOW.min(model.context())) {
        for (piece, next) in window.get(1..).unwrap_or_default().chunks(PIECE).enumerate() {
            let start = piece * PIECE;
            let entries = window[start..].iter().zip(start..).take(next.len()).map(|(token, position)| BatchEntry {
                token: *token,
                position,
                sequence: Sequence(0),
                output: true,
            });
            decoder.decode(&entries.collect::<Vec<_>>())?;
            for (at, next) in next.iter().enumerate() {
                surprise -= log_probability(decoder.logits(at), *next);
                predicted += 1;
            }
        }
        decoder.apply(&[CellOp::Release { sequence: Sequence(0), positions: 0..usize::MAX }])?;
    }
    if predicted == 0 {
        return Err(PerplexityError::TooShort);
    }
    Ok((surprise / f64::from(predicted)).exp())
}

fn log_probability(logits: &[f32], token: Token) -> f64 {
    let best = kernels::largest(logits);
    let sums = logits.chunks(256).map(|block| f64::from(kernels::sum_of_exponentials(block, best, 1.0)));
    let logit = usize::try_from(token).ok().and_then(|token| logits.get(token)).copied().unwrap_or(f32::NEG_INFINITY);
    f64::from(logit - best) - sums.sum::<f64>().ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_those_of_softmax() {
        let logits = [1.0_f32, 3.0, -2.0, 0.5];
        let total: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        for (token, logit) in logits.iter().enumerate() {
            let expected = (f64::from(*logit).exp() / total).ln();
            assert!((log_probability(&logits, token as Token) - expected).abs() < 1e-6);
        }
    }
}
