//! Searching: BM25 over words and stems; the best candidates are ranked again by how many of the query terms they hold.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use tantivy::collector::TopDocs;
use tantivy::query::{BooleanQuery, BoostQuery, Occur, Query, TermQuery};
use tantivy::schema::{Field, IndexRecordOption, Value};
use tantivy::{DocAddress, DocSet, IndexReader, ReloadPolicy, Searcher, TERMINATED, TantivyDocument, Term};

use super::panics::catch_panic;
use super::schema::{Fields, schema};
use super::terms::{TermField, query_terms};
use super::{IndexError, IndexId, META_FILE};
use crate::Passage;

/// The rarest terms of a question. More cost time and hardly change the ranking.
const MAX_QUERY_TERMS: usize = 24;
const RERANK_CANDIDATES: usize = 40;
/// Relative to the best passage's. One below it shares a word or two with the question and misleads a small model.
const MIN_RELATIVE_SCORE: f32 = 0.35;
/// The share of its score that a passage keeps when it holds hardly any query term.
const MIN_COVERAGE_FACTOR: f32 = 0.5;

/// An index that is open for searching. Shared by all threads.
pub struct Index {
    reader: IndexReader,
    fields: Fields,
    meta: PathBuf,
    /// The commit that `reader` has loaded.
    loaded: Mutex<Commit>,
    id: Mutex<IndexId>,
}

/// Identifies a commit by the metadata of its file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Commit {
    inode: u64,
    modified: (i64, i64),
    size: u64,
}

/// A query term that is in the index.
struct WeightedTerm {
    /// How much a passage with it gains in the ranking.
    weight: f32,
    terms: Vec<(Term, f32)>,
}

impl Index {
    /// `None` if nothing was ever indexed in that folder; creates nothing.
    pub fn open(folder: &Path) -> Result<Option<Self>, IndexError> {
        let meta = folder.join(META_FILE);
        // Read before loading: a commit in between is loaded twice rather than missed.
        let commit = Commit::read(&meta);
        let Some((index, catalogue)) = super::open(folder)? else { return Ok(None) };
        let reader = catch_panic(|| index.reader_builder().reload_policy(ReloadPolicy::Manual).try_into())?
            .map_err(IndexError::reading)?;
        let (loaded, id) = (Mutex::new(commit?), Mutex::new(catalogue.id));
        Ok(Some(Self { reader, fields: schema().1, meta, loaded, id }))
    }

    /// Of the newest commit: another index may have been put in its place.
    pub fn id(&self) -> Result<IndexId, IndexError> {
        self.searcher()?;
        Ok(self.id.lock().clone())
    }

    pub fn is_empty(&self) -> Result<bool, IndexError> {
        Ok(self.searcher()?.num_docs() == 0)
    }

    /// Best first. Nothing in the question is an operator.
    pub fn search(&self, question: &str, limit: usize) -> Result<Vec<Passage>, IndexError> {
        let searcher = self.searcher()?;
        catch_panic(|| self.search_in(&searcher, question, limit))?.map_err(IndexError::reading)
    }

    fn search_in(&self, searcher: &Searcher, question: &str, limit: usize) -> tantivy::Result<Vec<Passage>> {
        let terms = self.weighted_terms(searcher, question)?;
        if terms.is_empty() || limit == 0 {
            return Ok(Vec::new());
        }
        let candidates = TopDocs::with_limit(limit.max(RERANK_CANDIDATES)).order_by_score();
        let mut found = searcher.search(&query(&terms), &candidates)?;
        rerank(searcher, &terms, &mut found)?;
        let best = found.first().map_or(0.0, |(score, _)| *score);
        found.retain(|(score, _)| *score >= best * MIN_RELATIVE_SCORE);
        found.truncate(limit);
        found.into_iter().map(|(_, address)| self.passage(searcher.doc(address)?)).collect()
    }

    /// The rarest terms of the question that are in the index.
    fn weighted_terms(&self, searcher: &Searcher, question: &str) -> tantivy::Result<Vec<WeightedTerm>> {
        let passages = searcher.num_docs() as f32;
        let mut all = Vec::new();
        for query_term in query_terms(question) {
            let (mut terms, mut max_frequency, mut max_weight) = (Vec::new(), 0, 0.0_f32);
            for form in query_term.forms {
                let term = Term::from_field_text(self.field(form.field), &form.term);
                let frequency = searcher.doc_freq(&term)?;
                if frequency > 0 {
                    terms.push((term, form.weight));
                    max_frequency = max_frequency.max(frequency);
                    max_weight = max_weight.max(form.weight);
                }
            }
            if !terms.is_empty() {
                let frequency = max_frequency as f32;
                let idf = (1.0 + (passages - frequency + 0.5).max(0.0) / (frequency + 0.5)).ln();
                all.push(WeightedTerm { weight: idf * max_weight, terms });
            }
        }
        all.sort_by(|one, other| other.weight.total_cmp(&one.weight));
        all.truncate(MAX_QUERY_TERMS);
        Ok(all)
    }

