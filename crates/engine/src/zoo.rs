//! Every answer equals that of the same request alone in a fresh context, regardless of concurrent requests. Tested with
//! tiny models of all families, and random schedules of shared prefixes, evictions and cancellations in small caches.
//!
//! `ZOO_SCHEDULES=1000 cargo test --profile quick -p engine zoo:: -- --nocapture` tries 1,000 for each family.

use std::time::Instant;

use fastrand::Rng;
use kernels::{Attention, Products, WeightsForm};
use testbed::zoo::{SPECIES, Species};

use crate::cache::{Sequence, Token};
use crate::drafts::StepSeconds;
use crate::model::{Decoder, Model, Shape, backend};
use crate::perplexity::perplexity;
use crate::queue::Tag;
use crate::scheduler::{BatchEntry, Limits, Pieces, Request, Scheduler, Sharing};
use crate::tuning::{DecoderSettings, KvType};

/// Logits that are closer than this count as equal: neighbours in a batch change how sums are rounded.
const TIE: f32 = 0.02;
/// With 8 bits such a difference may round a whole row differently. The logits here have a spread of about 30.
const TIE_OF_8_BITS: f32 = 0.2;
/// The maximum of answers in a hundred that ties may leave undecided.
const MAX_TIES: usize = 5;
const MAX_PERPLEXITY_DIFFERENCE: f64 = 0.02;

struct Schedule {
    limits: Limits,
    requests: Vec<Planned>,
}

struct Planned {
    prompt: Vec<Token>,
    max_tokens: usize,
    /// The step before which it arrives, and the one before which its client disconnects.
    arrives: usize,
    leaves: Option<usize>,
}

impl Schedule {
    fn random(random: &mut Rng) -> Self {
        let words = |random: &mut Rng, count: usize| -> Vec<Token> { (0..count).map(|_| random.i32(4..352)).collect() };
        let prefixes: Vec<_> = (0..random.usize(1..4))
            .map(|_| {
                let length = random.usize(1..150);
                words(random, length)
            })
            .collect();
        let mut known: Vec<Vec<Token>> = prefixes;
        let (mut requests, mut step) = (Vec::new(), 0);
        for _ in 0..random.usize(4..14) {
            let before = &known[random.usize(..known.len())];
            // Often the whole prompt, so that a request continues another one's.
            let kept = if random.bool() { before.len() } else { random.usize(..=before.len()) };
            let (before, own) = (before[..kept].to_vec(), random.usize(1..40));
            let prompt = [before, words(random, own)].concat();
            let prompt = prompt[prompt.len().saturating_sub(220)..].to_vec();
            known.push(prompt.clone());
            step += random.usize(..12);
            let leaves = (random.usize(..6) == 0).then(|| step + random.usize(..12));
            requests.push(Planned { prompt, max_tokens: random.usize(1..14), arrives: step, leaves });
        }
        let sequences = random.u16(2..10);
        let limits = Limits {
            cells: 256 * random.usize(1..3),
            sequences,
            max_running: random.usize(1..=usize::from(sequences)),
            max_queued: requests.len(),
            max_step_tokens: random.usize(1..100),
            pieces: Pieces { best: 100, smallest: [1, 16, 64][random.usize(..3)] },
            seconds_per_prompt_token: [1e-5, 1e-2][random.usize(..2)],
            max_prefix_ttl: [64.0, 1_000.0, 1e6][random.usize(..3)],
            seconds_per_hidden_cell: [1e-9, 1e-5][random.usize(..2)],
            sharing: [Sharing::Everyone, Sharing::Key][usize::from(random.usize(..5) == 0)],
            step_seconds: StepSeconds { first: 0.01, further: 0.0001 },
        };
        Self { limits, requests }
    }

