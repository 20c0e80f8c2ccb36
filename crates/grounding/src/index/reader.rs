//! Searching. The ranking is BM25 over words and stems, then, among the best, those that hold more of what was asked.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, TryLockError};

use tantivy::collector::TopDocs;
use tantivy::query::{BooleanQuery, BoostQuery, Occur, Query, TermQuery};
use tantivy::schema::{Field, IndexRecordOption, Value};
use tantivy::{DocAddress, DocSet, IndexReader, ReloadPolicy, Searcher, TERMINATED, TantivyDocument, Term};

use super::panics::catch_panic;
use super::schema::{Fields, schema};
use super::terms::{Place, wanted};
use super::{IndexError, META};
use crate::Passage;

/// The rarest so many things of a question are looked for. More cost time and no longer change who is first.
const LOOKED_FOR: usize = 24;
/// So many of the best are looked at again.
const CANDIDATES: usize = 40;
/// The share of the best passage's score below which another is not worth telling: it would share a word or two with the
/// question, and lead a small model astray.
const WORTH_TELLING: f32 = 0.35;
/// How much of its score a passage keeps that holds nearly nothing of what was asked.
const LEAST_KEPT: f32 = 0.5;

/// An index that is open for searching. Cheap to keep, and shared by everyone who asks.
pub struct Index {
    reader: IndexReader,
    fields: Fields,
    meta: PathBuf,
    /// The commit that `reader` has loaded.
    loaded: Mutex<Commit>,
}

/// A commit, told from others by the file that it left.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Commit {
    inode: u64,
    modified: (i64, i64),
    size: u64,
}

/// Something that was asked for and is in the index.
struct Sought {
    /// What it says that a passage holds it.
    weight: f32,
    terms: Vec<(Term, f32)>,
}

impl Index {
    /// Opens the index in that folder. `None` if nothing was ever indexed there; nothing is created.
    pub fn open(folder: &Path) -> Result<Option<Self>, IndexError> {
        let Some(index) = super::open(folder)? else { return Ok(None) };
        let meta = folder.join(META);
        // Before it is loaded: a commit in between is loaded once more, none is missed.
        let commit = Commit::of(&meta)?;
        let reader = catch_panic(|| index.reader_builder().reload_policy(ReloadPolicy::Manual).try_into())?
            .map_err(IndexError::reading)?;
        Ok(Some(Self { reader, fields: schema().1, meta, loaded: Mutex::new(commit) }))
    }

    /// Is there nothing to be found?
    pub fn is_empty(&self) -> Result<bool, IndexError> {
        Ok(self.searcher()?.num_docs() == 0)
    }

    /// The passages that answer best, the best first. The question is text, and nothing in it is an operator.
    pub fn search(&self, question: &str, limit: usize) -> Result<Vec<Passage>, IndexError> {
        let searcher = self.searcher()?;
        catch_panic(|| self.search_in(&searcher, question, limit))?.map_err(IndexError::reading)
    }

    fn search_in(&self, searcher: &Searcher, question: &str, limit: usize) -> tantivy::Result<Vec<Passage>> {
        let sought = self.sought(searcher, question)?;
        if sought.is_empty() || limit == 0 {
            return Ok(Vec::new());
        }
        let candidates = TopDocs::with_limit(limit.max(CANDIDATES)).order_by_score();
        let mut found = searcher.search(&query(&sought), &candidates)?;
        rank(searcher, &sought, &mut found)?;
        let best = found.first().map_or(0.0, |(score, _)| *score);
        found.retain(|(score, _)| *score >= best * WORTH_TELLING);
        found.truncate(limit);
        found.into_iter().map(|(_, address)| self.passage(searcher.doc(address)?)).collect()
    }

