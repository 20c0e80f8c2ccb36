//! The scheduler with simulated cells, and without a language model.

use std::time::Duration;

use super::*;
use crate::cells::{Cells, digest_of};

const LIMITS: Limits = Limits {
    cells: 256,
    sequences: 16,
    max_running: 8,
    max_queued: 20,
    max_step_tokens: 64,
    pieces: Pieces { best: 64, smallest: 64 },
    seconds_per_prompt_token: 0.001,
    max_prefix_ttl: 64.0,
    seconds_per_hidden_cell: 1e-9,
    sharing: Sharing::Everyone,
    step_seconds: StepSeconds { first: 0.01, further: 0.001 },
};

/// A request whose completion ends after `ends_after` tokens, unless `max_tokens` comes first.
#[derive(Debug, Clone, PartialEq)]
struct Job {
    name: usize,
    text: Vec<Token>,
    ends_after: usize,
    disconnected: bool,
}

struct World {
    scheduler: Scheduler<Job>,
    cells: Cells,
    finished: Vec<(Job, FinishReason, usize)>,
    dropped: Vec<Job>,
    now: Instant,
}

impl World {
    fn new(limits: Limits) -> Self {
        Self {
            scheduler: Scheduler::new(limits),
            cells: Cells::default(),
            finished: Vec::new(),
            dropped: Vec::new(),
            now: Instant::now(),
        }
    }

    fn ask(&mut self, name: usize, tag: &str, prompt: Vec<Token>, max_tokens: usize, ends_after: usize) {
        let request = Request {
            payload: Job { name, text: prompt.clone(), ends_after, disconnected: false },
            prompt,
            max_tokens,
            tag: Tag::new(None, tag),
            deadline: self.now + Duration::from_secs(10),
        };
        if let Some(job) = self.scheduler.enqueue(request) {
            self.dropped.push(job);
        }
    }

    /// Runs one step and returns its batch.
    fn step(&mut self) -> Vec<BatchEntry> {
        let (ops, dropped) = self.scheduler.sweep(self.now, |job| job.disconnected);
        self.cells.apply(&ops);
        self.dropped.extend(dropped);
        let step = self.scheduler.plan();
        self.cells.apply(&step.ops);
        let digests: Vec<u64> =
            step.batch.iter().map(|entry| self.cells.compute(entry.sequence, entry.position, entry.token)).collect();
        let ops = self.scheduler.computed(&step.batch);
        self.cells.apply(&ops);
        for (entry, digest) in step.batch.iter().zip(digests).filter(|(entry, _)| entry.output) {
            if !self.scheduler.counts(entry) {
                continue;
            }
            let Some(job) = self.scheduler.payload_mut(entry.sequence) else { continue };
            assert_eq!(digest, digest_of(&job.text), "a token was computed after a different text");
            let token = job.text.len() as Token % 3;
            job.text.push(token);
            let end = job.ends_after == 0;
            job.ends_after = job.ends_after.saturating_sub(1);
            let (ops, finished) = self.scheduler.generated(entry.sequence, token, end);
            self.cells.apply(&ops);
            if let Some((finished, reason)) = finished {
                self.finished.push((finished.payload, reason, finished.generated));
            }
        }
        let occupancy = self.scheduler.occupancy();
        assert!(self.cells.used() <= occupancy.cells_used && occupancy.cells_used <= occupancy.cells);
        step.batch
    }

    fn run_to_the_end(&mut self) {
        for _ in 0..100_000 {
            if self.scheduler.is_idle() {
                return;
            }
            assert!(!self.step().is_empty(), "requests are queued or running, but the batch is empty");
        }
        panic!("the requests do not finish");
    }
}

#[test]
fn completions_end_by_an_end_token_or_by_max_tokens() {
    let mut world = World::new(LIMITS);
    world.ask(0, "a", vec![1; 5], 10, 3);
    world.ask(1, "a", vec![2; 5], 3, 10);
    world.ask(2, "a", vec![2; 5], 3, 2);
    world.run_to_the_end();
    let mut ends: Vec<_> = world.finished.iter().map(|(job, reason, tokens)| (job.name, *reason, *tokens)).collect();
    ends.sort_by_key(|end| end.0);
    assert_eq!(ends, [(0, FinishReason::Stop, 4), (1, FinishReason::Length, 3), (2, FinishReason::Stop, 3)]);
}