    /// The answers; `None` for requests whose client disconnected.
    fn run(&self, model: &Model, settings: DecoderSettings) -> Vec<Option<Vec<Token>>> {
        let mut decoder = model.decoder(self.limits.shape(), settings).unwrap();
        let mut scheduler = Scheduler::new(self.limits);
        let now = Instant::now();
        let mut answers: Vec<Option<Vec<Token>>> = self.requests.iter().map(|_| Some(Vec::new())).collect();
        let last = self.requests.iter().map(|request| request.arrives).max().unwrap();
        for step in 0..10_000 {
            for (at, request) in self.requests.iter().enumerate().filter(|(_, request)| request.arrives == step) {
                let request = Request {
                    prompt: request.prompt.clone(),
                    max_tokens: request.max_tokens,
                    tag: Tag::new(None, &(at % 3).to_string()),
                    deadline: now + std::time::Duration::from_secs(3600),
                    payload: at,
                };
                assert!(scheduler.enqueue(request).is_none());
            }
            let has_left = |at: &usize| self.requests[*at].leaves.is_some_and(|leaves| leaves <= step);
            let (ops, dropped) = scheduler.sweep(now, has_left);
            dropped.into_iter().for_each(|at| answers[at] = None);
            decoder.apply(&ops).unwrap();
            let planned = scheduler.plan();
            decoder.apply(&planned.ops).unwrap();
            if planned.batch.is_empty() {
                assert!(scheduler.is_idle(), "a request waits without end");
                if step > last {
                    return answers;
                }
                continue;
            }
            decoder.decode(&planned.batch).unwrap();
            decoder.apply(&scheduler.computed(&planned.batch)).unwrap();
            for (at, entry) in planned.batch.iter().enumerate().filter(|(_, entry)| entry.output) {
                if !scheduler.counts(entry) {
                    continue;
                }
                let token = best(decoder.logits(at));
                let request = *scheduler.payload_mut(entry.sequence).unwrap();
                answers[request].as_mut().unwrap().push(token);
                let (ops, _) = scheduler.generated(entry.sequence, token, model.is_end(token));
                decoder.apply(&ops).unwrap();
            }
        }
        panic!("the schedule does not end");
    }
}

fn best(logits: &[f32]) -> Token {
    assert!(logits.iter().all(|logit| logit.is_finite()));
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
    best.0 as Token
}

/// How an answer compares to that of the same request alone.
#[derive(Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    /// The first token that differs is as good as the other one.
    Tie,
    Different,
}

fn compare(model: &Model, (settings, tie): (DecoderSettings, f32), request: &Planned, answer: &[Token]) -> Comparison {
    let shape = Shape { cells: 256, sequences: 1, step: 256 };
    let mut alone = Alone { decoder: model.decoder(shape, settings).unwrap(), position: 0 };
    let mut next = request.prompt.clone();
    for (at, token) in answer.iter().enumerate() {
        let logits = alone.logits(&next);
        let expected = best(logits);
        if expected != *token {
            let gap = logits[expected as usize] - logits[*token as usize];
            return if gap < tie { Comparison::Tie } else { Comparison::Different };
        }
        let ends = model.is_end(expected);
        if ends || at + 1 == request.max_tokens {
            return if at + 1 == answer.len() { Comparison::Equal } else { Comparison::Different };
        }
        next = vec![expected];
    }
    Comparison::Different
}

/// One sequence, alone in its context.
struct Alone<'a> {
    decoder: Decoder<'a>,
    position: usize,
}

impl Alone<'_> {
    /// The logits after these tokens.
    fn logits(&mut self, tokens: &[Token]) -> &[f32] {
        let end = self.position + tokens.len();
        let entries: Vec<_> = (self.position..)
            .zip(tokens)
            .map(|(position, token)| BatchEntry {
                token: *token,
                position,
                sequence: Sequence(0),
                output: position + 1 == end,
            })
            .collect();
        self.position = end;
        self.decoder.decode(&entries).unwrap();
        self.decoder.logits(tokens.len() - 1)
    }
}

#[derive(Default)]
struct Tally {
    answers: usize,
    ties: usize,
    different: usize,
}

