//! Which settings are fastest differs from machine to machine by more than a factor of two, and nobody should have to
//! know. So the engine times the few that matter at its first load and keeps the best, with the model's digest and the
//! CPU's name, in the data folder.

use std::fmt;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::Progress;
use crate::cache::{CellOp, Sequence};
use crate::model::{Decoder, Model, Shape};
use crate::scheduler::BatchEntry;

/// How keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvType {
    /// 16 bits, as llama.cpp does by default.
    F16,
    /// 16 bits with the range of 32.
    Bf16,
    /// 8 bits in blocks.
    Q8,
}

/// What is tuned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecoderSettings {
    /// How keys and values are kept.
    pub kv: KvType,
    /// Whether attention is computed in one go.
    pub flash_attention: bool,
    /// Threads that compute.
    pub threads: usize,
}

impl fmt::Display for DecoderSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kv = match self.kv {
            KvType::F16 => "f16",
            KvType::Bf16 => "bf16",
            KvType::Q8 => "q8_0",
        };
        let flash = if self.flash_attention { "on" } else { "off" };
        let s = if self.threads == 1 { "" } else { "s" };
        write!(f, "{kv} cache, flash attention {flash}, {} thread{s}", self.threads)
    }
}

/// How fast a choice was, in tokens per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// Computing a prompt.
    pub prompt: f64,
    /// Eight sequences that share a prefix, together.
    pub eight: f64,
    /// One sequence.
    pub one: f64,
}

impl Speed {
    /// Seconds for a fair mixture of work; less is better.
    fn cost(&self, choice: DecoderSettings) -> f64 {
        let seconds = 1.0 / self.prompt + 2.0 / self.eight + 1.0 / self.one;
        if choice.flash_attention { seconds } else { seconds * NO_FLASH_COST_FACTOR }
    }
}

/// Without flash attention everyone computes with everyone's cells, of which there are few in a trial and many in earnest.
const NO_FLASH_COST_FACTOR: f64 = 1.5;

/// A choice with the grounds for it, as kept in the data folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    model_sha256: String,
    model_bytes: u64,
    model_modified_micros: u64,
    cpu: String,
    /// What was chosen.
    pub choice: DecoderSettings,
    /// How fast it was when it was chosen.
    pub speed: Speed,
}

/// What is tried, and how it fared.
pub type Trial = (DecoderSettings, Option<Speed>);

/// The tuning for a model: the one that was kept, or else a new one.
pub(crate) fn tuning(
    model: &Model,
    path: &Path,
    data_dir: &Path,
    again: bool,
    progress: &mut dyn Progress,
) -> std::io::Result<(Tuning, bool)> {
    let file = data_dir.join("tuning.json");
    let mut kept: Vec<Tuning> =
        fs::read(&file).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    let (bytes, modified) = stamp(path)?;
    let cpu = cpu_name();
    let same_file = kept.iter().find(|kept| kept.model_bytes == bytes && kept.model_modified_micros == modified);
    let digest = match same_file {
        Some(kept) => kept.model_sha256.clone(),
        None => digest(path)?,
    };
    let known = kept.iter().position(|kept| kept.model_sha256 == digest && kept.cpu == cpu);
    if let (Some(at), false) = (known, again) {
        return Ok((kept.swap_remove(at), false));
    }
    let (choice, speed) = best(model, progress);
    let tuning =
        Tuning { model_sha256: digest, model_bytes: bytes, model_modified_micros: modified, cpu, choice, speed };
    if let Some(at) = known {
        kept.swap_remove(at);
    }
    kept.push(tuning.clone());
    keep(&file, &kept)?;
    Ok((tuning, true))
}

fn keep(file: &PathBuf, tunings: &[Tuning]) -> std::io::Result<()> {
    let next = file.with_extension("json.next");
    let mut writer = fs::File::create(&next)?;
    writer.write_all(&serde_json::to_vec_pretty(tunings)?)?;
    writer.sync_all()?;
    fs::rename(next, file)
}

fn stamp(path: &Path) -> std::io::Result<(u64, u64)> {
    let about = fs::metadata(path)?;
    let modified = about.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok((about.len(), modified.as_micros() as u64))
}

fn digest(path: &Path) -> std::io::Result<String> {
    let mut file = fs::File::open(path)?;
    let mut digest = Sha256::new();
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece)? {
            0 => break,
            read => digest.update(&piece[..read]),
        }
    }
    Ok(base16ct::lower::encode_string(&digest.finalize()))
}