#[test]
fn a_long_prompt_never_stalls_other_requests() {
    let mut world = World::new(LIMITS);
    world.ask(0, "a", vec![1; 3], 60, 60);
    world.step();
    world.ask(1, "b", (0..150).collect(), 4, 4);
    let mut steps = 0;
    while world.finished.is_empty() && steps < 5 {
        let batch = world.step();
        let generating = batch[batch.len() - 1].sequence; // prompts come first
        assert_eq!(batch.iter().filter(|entry| entry.sequence == generating).count(), 1);
        assert!(batch.len() <= 1 + LIMITS.pieces.best);
        steps += 1;
    }
    assert_eq!(steps, 5, "the long prompt takes several steps");
}

/// A machine's seconds for each step, for each generated token, and for each prompt token.
#[derive(Clone, Copy)]
struct Machine {
    step: f64,
    generated: f64,
    prompt: f64,
    pieces: Pieces,
}

/// The 95th percentile of the time between two generated tokens, and prompt tokens per second, while long prompts arrive
/// without a pause.
fn gaps_and_speed(machine: Machine, generating: usize) -> (f64, f64) {
    const PROMPT: usize = 1500;
    let limits = Limits {
        cells: 1 << 20,
        sequences: 200,
        max_running: 100,
        max_queued: 200,
        max_step_tokens: 512,
        max_prefix_ttl: 1e6,
        seconds_per_hidden_cell: 1e-15,
        pieces: machine.pieces,
        seconds_per_prompt_token: machine.prompt,
        sharing: Sharing::Everyone,
        step_seconds: StepSeconds { first: machine.step + machine.generated, further: machine.generated },
    };
    let mut scheduler = Scheduler::new(limits);
    let ask = |scheduler: &mut Scheduler<bool>, is_long: bool, prompt: Vec<Token>, max_tokens: usize| {
        let (tag, deadline) = (Tag::new(None, if is_long { "a" } else { "b" }), Instant::now());
        assert!(scheduler.enqueue(Request { prompt, max_tokens, tag, deadline, payload: is_long }).is_none());
    };
    (0..generating).for_each(|name| ask(&mut scheduler, false, vec![name as Token], 5000));
    let (mut gaps, mut prompts, mut seconds) = (Vec::new(), 0, 0.0);
    for name in 1..=6 {
        ask(&mut scheduler, true, (0..PROMPT).map(|at| (at * 1000 + name * 100) as Token).collect(), 1);
        let mut is_over = false;
        while !is_over {
            let batch = scheduler.plan().batch;
            scheduler.computed(&batch);
            let outputs: Vec<_> = batch.iter().filter(|entry| entry.output).collect();
            let step = machine.step + outputs.len() as f64 * machine.generated;
            let took = step + (batch.len() - outputs.len()) as f64 * machine.prompt;
            gaps.extend(vec![took; generating]);
            (prompts, seconds) = (prompts + batch.len() - outputs.len(), seconds + took);
            for entry in outputs {
                // No token occurs twice, so there are no drafts.
                let token = entry.position as Token + 10_000_000;
                is_over |=
                    scheduler.generated(entry.sequence, token, false).1.is_some_and(|(finished, _)| finished.payload);
            }
        }
    }
    gaps.sort_by(f64::total_cmp);
    (gaps.get(gaps.len() * 95 / 100).copied().unwrap_or_default(), prompts as f64 / seconds)
}

