//! A mutational fuzzer that runs inside unit tests, so that it can test private functions. On stable Rust, with nothing to
//! install: a short run is an ordinary test, and `make fuzz` runs the same targets for longer and with new seeds.
//!
//! A target is a corpus of real inputs and a property, which asserts what must hold and returns the shape of the result.
//! Inputs with a new shape are kept and mutated further: shapes guide the search in place of coverage. A failing input is
//! minimised and printed with the commands that repeat it.
//!
//! Faults found: the cleaning of search results took quadratic time (`linear`), and `next=/%09/evil.example` redirected
//! away from the console.

mod growth;
mod mutation;
mod smaller;

use std::cell::Cell;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;
use std::time::{Duration, Instant};

use fastrand::Rng;

/// The duration of a target in an ordinary test run; `FUZZ_SECONDS` overrides it.
const DEFAULT_RUN: Duration = Duration::from_millis(800);
/// The same in every ordinary run, so that a failure is caused by a change of the code and not by chance.
const ORDINARY_SEED: u64 = 1;
/// The minimum, even on a slow machine.
const MIN_INPUTS: u64 = 100;
const MAX_KEPT: usize = 4096;
/// The limit for one input, with a margin for a loaded machine.
const MAX_TIME: Duration = Duration::from_secs(2);

/// A fuzz target.
pub struct Target {
    name: &'static str,
    corpus: Vec<Vec<u8>>,
    dictionary: Vec<Vec<u8>>,
    max_bytes: usize,
    max_time: Duration,
    linear: bool,
}

impl Target {
    pub fn new(name: &'static str) -> Self {
        let (corpus, dictionary) = (Vec::new(), Vec::new());
        Self { name, corpus, dictionary, max_bytes: 16 * 1024, max_time: MAX_TIME, linear: false }
    }

    /// Adds real inputs, and inputs that failed in the past.
    pub fn corpus(mut self, inputs: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Self {
        self.corpus.extend(inputs.into_iter().map(|input| input.as_ref().to_vec()));
        self
    }

    /// Adds words to insert into inputs: keywords, limits and other tokens with a meaning.
    pub fn dictionary(mut self, words: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Self {
        self.dictionary.extend(words.into_iter().map(|word| word.as_ref().to_vec()));
        self
    }

    pub fn max_bytes(self, max_bytes: usize) -> Self {
        Self { max_bytes, ..self }
    }

    /// Sets the time limit, for code that has a limit itself.
    pub fn max_time(self, max_time: Duration) -> Self {
        Self { max_time, ..self }
    }

    /// Requires linear time: eight times the input may take about 8 times as long, not 64 times.
    pub fn linear(self) -> Self {
        Self { linear: true, ..self }
    }

    /// Runs on text: invalid UTF-8 is replaced.
    pub fn run_text<H: Hash>(self, property: impl Fn(&str) -> H) {
        self.run(|bytes| property(&String::from_utf8_lossy(bytes)));
    }

    /// Panics with the smallest failing input that was found.
    pub fn run<H: Hash>(self, property: impl Fn(&[u8]) -> H) {
        let check = |input: &[u8]| run_once(&property, input);
        if let Some(input) = std::env::var("FUZZ_INPUT").ok().and_then(|hex| from_hex(&hex)) {
            property(&input);
            return;
        }
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let seconds = number("FUZZ_SECONDS");
        let run = seconds.map_or(DEFAULT_RUN, Duration::from_secs);
        let seed = number("TEST_SEED").unwrap_or_else(|| seconds.map_or(ORDINARY_SEED, |_| fastrand::u64(..)));
        let mut search = Search { rng: Rng::with_seed(seed), shapes: HashSet::new(), kept: Vec::new() };
        let (began, mut inputs) = (Instant::now(), 0_u64);
        let corpus: Vec<_> = self.corpus.iter().filter(|input| input.len() <= self.max_bytes).cloned().collect();
        assert!(!corpus.is_empty(), "{}: no input of the corpus is small enough", self.name);
        for word in self.dictionary.iter().filter(|_| self.linear) {
            self.judge_growth(word, check, seed);
        }
        for input in &corpus {
            self.judge(input, check, &mut search, seed);
            inputs += 1;
        }
        // The whole corpus is kept, also inputs with equal shapes.
        search.kept.extend(corpus);
        while began.elapsed() < run || inputs < MIN_INPUTS {
            let input = search.mutate(&self);
            let is_new = self.judge(&input, check, &mut search, seed);
            inputs += 1;
            if self.linear && (is_new || inputs.is_multiple_of(64)) {
                let piece = growth::piece(&input, &self.dictionary, &mut search.rng);
                self.judge_growth(&piece, check, seed);
            }
        }
        println!(
            "fuzz {}: {inputs} inputs in {:.1} s, {} shapes, TEST_SEED={seed}",
            self.name,
            began.elapsed().as_secs_f64(),
            search.shapes.len()
        );
    }

    /// Returns whether the input has a new shape.
    fn judge(&self, input: &[u8], check: impl Fn(&[u8]) -> Outcome, search: &mut Search, seed: u64) -> bool {
        let began = Instant::now();
        let outcome = check(input);
        // Another process may have used the processor: an input is slow only if it is slow every time.
        let is_slow = |input: &[u8]| {
            let slow = || {
                let began = Instant::now();
                check(input);
                began.elapsed() > self.max_time
            };
            slow() && slow()
        };
        match outcome {
            Outcome::Failed(_) => {
                let input = smaller::smallest(input, |input| matches!(check(input), Outcome::Failed(_)));
                let Outcome::Failed(message) = check(&input) else { panic!("{}: fails only sometimes", self.name) };
                self.report(&input, &message, seed)
            }
            Outcome::Shape(_) if began.elapsed() > self.max_time && is_slow(input) => {
                self.report(input, &format!("it takes longer than {:?}", self.max_time), seed)
            }
            Outcome::Shape(shape) => {
                let is_new = search.shapes.insert(shape);
                if is_new && search.kept.len() < MAX_KEPT {
                    search.kept.push(input.to_vec());
                }
                is_new
            }
        }
    }

    fn judge_growth(&self, piece: &[u8], check: impl Fn(&[u8]) -> Outcome, seed: u64) {
        if let Some(measured) = growth::superlinear(piece, self.max_bytes, |input| drop(check(input))) {
            self.report(piece, &format!("repeated, it takes more than linear time: {measured}"), seed);
        }
    }

    fn report(&self, input: &[u8], message: &str, seed: u64) -> ! {
        panic!(
            "{}: {message}\nthe smallest input found, {} bytes: b\"{}\"\nrepeat it with FUZZ_INPUT={}, the run with TEST_SEED={seed}",
            self.name,
            input.len(),
            input.escape_ascii(),
            to_hex(input),
        )
    }
}

struct Search {
    rng: Rng,
    shapes: HashSet<u64>,
    kept: Vec<Vec<u8>>,
}

impl Search {
    fn mutate(&mut self, target: &Target) -> Vec<u8> {
        // Half of the time, one of the newest.
        let newest = self.kept.len().saturating_sub(16);
        let at =
            if self.rng.bool() { self.rng.usize(newest..self.kept.len()) } else { self.rng.usize(..self.kept.len()) };
        let other = self.rng.usize(..self.kept.len());
        let mut input = self.kept[at].clone();
        for _ in 0..self.rng.usize(1..=5) {
            mutation::mutate(&mut input, &self.kept[other], &target.dictionary, &mut self.rng);
            input.truncate(target.max_bytes);
        }
        input
    }
}

enum Outcome {
    Shape(u64),
    Failed(String),
}

thread_local! {
    static IS_SILENCED: Cell<bool> = const { Cell::new(false) };
}

fn run_once<H: Hash>(property: impl Fn(&[u8]) -> H, input: &[u8]) -> Outcome {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_SILENCED.get() {
                before(panic);
            }
        }));
    });
    let outer = IS_SILENCED.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut hasher = DefaultHasher::new();
        property(input).hash(&mut hasher);
        hasher.finish()
    }));
    IS_SILENCED.set(outer);
    match outcome {
        Ok(shape) => Outcome::Shape(shape),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            Outcome::Failed(text.unwrap_or("it panics").chars().take(2_000).collect())
        }
    }
}