    /// What is asked for and there, the rarest of it.
    fn sought(&self, searcher: &Searcher, question: &str) -> tantivy::Result<Vec<Sought>> {
        let passages = searcher.num_docs() as f32;
        let mut all = Vec::new();
        for wanted in wanted(question) {
            let (mut terms, mut most, mut worth) = (Vec::new(), 0, 0.0_f32);
            for form in wanted.forms {
                let term = Term::from_field_text(self.field(form.place), &form.term);
                let holding = searcher.doc_freq(&term)?;
                if holding > 0 {
                    terms.push((term, form.worth));
                    most = most.max(holding);
                    worth = worth.max(form.worth);
                }
            }
            if !terms.is_empty() {
                let holding = most as f32;
                let rarity = (1.0 + (passages - holding + 0.5).max(0.0) / (holding + 0.5)).ln();
                all.push(Sought { weight: rarity * worth, terms });
            }
        }
        all.sort_by(|one, other| other.weight.total_cmp(&one.weight));
        all.truncate(LOOKED_FOR);
        Ok(all)
    }

    fn field(&self, place: Place) -> Field {
        match place {
            Place::Words => self.fields.words,
            Place::Stems => self.fields.stems,
        }
    }

    fn passage(&self, stored: TantivyDocument) -> tantivy::Result<Passage> {
        let text = |field| stored.get_first(field).and_then(|value| value.as_str()).unwrap_or_default();
        let heading = text(self.fields.heading);
        Ok(Passage {
            title: text(self.fields.title).to_owned(),
            url: text(self.fields.url).to_owned(),
            // What a passage is about often stands in its heading alone.
            text: match heading {
                "" => text(self.fields.text).to_owned(),
                heading => format!("{heading}\n{}", text(self.fields.text)),
            },
            date: text(self.fields.date).parse().ok(),
        })
    }

    /// The newest commit. Looks at one file's metadata each time, which takes a microsecond and needs no thread.
    fn searcher(&self) -> Result<Searcher, IndexError> {
        let mut loaded = match self.loaded.try_lock() {
            Ok(loaded) => loaded,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Somebody is loading the newest; until then, the one before is good enough.
            Err(TryLockError::WouldBlock) => return Ok(self.reader.searcher()),
        };
        let newest = Commit::of(&self.meta)?;
        if newest != *loaded {
            catch_panic(|| self.reader.reload())?.map_err(IndexError::reading)?;
            *loaded = newest;
        }
        Ok(self.reader.searcher())
    }
}

impl Commit {
    fn of(meta: &Path) -> Result<Self, IndexError> {
        let metadata = fs::metadata(meta).map_err(|error| IndexError::Unreadable(error.to_string()))?;
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        Ok(Self { inode: metadata.ino(), modified, size: metadata.size() })
    }
}

/// Any of the terms. Flat on purpose: a union of nothing but terms is what Tantivy skips through quickly.
fn query(sought: &[Sought]) -> BooleanQuery {
    let clause = |(term, worth): &(Term, f32)| -> (Occur, Box<dyn Query>) {
        let term = TermQuery::new(term.clone(), IndexRecordOption::WithFreqs);
        (Occur::Should, Box::new(BoostQuery::new(Box::new(term), *worth)))
    };
    BooleanQuery::new(sought.iter().flat_map(|sought| &sought.terms).map(clause).collect())
}

/// Lowers the score of what holds only a part of what was asked, and sorts anew: often saying one word is worth less
/// than saying all of them.
fn rank(searcher: &Searcher, sought: &[Sought], found: &mut [(f32, DocAddress)]) -> tantivy::Result<()> {
    let whole: f32 = sought.iter().map(|sought| sought.weight).sum();
    found.sort_unstable_by_key(|(_, address)| *address);
    let mut held = vec![0.0_f32; found.len()];
    let mut start = 0;
    for segment in found.chunk_by(|(_, one), (_, other)| one.segment_ord == other.segment_ord) {
        let Some((_, first)) = segment.first() else { continue };
        let reader = searcher.segment_reader(first.segment_ord);
        for sought in sought {
            let mut holds = vec![false; segment.len()];
            for (term, _) in &sought.terms {
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
                *held += if holds { sought.weight } else { 0.0 };
            }
        }
        start += segment.len();
    }
    for ((score, _), held) in found.iter_mut().zip(held) {
        *score *= LEAST_KEPT + (1.0 - LEAST_KEPT) * held / whole.max(f32::MIN_POSITIVE);
    }
    found.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    Ok(())
}
