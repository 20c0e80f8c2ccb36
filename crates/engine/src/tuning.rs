//! Which decoder settings are fastest depends on the machine; the difference is more than a factor of two. So the engine
//! times the few candidates that matter when it first loads a model, and stores the best in the data folder.
//!
//! A tuning holds for a model, a CPU and a build of this program.

use std::fmt;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kernels::{Attention, Products};
use serde::{Deserialize, Serialize};

use crate::Progress;
use crate::model::{Model, backend};
use crate::scheduler::Pieces;
use crate::trial;
use crate::weights::{Converted, WeightsChoice, size_and_modified_micros};

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
    pub products: Products,
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
    /// Generation by several sequences with a common prefix, all together: 8 on CPUs, 32 on a GPU.
    pub together: f64,
    /// Generation by one sequence.
    pub one: f64,
}

impl Speed {
    /// Seconds for a typical mixture of work; less is better.
    fn cost(&self, work: &Work) -> f64 {
        work.prompt / self.prompt + work.together / self.together + work.one / self.one
    }
}

/// How many tokens of each kind are computed.
struct Work {
    prompt: f64,
    together: f64,
    one: f64,
}

impl Work {
    const ON_CPUS: Self = Self { prompt: 4.0, together: 2.0, one: 1.0 };
    /// A GPU serves many callers: as many steps for all of them together as for one alone.
    const ON_GPUS: Self = Self { prompt: 64.0, together: 32.0, one: 1.0 };

    fn typical(model: &Model) -> &'static Self {
        if model.is_on_gpu { &Self::ON_GPUS } else { &Self::ON_CPUS }
    }
}

/// The chosen settings and what they were measured on, as stored in `tuning.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    pub(crate) key: Key,
    /// Whether no other process needed the CPUs meanwhile.
    pub quiet: bool,
    pub choice: DecoderSettings,
    pub speed: Speed,
    pub(crate) pieces: Pieces,
    /// The model in another form, if that is used.
    pub(crate) copy: Option<Converted>,
}

/// What a tuning holds for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Key {
    /// Path, size and modification time identify a model without reading it.
    model_path: String,
    model_bytes: u64,
    model_modified_micros: u64,
    cpu: String,
    /// The version of this program and of its trials, and what its kernels were compiled for.
    build: String,
    pub(crate) options: Options,
}

/// What the tuning was allowed to try.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Options {
    pub(crate) library_only: bool,
    pub(crate) weights: WeightsChoice,
    /// Which GPUs compute, and whether they do everything.
    pub(crate) gpus: Option<String>,
}

/// Incremented when trials or candidates change, so that stored tunings are repeated.
const TRIALS_VERSION: u32 = 8;

impl Key {
    /// For a model on this machine.
    pub(crate) fn new(model: &Path, options: Options) -> std::io::Result<Self> {
        let model_path = fs::canonicalize(model)?.display().to_string();
        let (model_bytes, model_modified_micros) = size_and_modified_micros(model)?;
        let changes = option_env!("GGML_ADRIATICUM_CHANGES").unwrap_or("");
        let kernels = backend().map_or_else(|_| String::new(), |_| kernels::system_info());
        let build = format!("{}, trials {TRIALS_VERSION}, changes {changes}, {kernels}", env!("CARGO_PKG_VERSION"));
        Ok(Self { model_path, model_bytes, model_modified_micros, cpu: cpu_name(), build, options })
    }
}

/// The result of timing some settings.
#[derive(Debug, Clone, Copy)]
pub struct Trial {
    pub settings: DecoderSettings,
    pub speed: Result<Speed, NoSpeed>,
    /// Whether no other process needed the CPUs meanwhile.
    pub quiet: bool,
}

/// Why there are no figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoSpeed {
    /// The settings do not work on this machine.
    DoesNotWork,
    /// They are so slow that the trial was stopped early.
    TooSlow,
}

/// The stored tunings.
pub(crate) struct TuningFile {
    path: PathBuf,
    tunings: Vec<Tuning>,
}

impl TuningFile {
    /// A file that cannot be read, for example from another version, counts as empty.
    pub(crate) fn read(data_dir: &Path) -> Self {
        let path = data_dir.join("tuning.json");
        Self { tunings: Self::tunings(&path), path }
    }

    pub(crate) fn find(&self, key: &Key) -> Option<&Tuning> {
        self.tunings.iter().find(|tuning| tuning.key == *key)
    }

    /// Copies of the weights of the key's file that were made for an earlier build or other options.
    pub(crate) fn copies(&self, key: &Key) -> impl Iterator<Item = &Converted> {
        let file = |key: &Key| (key.model_path.clone(), key.model_bytes, key.model_modified_micros);
        let of_file = self.tunings.iter().filter(move |tuning| file(&tuning.key) == file(key));
        of_file.filter_map(|tuning| tuning.copy.as_ref()).filter(|copy| copy.is_intact())
    }

