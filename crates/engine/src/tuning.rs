//! Which decoder settings are fastest depends on the machine, by more than a factor of two. So the engine times the few
//! that matter when it first loads a model, and stores the best in the data folder.
//!
//! A tuning is about the machine, not about the moment: it holds for a model, a CPU and a build of this program, and one
//! from a busy moment is done again at the next quiet one.

use std::fmt;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant, UNIX_EPOCH};

use kernels::Attention;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::Progress;
use crate::model::Model;
use crate::trial::{self, Measured, TrialError};

/// The number format of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvType {
    /// llama.cpp's default.
    F16,
    Bf16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecoderSettings {
    pub kv: KvType,
    pub attention: Attention,
    pub threads: usize,
}

impl fmt::Display for DecoderSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kv = match self.kv {
            KvType::F16 => "f16",
            KvType::Bf16 => "bf16",
        };
        let attention = match self.attention {
            Attention::Own => "our",
            Attention::Library => "llama.cpp's",
        };
        let s = if self.threads == 1 { "" } else { "s" };
        write!(f, "{kv} cache, {attention} attention, {} thread{s}", self.threads)
    }
}

/// In tokens per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// Prompt processing, after a long context.
    pub prompt: f64,
    /// Generation by eight sequences with a common prefix, all together.
    pub eight: f64,
    /// Generation by one sequence.
    pub one: f64,
}

impl Speed {
    /// Seconds for a typical mixture of work; less is better.
    fn cost(&self) -> f64 {
        4.0 / self.prompt + 2.0 / self.eight + 1.0 / self.one
    }
}

/// The chosen settings and what they were measured on, as stored in `tuning.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    model_sha256: String,
    model_bytes: u64,
    model_modified_micros: u64,
    machine: Machine,
    /// Whether no other process needed the CPUs meanwhile.
    pub quiet: bool,
    pub choice: DecoderSettings,
    pub speed: Speed,
}

/// What the speed depends on beside the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Machine {
    cpu: String,
    /// The version of this program and of its trials, and how its kernels were compiled.
    build: String,
    /// Whether only the library's attention was tried.
    library_only: bool,
}

/// Counted up when trials or candidates change, so that stored tunings are done again.
const TRIALS_VERSION: u32 = 2;

impl Machine {
    fn this(library_only: bool) -> Self {
        let flags = option_env!("CMAKE_CXX_FLAGS_RELEASE").unwrap_or("");
        let changes = option_env!("GGML_ADRIATICUM_CHANGES").unwrap_or("");
        let build = format!("{}, trials {TRIALS_VERSION}, changes {changes}, {flags}", env!("CARGO_PKG_VERSION"));
        Self { cpu: cpu_name(), build, library_only }
    }
}

/// What was found out about some settings.
#[derive(Debug, Clone, Copy)]
pub struct Trial {
    pub settings: DecoderSettings,
    /// `None` if they do not work on this machine.
    pub speed: Option<Speed>,
    /// Whether no other process needed the CPUs meanwhile.
    pub quiet: bool,
}

/// When to tune.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// Unless there is a tuning.
    Missing,
    /// Unless there is a tuning from a quiet moment.
    Distrusted,
    Always,
}

/// What is tuned, and where tunings are stored.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) model: &'a Model,
    pub(crate) path: &'a Path,
    pub(crate) data_dir: &'a Path,
    pub(crate) library_only: bool,
}

/// The stored tuning for a model, or else a new one; and whether it is new. `None` if `progress` interrupts it.
pub(crate) fn tuning(
    subject: Subject<'_>,
    when: When,
    progress: &mut dyn Progress,
) -> std::io::Result<Option<(Tuning, bool)>> {
    let Subject { model, path, data_dir, library_only } = subject;
    let file = data_dir.join("tuning.json");
    let mut stored: Vec<Tuning> =
        fs::read(&file).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    let (bytes, modified) = size_and_modified_micros(path)?;
    let machine = Machine::this(library_only);
    let same_file =
        stored.iter().find(|tuning| tuning.model_bytes == bytes && tuning.model_modified_micros == modified);
    let digest = match same_file {
        Some(tuning) => tuning.model_sha256.clone(),
        None => digest(path)?,
    };
    let known = stored.iter().position(|tuning| tuning.model_sha256 == digest && tuning.machine == machine);
    if let Some(at) = known
        && (when == When::Missing || (when == When::Distrusted && stored[at].quiet))
    {
        return Ok(Some((stored.swap_remove(at), false)));
    }
    let Some((choice, speed, quiet)) = best(model, library_only, progress) else { return Ok(None) };
    let tuning = Tuning {
        model_sha256: digest,
        model_bytes: bytes,
        model_modified_micros: modified,
        machine: machine.clone(),
        quiet,
        choice,
        speed,
    };
    // Of other builds of this program on the same machine there is one at most that is still used: the one before.
    stored.retain(|other| {
        other.model_sha256 != tuning.model_sha256 || other.machine.cpu != machine.cpu || {
            other.machine.library_only != library_only && other.machine.build == machine.build
        }
    });
    stored.push(tuning.clone());
    write(&file, &stored)?;
    Ok(Some((tuning, true)))
}

