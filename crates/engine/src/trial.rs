//! Times a decoder with work like that in production: a piece of a prompt after a long context, several sequences that
//! generate after a common prefix, and one sequence alone.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::cache::{CellOp, Sequence};
use crate::clock::CpuClock;
use crate::model::{DecodeError, Decoder, Model, ModelError, Shape};
use crate::scheduler::{BatchEntry, Pieces, SECONDS_PER_STEP};
use crate::tuning::{self, DecoderSettings, NoSpeed, Speed};

impl From<ModelError> for NoSpeed {
    fn from(_: ModelError) -> Self {
        Self::DoesNotWork
    }
}

impl From<DecodeError> for NoSpeed {
    fn from(_: DecodeError) -> Self {
        Self::DoesNotWork
    }
}

const SEQUENCES: u16 = 8;
const SEQUENCES_ON_GPU: u16 = 32;
/// The length of the prompt before the piece that is timed. A slow model gets a shorter one.
const MAX_CONTEXT: usize = 1024;
const MIN_CONTEXT: usize = 64;
const CONTEXT_SECONDS: f64 = 0.8;
/// Tokens of a piece while the context is computed, and of the piece that is timed.
const CONTEXT_PIECE: usize = 256;
const PIECE: usize = 128;
/// The sizes of pieces that the scheduler may use. Larger ones are timed only if they take no longer than a step may.
const PIECE_SIZES: [usize; 5] = [16, 64, 128, 256, 512];
const MAX_TIMED_ON_SLOW_MACHINES: usize = 64;
/// GPUs compute many tokens nearly as fast as one.
const PIECE_ON_GPU: usize = 512;
const WARM_UP_TOKENS: usize = 32;
const OWN_TOKENS: usize = 16;
/// The maximum of times that a part is timed. The fastest time counts, because other processes may have slowed the rest.
const REPETITIONS: usize = 3;
const MAX_STEPS: usize = 12;
/// A part is repeated for at most this time.
const SECONDS_PER_PART: f64 = 0.3;
/// Threads spin while they wait for each other, so they get nearly all of the time unless other processes need it.
const QUIET_CPU_SHARE: f64 = 0.85;

/// The number of sequences that generate together in a trial.
pub(crate) fn sequences(model: &Model) -> u16 {
    if model.is_on_gpu { SEQUENCES_ON_GPU } else { SEQUENCES }
}

/// Gives up after `bound`. Also returns how long the trial took.
pub(crate) fn run(
    model: &Model,
    settings: DecoderSettings,
    bound: Option<Duration>,
) -> Result<(tuning::Trial, Duration), NoSpeed> {
    let (piece, sequences) = (if model.is_on_gpu { PIECE_ON_GPU } else { PIECE }, sequences(model));
    let cells = MAX_CONTEXT + 2 * piece + usize::from(sequences) * (OWN_TOKENS + 3 * MAX_STEPS);
    let shape = Shape { cells: cells.next_multiple_of(256), sequences, step: CONTEXT_PIECE.max(piece) };
    let mut trial = Trial { decoder: model.decoder(shape, settings)?, position: 0, bound, began: Instant::now() };
    trial.prompt(WARM_UP_TOKENS)?;
    let warm = trial.prompt(WARM_UP_TOKENS)?;
    let affordable = (CONTEXT_SECONDS / warm) as usize * WARM_UP_TOKENS;

    let clock = CpuClock::start();
    let context = affordable.clamp(MIN_CONTEXT, MAX_CONTEXT);
    while trial.position < context {
        trial.prompt(CONTEXT_PIECE.min(context - trial.position))?;
    }
    let piece = piece.min(context);
    let prompt = fastest(REPETITIONS, || trial.prompt_once(piece))?;
    let together = trial.together(sequences)?;
    let one = fastest(MAX_STEPS, || trial.prompt(1))?;
    // Threads that wait for a GPU use no CPU, so the share says nothing.
    let quiet = model.is_on_gpu || clock.share_of(settings.threads) > QUIET_CPU_SHARE;
    let speed = Speed { prompt: piece as f64 / prompt, together: f64::from(sequences) / together, one: 1.0 / one };
    Ok((tuning::Trial { settings, speed: Ok(speed), quiet }, trial.began.elapsed()))
}

