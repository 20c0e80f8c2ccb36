//! Which decoder settings are fastest depends on the machine, by more than a factor of two. So the engine times the few
//! that matter when it first loads a model, and stores the best in the data folder, by the model's digest and the CPU's
//! name.

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

/// The number format of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvType {
    /// llama.cpp's default.
    F16,
    Bf16,
    /// q8_0: 8 bits in blocks with a scale.
    Q8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecoderSettings {
    pub kv: KvType,
    pub flash_attention: bool,
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

/// In tokens per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// Prompt processing.
    pub prompt: f64,
    /// Generation by eight sequences with a common prefix, all together.
    pub eight: f64,
    /// Generation by one sequence.
    pub one: f64,
}

impl Speed {
    /// Seconds for a typical mixture of work; less is better.
    fn cost(&self, choice: DecoderSettings) -> f64 {
        let seconds = 1.0 / self.prompt + 2.0 / self.eight + 1.0 / self.one;
        if choice.flash_attention { seconds } else { seconds * NO_FLASH_COST_FACTOR }
    }
}

/// Without flash attention every sequence computes with all cells, of which a trial has few and production has many.
const NO_FLASH_COST_FACTOR: f64 = 1.5;

/// The chosen settings and what they were measured on, as stored in `tuning.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    model_sha256: String,
    model_bytes: u64,
    model_modified_micros: u64,
    cpu: String,
    pub choice: DecoderSettings,
    pub speed: Speed,
}

/// The speed is `None` if the settings do not work on this machine.
pub type Trial = (DecoderSettings, Option<Speed>);

/// The stored tuning for a model, or else a new one; and whether it is new.
pub(crate) fn tuning(
    model: &Model,
    path: &Path,
    data_dir: &Path,
    again: bool,
    progress: &mut dyn Progress,
) -> std::io::Result<(Tuning, bool)> {
    let file = data_dir.join("tuning.json");
    let mut stored: Vec<Tuning> =
        fs::read(&file).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    let (bytes, modified) = size_and_modified_micros(path)?;
    let cpu = cpu_name();
    let same_file =
        stored.iter().find(|tuning| tuning.model_bytes == bytes && tuning.model_modified_micros == modified);
    let digest = match same_file {
        Some(tuning) => tuning.model_sha256.clone(),
        None => digest(path)?,
    };
    let known = stored.iter().position(|tuning| tuning.model_sha256 == digest && tuning.cpu == cpu);
    if let (Some(at), false) = (known, again) {
        return Ok((stored.swap_remove(at), false));
    }
    let (choice, speed) = best(model, progress);
    let tuning =
        Tuning { model_sha256: digest, model_bytes: bytes, model_modified_micros: modified, cpu, choice, speed };
    if let Some(at) = known {
        stored.swap_remove(at);
    }
    stored.push(tuning.clone());
    write(&file, &stored)?;
    Ok((tuning, true))
}

fn write(file: &PathBuf, tunings: &[Tuning]) -> std::io::Result<()> {
    let next = file.with_extension("json.next");
    let mut writer = fs::File::create(&next)?;
    writer.write_all(&serde_json::to_vec_pretty(tunings)?)?;
    writer.sync_all()?;
    fs::rename(next, file)
}

fn size_and_modified_micros(path: &Path) -> std::io::Result<(u64, u64)> {
    let metadata = fs::metadata(path)?;
    let modified = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok((metadata.len(), modified.as_micros() as u64))
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

/// The CPU's name and the number of its logical cores.
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
    // llama.cpp supports a quantized KV cache only with flash attention.
    const CANDIDATES: [(KvType, bool); 5] =
        [(KvType::Bf16, true), (KvType::Bf16, false), (KvType::Q8, true), (KvType::F16, true), (KvType::F16, false)];
    let fewer = fewer_threads(cpus());
    let (mut done, all) = (0, CANDIDATES.len() + fewer.len());
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
    for (kv, flash_attention) in CANDIDATES {
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

/// Half of the logical cores are often all physical ones; one less than all leaves a core to other processes.
fn fewer_threads(cpus: usize) -> Vec<usize> {
    let mut threads = vec![cpus / 2, cpus - 1];
    threads.retain(|threads| *threads > 0);
    threads.dedup();
    threads
}

/// After this time the best candidate so far is taken. The most promising ones come first.
const MAX_TUNING_TIME: Duration = Duration::from_secs(8);
const BATCH_SEQUENCES: u16 = 8;
/// Upper limits of the work in a trial; a slow model gets less.
const MAX_PREFIX_TOKENS: usize = 160;
const CHUNK_TOKENS: usize = 32;
const SUFFIX_TOKENS: usize = 16;
const MAX_STEPS: usize = 10;
/// Target duration of one part of a trial.
const SECONDS_PER_PART: f64 = 0.25;

/// `None` if the settings do not work on this machine.
fn time(model: &Model, choice: DecoderSettings) -> Option<Speed> {
    let shape = Shape { cells: 1024, sequences: BATCH_SEQUENCES, step: 256 };
    let mut decoder = model.decoder(shape, choice).ok()?;
    let warm_up = timed(&mut decoder, &run(0, 0..SUFFIX_TOKENS))?;
    let warm_up = warm_up.min(timed(&mut decoder, &run(0, SUFFIX_TOKENS..2 * SUFFIX_TOKENS))?);
    let fits = |seconds: f64, max: usize| ((SECONDS_PER_PART / seconds) as usize).clamp(1, max);

    // The fastest chunk counts, because other processes may disturb some of them.
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

/// Entries for a run of positions. Which tokens they are does not matter.
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