/// A size as a shape, in powers of two, because exact sizes would nearly all be new.
pub fn magnitude(size: usize) -> u32 {
    usize::BITS - size.leading_zeros()
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(hex: &str) -> Option<Vec<u8>> {
    hex.as_bytes().chunks(2).map(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(target: Target, property: impl Fn(&[u8]) -> usize) -> String {
        match catch_unwind(AssertUnwindSafe(|| target.run(property))) {
            Ok(()) => String::new(),
            Err(panic) => panic.downcast_ref::<String>().cloned().unwrap_or_default(),
        }
    }

    #[test]
    fn a_failing_input_is_found_and_minimised() {
        let target = Target::new("test").corpus(["a long harmless sentence about nothing"]).dictionary(["{{"]);
        let property = |input: &[u8]| {
            let at = input.windows(2).position(|two| two == b"{{");
            assert!(at.is_none_or(|at| !input[at..].contains(&b'n')), "braces");
            at.unwrap_or(usize::MAX)
        };
        let message = failure(target, property);
        assert!(message.contains("test: braces") && message.contains("3 bytes: b\"{{n\""), "{message}");
        assert!(message.contains("FUZZ_INPUT=7b7b6e") && message.contains("TEST_SEED="), "{message}");
    }

    #[test]
    fn quadratic_time_is_found_and_linear_time_is_not() {
        let linear = |input: &[u8]| input.iter().filter(|byte| **byte == std::hint::black_box(b'<')).count();
        assert_eq!(failure(Target::new("linear").corpus(["<b>x"]).linear(), linear), "");
        let quadratic = |input: &[u8]| (0..input.len()).map(|at| linear(&input[at..])).max().unwrap_or(0);
        let message = failure(Target::new("quadratic").corpus(["<b>x"]).max_bytes(6_000).linear(), quadratic);
        assert!(message.contains("more than linear time"), "{message}");
    }

    #[test]
    fn hexadecimal_round_trips() {
        assert_eq!(from_hex(&to_hex(b"\0\xffa")), Some(b"\0\xffa".to_vec()));
        assert_eq!(from_hex("zz"), None);
    }
}