/// What the system calls the CPU, and how much of it there is.
fn cpu_name() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let name = field("model name").or_else(|| field("CPU part")).unwrap_or_else(|| std::env::consts::ARCH.into());
    format!("{name} x{}", cpus())
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn best(model: &Model, progress: &mut dyn Progress) -> (DecoderSettings, Speed) {
    // llama.cpp keeps quantized values only together with flash attention.
    const KINDS: [(KvType, bool); 5] =
        [(KvType::Bf16, true), (KvType::Bf16, false), (KvType::Q8, true), (KvType::F16, true), (KvType::F16, false)];
    let fewer = fewer_threads(cpus());
    let (mut done, all) = (0, KINDS.len() + fewer.len());
    let mut best: Option<(DecoderSettings, Speed)> = None;
    let began = Instant::now();
    let mut attempt = |choice: DecoderSettings| {
        if began.elapsed() > MAX_TUNING_TIME && best.is_some() {
            return best;
        }
        progress.trying(done, all);
        done += 1;
        let speed = time(model, choice);
        progress.tried(&(choice, speed));
        let is_better = |speed: &Speed| best.is_none_or(|(other, best)| speed.cost(choice) < best.cost(other));
        if let Some(speed) = speed.filter(is_better) {
            best = Some((choice, speed));
        }
        best
    };
    let mut chosen = None;
    for (kv, flash_attention) in KINDS {
        chosen = attempt(DecoderSettings { kv, flash_attention, threads: cpus() });
    }
    for threads in fewer {
        if let Some((choice, _)) = chosen {
            chosen = attempt(DecoderSettings { threads, ..choice });
        }
    }
    let fallback = DecoderSettings { kv: KvType::F16, flash_attention: true, threads: cpus() };
    chosen.unwrap_or((fallback, Speed { prompt: 1.0, eight: 1.0, one: 1.0 }))
}

/// Half of the CPUs are often all the cores there are; and one less than all leaves room for everything else.
fn fewer_threads(cpus: usize) -> Vec<usize> {
    let mut threads = vec![cpus / 2, cpus - 1];
    threads.retain(|threads| *threads > 0);
    threads.dedup();
    threads
}

/// After so long, the best so far has to do; the most promising come first.
const MAX_TUNING_TIME: Duration = Duration::from_secs(8);
const BATCH_SEQUENCES: u16 = 8;
/// The largest work that is timed; a slow model gets less of it.
const MAX_PREFIX_TOKENS: usize = 160;
const CHUNK_TOKENS: usize = 32;
const SUFFIX_TOKENS: usize = 16;
const MAX_STEPS: usize = 10;
/// About how long one part of a trial may take.
const SECONDS_PER_PART: f64 = 0.25;

/// Times one choice; `None` if it does not work here.
fn time(model: &Model, choice: DecoderSettings) -> Option<Speed> {
    let shape = Shape { cells: 1024, sequences: BATCH_SEQUENCES, step: 256 };
    let mut decoder = model.decoder(shape, choice).ok()?;
    let warm_up = timed(&mut decoder, &run(0, 0..SUFFIX_TOKENS))?;
    let warm_up = warm_up.min(timed(&mut decoder, &run(0, SUFFIX_TOKENS..2 * SUFFIX_TOKENS))?);
    let fits = |seconds: f64, most: usize| ((SECONDS_PER_PART / seconds) as usize).clamp(1, most);

    // In pieces, of which the fastest counts: a machine has other things to do, too.
    let pieces =
        fits(warm_up * (CHUNK_TOKENS / SUFFIX_TOKENS) as f64, (MAX_PREFIX_TOKENS - 2 * SUFFIX_TOKENS) / CHUNK_TOKENS);
    let prefix = 2 * SUFFIX_TOKENS + pieces * CHUNK_TOKENS;
    let mut prompt = f64::INFINITY;
    for start in (2 * SUFFIX_TOKENS..prefix).step_by(CHUNK_TOKENS) {
        prompt = prompt.min(timed(&mut decoder, &run(0, start..start + CHUNK_TOKENS))?);
    }
    for sequence in 1..BATCH_SEQUENCES {
        let share = CellOp::Share { from: Sequence(0), to: Sequence(sequence), positions: 0..prefix };
        decoder.apply(&[share]).ok()?;
    }
    let own: Vec<BatchEntry> =
        (0..BATCH_SEQUENCES).flat_map(|sequence| run(sequence, prefix..prefix + SUFFIX_TOKENS)).collect();
    timed(&mut decoder, &own)?;

    let step = |at: usize| {
        (0..BATCH_SEQUENCES)
            .flat_map(move |sequence| run(sequence, prefix + SUFFIX_TOKENS + at..prefix + SUFFIX_TOKENS + at + 1))
    };
    let first = timed(&mut decoder, &step(0).collect::<Vec<_>>())?;
    let steps = fits(first, MAX_STEPS);
    let mut fastest = first;
    for at in 1..=steps {
        fastest = fastest.min(timed(&mut decoder, &step(at).collect::<Vec<_>>())?);
    }
    let after = prefix + SUFFIX_TOKENS + steps + 1;
    let mut alone = f64::INFINITY;
    for at in after..after + fits(fastest / 4.0, MAX_STEPS) {
        alone = alone.min(timed(&mut decoder, &run(0, at..at + 1))?);
    }
    Some(Speed { prompt: CHUNK_TOKENS as f64 / prompt, eight: f64::from(BATCH_SEQUENCES) / fastest, one: 1.0 / alone })
}

/// Tokens of a sequence; which ones does not matter.
fn run(sequence: u16, positions: std::ops::Range<usize>) -> Vec<BatchEntry> {
    let end = positions.end;
    let entry = |position: usize| BatchEntry {
        token: 100 + (position as i32 * 7 + i32::from(sequence)) % 200,
        position,
        sequence: Sequence(sequence),
        output: position + 1 == end,
    };
    positions.map(entry).collect()
}

fn timed(decoder: &mut Decoder<'_>, batch: &[BatchEntry]) -> Option<f64> {
    let began = Instant::now();
    decoder.decode(batch).ok()?;
    Some(began.elapsed().as_secs_f64())
}