/// The best sizes of prompt pieces with the CPU's kernels.
pub(crate) fn pieces(model: &Model, settings: DecoderSettings) -> Result<Pieces, NoSpeed> {
    let step = PIECE_SIZES[PIECE_SIZES.len() - 1];
    let decoder = model.decoder(Shape { cells: 2 * step, sequences: 1, step }, settings)?;
    let mut trial = Trial { decoder, position: 0, bound: None, began: Instant::now() };
    trial.prompt(PIECE_SIZES[0])?;
    let mut seconds_per_token = Vec::new();
    for size in PIECE_SIZES {
        let expected = seconds_per_token.last().map_or(0.0, |(_, last)| size as f64 * last);
        if expected > SECONDS_PER_STEP && size > MAX_TIMED_ON_SLOW_MACHINES {
            break;
        }
        let repetitions = if expected > SECONDS_PER_STEP { 1 } else { REPETITIONS };
        let seconds = fastest(repetitions, || trial.prompt_once(size))?;
        seconds_per_token.push((size, seconds / size as f64));
    }
    tracing::debug!(?seconds_per_token, "sizes of prompt pieces");
    Ok(Pieces::from_times(&seconds_per_token))
}

/// The fastest of at most `times` runs: as many as there is time for, but at least two.
fn fastest(times: usize, mut part: impl FnMut() -> Result<f64, NoSpeed>) -> Result<f64, NoSpeed> {
    let began = Instant::now();
    let mut fastest = part()?;
    for done in 1..times {
        if done >= 2 && began.elapsed().as_secs_f64() > SECONDS_PER_PART {
            break;
        }
        fastest = fastest.min(part()?);
    }
    Ok(fastest)
}

struct Trial<'a> {
    decoder: Decoder<'a>,
    /// Tokens of the first sequence.
    position: usize,
    bound: Option<Duration>,
    began: Instant,
}

impl Trial<'_> {
    /// Seconds for the next `tokens` tokens of the first sequence.
    fn prompt(&mut self, tokens: usize) -> Result<f64, NoSpeed> {
        let seconds = self.time(&entries(0, self.position..self.position + tokens))?;
        self.position += tokens;
        Ok(seconds)
    }

    /// Like `prompt`, but removes the tokens again.
    fn prompt_once(&mut self, tokens: usize) -> Result<f64, NoSpeed> {
        let (start, end) = (self.position, self.position + tokens);
        let seconds = self.time(&entries(0, start..end))?;
        self.decoder.apply(&[CellOp::Release { sequence: Sequence(0), positions: start..end }])?;
        Ok(seconds)
    }

    /// Seconds for a step of several sequences that share the prompt.
    fn together(&mut self, sequences: u16) -> Result<f64, NoSpeed> {
        let prefix = self.position;
        for sequence in 1..sequences {
            let share = CellOp::Share { from: Sequence(0), to: Sequence(sequence), positions: 0..prefix };
            self.decoder.apply(&[share])?;
        }
        let all = |positions: Range<usize>| -> Vec<BatchEntry> {
            (0..sequences).flat_map(|sequence| entries(sequence, positions.clone())).collect()
        };
        self.time(&all(prefix..prefix + OWN_TOKENS))?;
        self.position = prefix + OWN_TOKENS;
        fastest(MAX_STEPS, || {
            self.position += 1;
            self.time(&all(self.position - 1..self.position))
        })
    }

    fn time(&mut self, batch: &[BatchEntry]) -> Result<f64, NoSpeed> {
        if self.bound.is_some_and(|bound| self.began.elapsed() > bound) {
            return Err(NoSpeed::TooSlow);
        }
        let began = Instant::now();
        self.decoder.decode(batch)?;
        Ok(began.elapsed().as_secs_f64())
    }
}

/// The choice of tokens does not matter.
fn entries(sequence: u16, positions: Range<usize>) -> Vec<BatchEntry> {
    let end = positions.end;
    let entry = |position: usize| BatchEntry {
        token: 100 + (position as i32 * 7 + i32::from(sequence)) % 200,
        position,
        sequence: Sequence(sequence),
        output: position + 1 == end,
    };
    positions.map(entry).collect()
}