/// With figures like those of the default model on two cores, and of models with one and with eight billion parameters.
#[test]
fn prompts_run_at_full_speed_alone_and_leave_short_gaps_between_generated_tokens() {
    let machines = [
        (
            "135M, 2 cores",
            Machine { step: 0.006, generated: 0.001, prompt: 0.0005, pieces: Pieces { best: 512, smallest: 64 } },
        ),
        (
            "1B, 16 cores",
            Machine { step: 0.010, generated: 0.001, prompt: 0.001, pieces: Pieces { best: 512, smallest: 64 } },
        ),
        (
            "8B, 16 cores",
            Machine { step: 0.060, generated: 0.005, prompt: 0.0053, pieces: Pieces { best: 64, smallest: 16 } },
        ),
        (
            "8B, 2 cores",
            Machine { step: 0.400, generated: 0.040, prompt: 0.050, pieces: Pieces { best: 16, smallest: 16 } },
        ),
    ];
    for (name, machine) in machines {
        let step = |generating: f64| machine.step + generating * machine.generated;
        for generating in [1, 8] {
            let (gap, speed) = gaps_and_speed(machine, generating);
            let alone = step(generating as f64);
            println!(
                "{name}, {generating} generate: p95 of gaps {gap:.2} s ({alone:.2} without prompts), {speed:.0} prompt tokens/s"
            );
            let smallest = machine.pieces.smallest as f64 * machine.prompt;
            assert!(gap <= alone + smallest.max(0.12).max(alone) + step(1.0), "{name}: a gap of {gap}");
            assert!(speed * machine.prompt >= 0.4, "{name}: prompts get {speed} tokens/s");
        }
        let (_, speed) = gaps_and_speed(machine, 0);
        let fastest = machine.pieces.best as f64 / (machine.step + machine.pieces.best as f64 * machine.prompt);
        println!("{name}, alone: {speed:.0} prompt tokens/s of {fastest:.0}");
        assert!(speed > 0.95 * fastest.min(1.0 / machine.prompt * 0.9), "{name}: {speed} of {fastest}");
    }
}

#[test]
fn a_completion_that_repeats_itself_takes_fewer_steps_beside_few_others() {
    let steps = |others: usize| {
        let mut world = World::new(Limits { cells: 4096, ..LIMITS });
        world.ask(0, "a", vec![1; 5], 60, 60);
        (1..=others).for_each(|name| world.ask(name, "b", (0..40).map(|at| at * 7 + name as Token).collect(), 60, 60));
        let mut steps = 0;
        while world.finished.is_empty() {
            assert!(world.step().len() <= LIMITS.max_step_tokens);
            steps += 1;
        }
        world.run_to_the_end();
        assert!(world.finished.iter().all(|(.., tokens)| *tokens == 60));
        steps
    };
    assert!(steps(0) < 25, "{} steps", steps(0));
    assert!(steps(7) > steps(0));
}

/// With the figures of a model with eight billion parameters on an H200.
#[test]
fn few_long_prompts_of_one_person_run_at_a_time_where_cells_are_expensive() {
    const TOKEN: f64 = 45e-6;
    const HIDDEN_CELL: f64 = 2.2e-9;
    let step_seconds = StepSeconds { first: 0.005, further: 0.0001 };
    let seconds = |prompt: Token, limited: bool| {
        let limits = Limits {
            cells: 65_536,
            sequences: 200,
            max_running: 128,
            max_step_tokens: 2048,
            pieces: Pieces { best: 2048, smallest: 64 },
            seconds_per_prompt_token: TOKEN,
            max_queued: 200,
            max_prefix_ttl: TOKEN / HIDDEN_CELL,
            seconds_per_hidden_cell: if limited { HIDDEN_CELL } else { 1e-15 },
            step_seconds,
            sharing: Sharing::Everyone,
        };
        let mut scheduler = Scheduler::new(limits);
        for name in 0..64 {
            let prompt = (0..prompt).map(|at| at * 64 + name).collect();
            let (tag, deadline) = (Tag::new(None, "a"), Instant::now());
            assert!(scheduler.enqueue(Request { prompt, max_tokens: 32, tag, deadline, payload: () }).is_none());
        }
        let (mut seconds, mut most) = (0.0, 0);
        while !scheduler.is_idle() {
            let batch = scheduler.plan().batch;
            most = most.max(scheduler.running.len());
            let outputs: Vec<_> = batch.iter().filter(|entry| entry.output).collect();
            seconds += step_seconds.first + outputs.len() as f64 * step_seconds.further;
            seconds += batch.len() as f64 * (TOKEN + HIDDEN_CELL * scheduler.occupancy().cells_used as f64);
            scheduler.computed(&batch);
            for entry in outputs {
                if scheduler.counts(entry) {
                    scheduler.generated(entry.sequence, entry.position as Token, false);
                }
            }
        }
        (seconds, most)
    };
    let (long, long_without) = (seconds(1500, true), seconds(1500, false));
    assert!(long.1 <= 12 && long_without.1 > 24, "{long:?} {long_without:?}");
    assert!(long.0 < long_without.0 * 0.65, "{long:?} {long_without:?}");
    let (short, short_without) = (seconds(50, true), seconds(50, false));
    assert!(short.1 == 64 && short.0 <= short_without.0 * 1.01, "{short:?} {short_without:?}");
}

