//! The index's speed: indexes 100,000 passages with a Zipf-distributed vocabulary, searches for 2,000 questions, and
//! prints one line of JSON. Texts and questions are the same in every run. With the sentence encoder's file, passages and
//! questions have vectors.
//!
//! `cargo run --profile quick -p grounding --example index_bench -- [PASSAGES [ENCODER]]`

use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use fastrand::Rng;
use grounding::index::{AddOptions, Embedder, Index, Indexer, SentenceEncoder};

const QUESTIONS: usize = 2_000;
const PASSAGES_PER_DOCUMENT: usize = 10;
const VOCABULARY_SIZE: usize = 200_000;
const REAL_TEXT: &str = include_str!("../data/train-a.jsonl");

fn main() -> Result<(), Box<dyn Error>> {
    let passages: usize = std::env::args().nth(1).map_or(Ok(100_000), |n| n.parse())?;
    let encoder = std::env::args().nth(2).map(|file| SentenceEncoder::load(Path::new(&file))).transpose()?;
    let embedder = encoder.map(|encoder| Embedder::Sentences(Arc::new(encoder)));
    let folder = tempfile::tempdir()?;
    let (documents, index) = (folder.path().join("documents"), folder.path().join("index"));
    let vocabulary = Vocabulary::new();
    let mut rng = Rng::with_seed(7);
    write_documents(&documents, passages, &vocabulary, &mut rng)?;

    let indexer = Indexer::new(&index).with_embedder(embedder.clone());
    let start = Instant::now();
    let report = indexer.add(&documents, &AddOptions::default(), &mut |_| ())?;
    let seconds = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let again = indexer.add(&documents, &AddOptions::default(), &mut |_| ())?;
    let seconds_again = start.elapsed().as_secs_f64();
    assert_eq!(again.unchanged, report.added);

    let index_size = size(&index)?;
    let index = Index::open(&index)?.ok_or("there is no index")?;
    let questions: Vec<String> = (0..QUESTIONS).map(|_| vocabulary.question(&mut rng)).collect();
    let search = |question: &str| -> Result<bool, Box<dyn Error>> {
        let vector = embedder.as_ref().map(|embedder| embedder.question(question)).transpose()?;
        Ok(!index.search(question, vector.as_ref(), 5)?.is_empty())
    };
    // Warm-up, so that the files are in memory.
    for question in &questions[..100] {
        search(question)?;
    }
    let mut times = Vec::with_capacity(QUESTIONS);
    let mut answered = 0;
    for question in &questions {
        let start = Instant::now();
        answered += usize::from(search(question)?);
        times.push(start.elapsed().as_secs_f64() * 1000.0);
    }
    times.sort_by(f64::total_cmp);
    println!(
        "{{\"passages\": {}, \"seconds\": {seconds:.2}, \"passages_per_second\": {:.0}, \"seconds_unchanged\": \
         {seconds_again:.2}, \"questions\": {QUESTIONS}, \"answered\": {answered}, \"p50_ms\": {:.2}, \"p99_ms\": {:.2}, \
         \"max_ms\": {:.2}, \"bytes_on_disk\": {index_size}}}",
        report.passages,
        report.passages as f64 / seconds,
        times[QUESTIONS / 2],
        times[QUESTIONS * 99 / 100],
        times[QUESTIONS - 1],
    );
    Ok(())
}

/// Words in order of frequency: the n-th is about n times as rare as the first.
struct Vocabulary {
    words: Vec<String>,
    /// Cumulative frequencies.
    cumulative: Vec<f64>,
}

impl Vocabulary {
    fn new() -> Self {
        const STOPWORDS: [&str; 20] = [
            "the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "was", "with", "as", "on", "be", "by",
            "at", "this", "from", "are",
        ];
        const SYLLABLES: [&str; 24] = [
            "ka", "lo", "mi", "ter", "ing", "pra", "sel", "von", "du", "re", "cor", "ti", "an", "est", "bo", "gra",
            "ly", "men", "os", "pu", "qui", "sha", "wer", "zen",
        ];
        // The commonest words are real, because the encoder splits others into many parts.
        let mut real: Vec<&str> =
            REAL_TEXT.split(|c: char| !c.is_ascii_lowercase()).filter(|word| word.len() > 3).collect();
        real.sort_unstable();
        real.dedup();
        Rng::with_seed(3).shuffle(&mut real);
        let common = [&STOPWORDS, &*real].concat();
        let word = |n: usize| match common.get(n) {
            Some(word) => (*word).to_owned(),
            None => {
                // Writes the number in syllables, so that words are distinct.
                let (mut rest, mut word) = (n, String::new());
                while rest > 0 {
                    word.push_str(SYLLABLES[rest % SYLLABLES.len()]);
                    rest /= SYLLABLES.len();
                }
                word
            }
        };
        let words: Vec<String> = (0..VOCABULARY_SIZE).map(word).collect();
        let mut sum = 0.0;
        let cumulative = (0..VOCABULARY_SIZE)
            .map(|n| {
                sum += 1.0 / (n as f64 + 2.7);
                sum
            })
            .collect();
        Self { words, cumulative }
    }

    fn word(&self, rng: &mut Rng) -> &str {
        let total = self.cumulative.last().copied().unwrap_or_default();
        let drawn = rng.f64() * total;
        &self.words[self.cumulative.partition_point(|sum| *sum < drawn).min(VOCABULARY_SIZE - 1)]
    }

    fn sentence(&self, words: usize, rng: &mut Rng) -> String {
        let words: Vec<&str> = (0..words).map(|_| self.word(rng)).collect();
        words.join(" ") + "."
    }

    /// Two to ten words: stop words, common words and rare words.
    fn question(&self, rng: &mut Rng) -> String {
        let words: Vec<&str> = (0..rng.usize(2..=10))
            .map(|_| match rng.u8(0..10) {
                0..4 => self.word(rng),
                4..7 => &self.words[rng.usize(20..2_000)],
                _ => &self.words[rng.usize(2_000..VOCABULARY_SIZE)],
            })
            .collect();
        words.join(" ") + "?"
    }
}

fn write_documents(
    folder: &Path,
    passages: usize,
    vocabulary: &Vocabulary,
    rng: &mut Rng,
) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(folder)?;
    let mut written = 0;
    while written < passages {
        let mut text = format!("# {}\n\n", vocabulary.sentence(4, rng));
        for _ in 0..PASSAGES_PER_DOCUMENT.min(passages - written) {
            text += &format!("## {}\n\n", vocabulary.sentence(3, rng));
            // Between 80 and 180 words.
            for _ in 0..rng.usize(2..=3) {
                for _ in 0..rng.usize(3..=4) {
                    text += &vocabulary.sentence(rng.usize(12..=16), rng);
                    text.push(' ');
                }
                text += "\n\n";
            }
            written += 1;
        }
        fs::write(folder.join(format!("{:05}.md", written / PASSAGES_PER_DOCUMENT)), text)?;
    }
    Ok(())
}

fn size(folder: &Path) -> Result<u64, Box<dyn Error>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.metadata()?.len())).sum()
}