    /// Stores a tuning in place of those that it supersedes: for the same path and CPU, unless they differ in nothing but
    /// their options, and for files that are gone. Removes their copies of the weights. Other processes may store tunings at the same time.
    pub(crate) fn store(&mut self, tuning: Tuning) -> std::io::Result<()> {
        let lock = fs::File::create(self.path.with_extension("lock"))?;
        lock.lock()?;
        self.tunings = Self::tunings(&self.path);
        let key = &tuning.key;
        let is_kept = |Tuning { key: other, .. }: &mut Tuning| {
            let is_other_subject = (&other.model_path, &other.cpu) != (&key.model_path, &key.cpu);
            let with_these_options = Key { options: key.options.clone(), ..other.clone() };
            let is_kept = is_other_subject || (with_these_options == *key && other.options != key.options);
            is_kept && Path::new(&other.model_path).exists()
        };
        let superseded: Vec<_> = self.tunings.extract_if(.., |tuning| !is_kept(tuning)).collect();
        self.tunings.push(tuning);
        write(&self.path, &self.tunings)?;
        for copy in superseded.into_iter().filter_map(|tuning| tuning.copy) {
            let is_used = |tuning: &Tuning| tuning.copy.as_ref().is_some_and(|other| other.path == copy.path);
            if !self.tunings.iter().any(is_used) && copy.is_intact() {
                copy.remove();
            }
        }
        Ok(())
    }

    fn tunings(path: &Path) -> Vec<Tuning> {
        let tunings: Option<Vec<Tuning>> = fs::read(path).ok().and_then(|text| serde_json::from_slice(&text).ok());
        tunings.unwrap_or_default().into_iter().filter(|tuning| tuning.pieces.are_valid()).collect()
    }
}

/// Tunes a model that is loaded.
pub(crate) fn tune(model: &Model, key: Key, progress: &mut dyn Progress) -> Tuning {
    let (choice, speed, quiet) = best(model, key.options.library_only, progress);
    let pieces = match model.is_on_gpu {
        true => PIECES_ON_GPU,
        false => trial::pieces(model, choice).unwrap_or(PIECES_NOT_TIMED),
    };
    Tuning { key, quiet, choice, speed, pieces, copy: None }
}

/// The tuning for another form of the model, if that is clearly faster than the tuned one.
pub(crate) fn with_faster(other: &Model, tuning: &Tuning) -> Option<Tuning> {
    let before = Trial { settings: tuning.choice, speed: Ok(tuning.speed), quiet: tuning.quiet };
    let (tried, _) = time(other, tuning.choice, None);
    let speed = tried.speed.ok()?;
    is_better(&before, &tried, Work::typical(other)).then(|| Tuning { quiet: tried.quiet, speed, ..tuning.clone() })
}

fn write(file: &Path, tunings: &[Tuning]) -> std::io::Result<()> {
    let next = file.with_extension("json.next");
    let mut writer = fs::File::create(&next)?;
    writer.write_all(&serde_json::to_vec_pretty(tunings)?)?;
    writer.sync_all()?;
    fs::rename(next, file)
}

/// The CPU's name, its number of logical cores, and the instruction sets that kernels depend on: virtual machines may
/// hide some of them under the same CPU name.
fn cpu_name() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let name = field("model name").or_else(|| field("CPU part")).unwrap_or_else(|| std::env::consts::ARCH.into());
    let flags = field("flags").or_else(|| field("Features")).unwrap_or_default();
    let relevant = ["avx2", "avx512", "amx", "asimd", "sve", "i8mm", "bf16"];
    let flags: Vec<&str> = flags.split(' ').filter(|flag| relevant.iter().any(|name| flag.contains(name))).collect();
    format!("{name} x{} ({})", cpus(), flags.join(" "))
}

pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// No further candidate is tried after this time. The most promising candidates come first.
const MAX_TUNING_TIME: Duration = Duration::from_secs(3);
/// A trial that takes this many times as long as the first one is stopped.
const TOO_SLOW: f64 = 1.25;
/// The cost of a later candidate must be below that of an earlier one by this factor, on a quiet and on a busy machine.
const MARGINS: (f64, f64) = (0.98, 0.75);

/// The best settings, their speed, and whether the machine was quiet.
fn best(model: &Model, library_only: bool, progress: &mut dyn Progress) -> (DecoderSettings, Speed, bool) {
    let (candidates, fewer) = if model.is_on_gpu { (vec![ON_GPU], None) } else { on_cpu(library_only) };
    let all = candidates.len() + usize::from(fewer.is_some());
    let (began, work) = (Instant::now(), Work::typical(model));
    let (mut best, mut bound): (Option<Trial>, _) = (None, None);
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
        let (mut tried, took) = time(model, settings, bound);
        if !tried.quiet && began.elapsed() < MAX_TUNING_TIME / 2 {
            tried = better(tried, time(model, settings, bound).0, work); // the machine may be quiet now
        }
        progress.tried(&tried);
        bound = bound.or(took.map(|took| took.mul_f64(TOO_SLOW)));
        best = Some(best.map_or(tried, |before| better(before, tried, work)));
    }
    match best {
        Some(Trial { settings, speed: Ok(speed), quiet }) => (settings, speed, quiet),
        _ => {
            let (attention, products) = (Attention::Library, Products::Library);
            let settings = DecoderSettings { kv: KvType::F16, attention, products, threads: cpus() };
            (settings, Speed { prompt: 1.0, together: 1.0, one: 1.0 }, false)
        }
    }
}