    fn field(&self, field: TermField) -> Field {
        match field {
            TermField::Words => self.fields.words,
            TermField::Stems => self.fields.stems,
        }
    }

    fn passage(&self, stored: TantivyDocument) -> tantivy::Result<Passage> {
        let text = |field| stored.get_first(field).and_then(|value| value.as_str()).unwrap_or_default();
        let heading = text(self.fields.heading);
        Ok(Passage {
            title: text(self.fields.title).to_owned(),
            url: text(self.fields.url).to_owned(),
            // Often only the heading says what a passage is about.
            text: match heading {
                "" => text(self.fields.text).to_owned(),
                heading => format!("{heading}\n{}", text(self.fields.text)),
            },
            date: text(self.fields.date).parse().ok(),
        })
    }

    /// Of the newest commit. Reads one file's metadata each time: a microsecond, and no watching thread.
    fn searcher(&self) -> Result<Searcher, IndexError> {
        // While another thread loads the newest commit, the one before is good enough.
        let Some(mut loaded) = self.loaded.try_lock() else { return Ok(self.reader.searcher()) };
        let newest = Commit::read(&self.meta)?;
        if newest != *loaded {
            catch_panic(|| self.reader.reload())?.map_err(IndexError::reading)?;
            let catalogue = super::catalogue(self.reader.searcher().index())?.ok_or(IndexError::Gone)?;
            *self.id.lock() = catalogue.id;
            *loaded = newest;
        }
        Ok(self.reader.searcher())
    }
}

impl Commit {
    fn read(meta: &Path) -> Result<Self, IndexError> {
        let metadata = fs::metadata(meta).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => IndexError::Gone,
            _ => IndexError::Unreadable(error.to_string()),
        })?;
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        Ok(Self { inode: metadata.ino(), modified, size: metadata.size() })
    }
}

/// Any of the terms. Flat on purpose: Tantivy skips fast through a union of plain terms.
fn query(terms: &[WeightedTerm]) -> BooleanQuery {
    let clause = |(term, weight): &(Term, f32)| -> (Occur, Box<dyn Query>) {
        let term = TermQuery::new(term.clone(), IndexRecordOption::WithFreqs);
        (Occur::Should, Box::new(BoostQuery::new(Box::new(term), *weight)))
    };
    BooleanQuery::new(terms.iter().flat_map(|weighted| &weighted.terms).map(clause).collect())
}

/// Lowers the score of passages that hold only some of the terms, and sorts again: holding all of them counts more than
/// repeating one.
fn rerank(searcher: &Searcher, terms: &[WeightedTerm], found: &mut [(f32, DocAddress)]) -> tantivy::Result<()> {
    let total: f32 = terms.iter().map(|weighted| weighted.weight).sum();
    found.sort_unstable_by_key(|(_, address)| *address);
    let mut held = vec![0.0_f32; found.len()];
    let mut start = 0;
    for segment in found.chunk_by(|(_, one), (_, other)| one.segment_ord == other.segment_ord) {
        let Some((_, first)) = segment.first() else { continue };
        let reader = searcher.segment_reader(first.segment_ord);
        for weighted in terms {
            let mut holds = vec![false; segment.len()];
            for (term, _) in &weighted.terms {
                let inverted = reader.inverted_index(term.field())?;
                let Some(mut postings) = inverted.read_postings(term, IndexRecordOption::Basic)? else { continue };
                for ((_, address), holds) in segment.iter().zip(&mut holds) {
                    if postings.doc() < address.doc_id && postings.seek(address.doc_id) == TERMINATED {
                        break;
                    }
                    *holds |= postings.doc() == address.doc_id;
                }
            }
            for (holds, held) in holds.into_iter().zip(&mut held[start..]) {
                *held += if holds { weighted.weight } else { 0.0 };
            }
        }
        start += segment.len();
    }
    for ((score, _), held) in found.iter_mut().zip(held) {
        *score *= MIN_COVERAGE_FACTOR + (1.0 - MIN_COVERAGE_FACTOR) * held / total.max(f32::MIN_POSITIVE);
    }
    found.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    Ok(())
}
