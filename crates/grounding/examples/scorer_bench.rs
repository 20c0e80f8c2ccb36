//! The scorer's time per request on one thread: over the labelled rows, and for the largest conversations. Prints one
//! line of JSON.

use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use chat::{Message, Role};
use grounding::scorer::{Scorer, load_labelled};

/// The best run of each row counts.
const RUNS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let scorer = Scorer::new();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("data");
    let mut rows = load_labelled(&data, "dev")?;
    rows.extend(load_labelled(&data, "train-")?);
    let mut best = vec![f64::MAX; rows.len()];
    let mut total = 0.0;
    for _ in 0..RUNS {
        for (row, best) in rows.iter().zip(&mut best) {
            let took = time(&scorer, &row.messages);
            total += took;
            *best = best.min(took);
        }
    }
    best.sort_by(f64::total_cmp);
    let worst = largest()?
        .iter()
        .map(|messages| (0..RUNS).map(|_| time(&scorer, messages)).fold(f64::MAX, f64::min))
        .fold(0.0, f64::max);
    #[expect(clippy::cast_precision_loss, reason = "thousands of rows")]
    let mean = total / (rows.len() * RUNS) as f64;
    println!(
        "{{\"rows\": {}, \"mean_us\": {mean:.1}, \"p50_us\": {:.1}, \"p99_us\": {:.1}, \"worst_case_us\": {worst:.1}}}",
        rows.len(),
        best[best.len() / 2],
        best[best.len() * 99 / 100],
    );
    Ok(())
}

/// Microseconds for one request.
fn time(scorer: &Scorer, messages: &[Message]) -> f64 {
    let started = Instant::now();
    black_box(scorer.score(black_box(messages)));
    started.elapsed().as_secs_f64() * 1e6
}

/// Conversations at the limits: of words, of characters, of punctuation.
fn largest() -> Result<Vec<Vec<Message>>, Box<dyn Error>> {
    let mut found = Vec::new();
    for content in [
        "Who was the mayor of Zagreb in 1995, and why? ",
        "東京の明日の天気を教えてください。",
        "Čovjek\n\nžaba: \"ž\" ",
        "a.",
        "(1) ",
    ] {
        for (messages, length) in [(20, 1_600), (3, 10_000)] {
            let content: String = content.chars().cycle().take(length).collect();
            let role = |index: usize| if index % 2 == messages % 2 { Role::Assistant } else { Role::User };
            let all: Result<Vec<_>, _> =
                (0..messages).map(|index| Message::new(role(index), content.clone())).collect();
            found.push(all?);
        }
    }
    Ok(found)
}