#[test]
fn a_hundred_requests_of_one_tag_do_not_delay_another_tags_request() {
    let limits = Limits { max_queued: 200, cells: 4096, ..LIMITS };
    let mut world = World::new(limits);
    for name in 0..100 {
        world.ask(name, "greedy", vec![name as Token; 4], 50, 50);
    }
    for _ in 0..5 {
        world.step();
    }
    world.ask(1000, "modest", vec![7; 4], 2, 9);
    for _ in 0..3 {
        world.step();
    }
    assert_eq!(world.finished.iter().map(|(job, ..)| job.name).collect::<Vec<_>>(), [1000]);
}

/// Prompts were once computed in order of admission, regardless of the tag.
#[test]
fn a_short_prompt_does_not_wait_for_all_the_long_ones_of_another_tag() {
    let mut world = World::new(Limits { cells: 4096, ..LIMITS });
    for name in 0..5 {
        world.ask(name, "greedy", (0..500).map(|at| at * 10 + name as Token).collect(), 4, 4);
    }
    world.step();
    world.ask(1000, "modest", vec![7; 10], 1, 9);
    world.step();
    assert_eq!(world.finished.iter().map(|(job, ..)| job.name).collect::<Vec<_>>(), [1000]);
}

#[test]
fn a_disconnected_client_frees_its_cells_within_one_step() {
    let mut world = World::new(LIMITS);
    world.ask(0, "a", vec![1; 50], 100, 100);
    world.step();
    world.step();
    let sequences: Vec<_> = world.scheduler.running.iter().map(|running| running.sequence).collect();
    world.scheduler.payload_mut(sequences[0]).unwrap().disconnected = true;
    let before = world.scheduler.occupancy();
    world.step();
    let after = world.scheduler.occupancy();
    assert_eq!((before.running, after.running), (1, 0));
    assert!(before.cells_used >= 150 && after.cells_used <= 52, "{before:?} {after:?}");
    assert!(matches!(&world.dropped[..], [Job { name: 0, disconnected: true, .. }]));
}

#[test]
fn the_queue_is_bounded_in_length_and_in_time() {
    let mut world = World::new(LIMITS);
    for name in 0..30 {
        world.ask(name, "a", vec![name as Token; 100], 100, 100);
    }
    assert_eq!(world.dropped.len(), 30 - LIMITS.max_queued);
    world.step();
    let rejected = world.dropped.len();
    world.now += Duration::from_secs(11);
    world.step();
    let late = world.dropped.len() - rejected;
    assert_eq!(late + world.scheduler.occupancy().running, LIMITS.max_queued);
}

#[test]
fn every_request_finishes_or_is_dropped_under_random_traffic() {
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut world = World::new(Limits { cells: random.usize(80..400), max_running: random.usize(1..12), ..LIMITS });
        let mut asked = 0;
        for _ in 0..400 {
            if random.u8(0..3) == 0 {
                let prefix = vec![random.i32(0..2); random.usize(0..30)];
                let prompt: Vec<_> =
                    prefix.into_iter().chain((0..random.usize(1..20)).map(|_| random.i32(0..3))).collect();
                let tag = ["a", "b", "c"][random.usize(0..3)];
                world.ask(asked, tag, prompt, random.usize(1..20), random.usize(0..30));
                asked += 1;
            }
            if random.u8(0..10) == 0 {
                let running: Vec<_> = world.scheduler.running.iter().map(|running| running.sequence).collect();
                if let Some(sequence) = random.choice(running) {
                    world.scheduler.payload_mut(sequence).unwrap().disconnected = true;
                }
            }
            world.step();
        }
        world.run_to_the_end();
        assert_eq!(world.finished.len() + world.dropped.len(), asked, "no request is lost");
    }
}