/// Pieces as large as a step.
const PIECES_ON_GPU: Pieces = Pieces { best: usize::MAX, smallest: 64 };
const PIECES_NOT_TIMED: Pieces = Pieces { best: 512, smallest: 64 };

/// The only candidate: the GPU's kernels compute, and more threads would only wait for it.
const ON_GPU: DecoderSettings =
    DecoderSettings { kv: KvType::F16, attention: Attention::Library, products: Products::Library, threads: 1 };

/// Settings to be tried, and a smaller number of threads to be tried with the best of them.
fn on_cpu(library_only: bool) -> (Vec<DecoderSettings>, Option<usize>) {
    let products = if library_only { Products::Library } else { Products::Own };
    let candidate = |(attention, kv)| DecoderSettings { kv, attention, products, threads: cpus() };
    // Our attention is equally fast with both formats, and f16 is more exact.
    let own = (!library_only).then_some((Attention::Own, KvType::F16));
    let library = [(Attention::Library, KvType::F16), (Attention::Library, KvType::Bf16)];
    (own.into_iter().chain(library).map(candidate).collect(), fewer_threads(cpus()))
}

/// The later trial only if it is clearly better. Figures from a busy machine are unreliable.
fn better(before: Trial, later: Trial, work: &Work) -> Trial {
    if is_better(&before, &later, work) { later } else { before }
}

fn is_better(before: &Trial, later: &Trial, work: &Work) -> bool {
    let margin = if before.quiet && later.quiet { MARGINS.0 } else { MARGINS.1 };
    match (before.speed, later.speed) {
        (Ok(before), Ok(later)) => later.cost(work) < before.cost(work) * margin,
        (before, later) => before.is_err() && later.is_ok(),
    }
}

/// Runs a trial. Returns the result, and how long the trial took if it finished.
fn time(model: &Model, settings: DecoderSettings, bound: Option<Duration>) -> (Trial, Option<Duration>) {
    match trial::run(model, settings, bound) {
        Ok((trial, took)) => (trial, Some(took)),
        Err(reason) => (Trial { settings, speed: Err(reason), quiet: true }, None),
    }
}

/// Often half of the logical cores is the number of physical ones.
fn fewer_threads(cpus: usize) -> Option<usize> {
    Some(cpus / 2).filter(|threads| *threads > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(kv: KvType, tokens_per_second: f64, quiet: bool) -> Trial {
        let speed = Speed { prompt: tokens_per_second, together: tokens_per_second, one: tokens_per_second };
        let settings = DecoderSettings { kv, attention: Attention::Own, products: Products::Own, threads: 2 };
        Trial { settings, speed: Ok(speed), quiet }
    }

    #[test]
    fn figures_from_a_busy_machine_decide_only_if_they_are_far_apart() {
        let chosen = |later: Trial| better(trial(KvType::F16, 100.0, true), later, &Work::ON_CPUS).settings.kv;
        assert_eq!(chosen(trial(KvType::Bf16, 110.0, true)), KvType::Bf16);
        assert_eq!(chosen(trial(KvType::Bf16, 101.0, true)), KvType::F16);
        assert_eq!(chosen(trial(KvType::Bf16, 110.0, false)), KvType::F16);
        assert_eq!(chosen(trial(KvType::Bf16, 150.0, false)), KvType::Bf16);
    }

    /// A tuning with a copy of the weights in the same folder.
    fn tuning(model: &Path, build: &str) -> Tuning {
        let options = Options { library_only: false, weights: WeightsChoice::Auto, gpus: None };
        let copy = Converted::of_test(&model.with_extension(format!("{build}.gguf")));
        let Trial { settings: choice, speed, quiet } = trial(KvType::F16, 1.0, true);
        Tuning {
            key: Key { build: build.into(), ..Key::new(model, options).unwrap() },
            quiet,
            choice,
            speed: speed.unwrap(),
            pieces: PIECES_NOT_TIMED,
            copy: Some(copy),
        }
    }

    #[test]
    fn copies_serve_later_builds_and_go_with_their_model() {
        let folder = tempfile::tempdir().unwrap();
        let models = ["one.gguf", "two.gguf"].map(|name| folder.path().join(name));
        models.iter().for_each(|model| fs::write(model, "weights").unwrap());
        let mut file = TuningFile::read(folder.path());
        for model in &models {
            file.store(tuning(model, "first")).unwrap();
        }
        let key = Key { build: "second".into(), ..tuning(&models[0], "other").key };
        assert!(file.find(&key).is_none());
        assert_eq!(file.copies(&key).count(), 1, "of the same file");

        fs::remove_file(&models[1]).unwrap();
        file.store(tuning(&models[0], "second")).unwrap();
        let exists = |name: &str| folder.path().join(name).exists();
        assert!(exists("one.second.gguf"));
        assert!(!exists("one.first.gguf"), "it is superseded");
        assert!(!exists("two.first.gguf"), "its model is gone");
        assert_eq!(TuningFile::read(folder.path()).tunings.len(), 1);
    }
}