fn write(file: &Path, tunings: &[Tuning]) -> std::io::Result<()> {
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

/// The CPU's name, the number of its logical cores, and what kernels choose their instructions by: virtual machines hide
/// some of them under the same name.
fn cpu_name() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let name = field("model name").or_else(|| field("CPU part")).unwrap_or_else(|| std::env::consts::ARCH.into());
    let flags = field("flags").or_else(|| field("Features")).unwrap_or_default();
    let told = ["avx2", "avx512", "amx", "asimd", "sve", "i8mm", "bf16"];
    let flags: Vec<&str> = flags.split(' ').filter(|flag| told.iter().any(|told| flag.contains(told))).collect();
    format!("{name} x{} ({})", cpus(), flags.join(" "))
}

pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// No further candidate is tried after this time. The most promising ones come first.
const MAX_TUNING_TIME: Duration = Duration::from_secs(6);
/// How much better than an earlier candidate another one must be, when it was quiet and when it was not.
const MARGINS: (f64, f64) = (0.98, 0.75);

/// The best settings, their speed, and whether the machine was quiet. `None` if `progress` interrupts it.
fn best(model: &Model, library_only: bool, progress: &mut dyn Progress) -> Option<(DecoderSettings, Speed, bool)> {
    let kernels = if library_only { &[Attention::Library][..] } else { &[Attention::Own, Attention::Library] };
    let mut candidates = Vec::new();
    for attention in kernels {
        for kv in [KvType::F16, KvType::Bf16] {
            candidates.push(DecoderSettings { kv, attention: *attention, threads: cpus() });
        }
    }
    let fewer = fewer_threads(cpus());
    let all = candidates.len() + usize::from(fewer.is_some());
    let began = Instant::now();
    let mut best: Option<Trial> = None;
    for done in 0..all {
        let settings = match (candidates.get(done), best, fewer) {
            (Some(candidate), ..) => *candidate,
            (None, Some(Trial { settings, .. }), Some(threads)) => DecoderSettings { threads, ..settings },
            _ => break,
        };
        if began.elapsed() > MAX_TUNING_TIME && best.is_some() {
            break;
        }
        progress.trying(done, all);
        let mut tried = time(model, settings, progress)?;
        if !tried.quiet && began.elapsed() < MAX_TUNING_TIME / 2 {
            tried = better(tried, time(model, settings, progress)?); // perhaps it is quiet now
        }
        progress.tried(&tried);
        best = Some(best.map_or(tried, |before| better(before, tried)));
    }
    Some(match best {
        Some(Trial { settings, speed: Some(speed), quiet }) => (settings, speed, quiet),
        _ => {
            let settings = DecoderSettings { kv: KvType::F16, attention: Attention::Library, threads: cpus() };
            (settings, Speed { prompt: 1.0, eight: 1.0, one: 1.0 }, false)
        }
    })
}

/// The later one only if it is clearly better. Figures from a busy moment say little.
fn better(before: Trial, later: Trial) -> Trial {
    let margin = if before.quiet && later.quiet { MARGINS.0 } else { MARGINS.1 };
    match (before.speed, later.speed) {
        (Some(a), Some(b)) if b.cost() < a.cost() * margin => later,
        (None, Some(_)) => later,
        _ => before,
    }
}

/// `None` if `progress` interrupts it.
fn time(model: &Model, settings: DecoderSettings, progress: &mut dyn Progress) -> Option<Trial> {
    match trial::run(model, settings, &|| progress.is_interrupted()) {
        Ok(Measured { speed, quiet }) => Some(Trial { settings, speed: Some(speed), quiet }),
        Err(TrialError::DoesNotWork) => Some(Trial { settings, speed: None, quiet: true }),
        Err(TrialError::Interrupted) => None,
    }
}

/// Half of the logical cores are often all physical ones.
fn fewer_threads(cpus: usize) -> Option<usize> {
    Some(cpus / 2).filter(|threads| *threads > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(kv: KvType, tokens_per_second: f64, quiet: bool) -> Trial {
        let speed = Speed { prompt: tokens_per_second, eight: tokens_per_second, one: tokens_per_second };
        let settings = DecoderSettings { kv, attention: Attention::Own, threads: 2 };
        Trial { settings, speed: Some(speed), quiet }
    }

    #[test]
    fn figures_of_a_busy_moment_decide_only_if_they_are_far_apart() {
        let chosen = |later: Trial| better(trial(KvType::F16, 100.0, true), later).settings.kv;
        assert_eq!(chosen(trial(KvType::Bf16, 110.0, true)), KvType::Bf16);
        assert_eq!(chosen(trial(KvType::Bf16, 101.0, true)), KvType::F16);
        assert_eq!(chosen(trial(KvType::Bf16, 110.0, false)), KvType::F16);
        assert_eq!(chosen(trial(KvType::Bf16, 150.0, false)), KvType::Bf16);
    }
}