impl Tally {
    fn from_runs(model: &Model, (settings, tie): (DecoderSettings, f32), schedules: u64) -> Self {
        let mut tally = Self::default();
        for seed in 0..schedules {
            let schedule = Schedule::random(&mut Rng::with_seed(seed));
            let answers = schedule.run(model, settings);
            for (request, answer) in schedule.requests.iter().zip(answers) {
                let Some(answer) = answer else { continue };
                tally.answers += 1;
                match compare(model, (settings, tie), request, &answer) {
                    Comparison::Equal => {}
                    Comparison::Tie => tally.ties += 1,
                    Comparison::Different => tally.different += 1,
                }
            }
        }
        tally
    }
}

/// A model with weights of 32 bits, which the library multiplies, and its copy with 8 bits.
fn load(species: Species) -> [Model; 2] {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    std::fs::write(&file, species.model(1).bytes()).unwrap();
    backend().unwrap();
    let with_8_bits = folder.path().join("8-bits.gguf");
    kernels::convert(&file, &with_8_bits, WeightsForm::Q8_0, 1).unwrap();
    [file, with_8_bits].map(|file| Model::load(&file, None, |_| ()).unwrap())
}

/// With f16 the library rounds its sums so much that there are too many ties.
const OWN: DecoderSettings =
    DecoderSettings { kv: KvType::F16, attention: Attention::Own, products: Products::Own, threads: 1 };
const OWN_IN_8_BITS: DecoderSettings = DecoderSettings { kv: KvType::Bf16, ..OWN };
const LIBRARY: DecoderSettings =
    DecoderSettings { kv: KvType::Bf16, attention: Attention::Library, products: Products::Library, threads: 1 };

/// One test for all, because the choice of attention is global to the process.
#[test]
fn an_answer_is_the_same_as_alone_for_every_family() {
    let schedules = std::env::var("ZOO_SCHEDULES").ok().map_or(8, |count| count.parse().unwrap());
    let text: String =
        (0..400).map(|word: usize| format!("{} ", ["a", "se", "The", "0e", "xyz"][word * 7 % 11 % 5])).collect();
    let mut failed = Vec::new();
    println!("family, window | schedules | answers | ties | different | nats per token, ours | the library's");
    for species in SPECIES.into_iter().filter(Species::is_causal) {
        let [model, with_8_bits] = load(species);
        let numbers = 2 * species.layers * species.kv_heads * species.head_size;
        assert_eq!(model.cell_bytes, 2 * numbers as usize, "{}", species.name);
        let perplexities = [&model, &with_8_bits]
            .map(|model| [OWN, LIBRARY].map(|settings| perplexity(model, settings, &text).unwrap()));
        let runs = [(&model, (OWN, TIE)), (&model, (LIBRARY, TIE)), (&with_8_bits, (OWN_IN_8_BITS, TIE_OF_8_BITS))];
        let tallies = runs.map(|(model, settings)| Tally::from_runs(model, settings, schedules));
        let sum = |count: fn(&Tally) -> usize| tallies.iter().map(count).sum::<usize>();
        let (answers, ties, different) =
            (sum(|tally| tally.answers), sum(|tally| tally.ties), sum(|tally| tally.different));
        let window = species.window.map_or("-".into(), |(window, _)| window.to_string());
        let [[own, library], _] = perplexities;
        let name = species.name;
        println!(
            "{name}, {window} | {} | {answers} | {ties} | {different} | {:.3} | {:.3}",
            3 * schedules,
            own.ln(),
            library.ln()
        );
        // In the library's cache (bf16) a number has a precision of 8 bits, in ours (f16) of 11.
        let is_as_good = |[own, library]: [f64; 2]| (own / library - 1.0).abs() < MAX_PERPLEXITY_DIFFERENCE;
        if different > 0 || ties * 100 > answers * MAX_TIES || !perplexities.into_iter().all(is_as_good) {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}
