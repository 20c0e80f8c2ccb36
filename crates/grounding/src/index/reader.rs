//! Search: BM25 over words and stems, with its best candidates reranked by the number of query terms in them; and the
//! passages whose vectors are closest to the question's. Both are ranked together.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tantivy::collector::{DocSetCollector, TopDocs};
use tantivy::query::{BooleanQuery, BoostQuery, Occur, Query, TermQuery};
use tantivy::schema::{Field, IndexRecordOption, Value};
use tantivy::{
    DocAddress, DocSet, IndexReader, ReloadPolicy, Searcher, SegmentReader, TERMINATED, TantivyDocument, TantivyError,
    Term,
};

use super::catalogue::{collection_id, file_term};
use super::embedding::{EmbedderId, QuestionVector};
use super::panics::catch_panic;
use super::schema::{Fields, VECTOR, schema};
use super::terms::{QueryTerm, TermField, query_terms};
use super::vectors::Vectors;
use super::{IndexError, IndexId, META_FILE};
use crate::Passage;

/// The rarest terms of a question. More terms cost time and hardly change the ranking.
const MAX_QUERY_TERMS: usize = 24;
/// Candidates by words, and as many by vectors.
const CANDIDATES: usize = 40;
/// Relative to the best passage's. A passage below this has a word or two of the question, and misleads a small model.
const MIN_RELATIVE_SCORE: f32 = 0.35;
/// The maximal distance to the score of the best passage, with words and vectors.
const MAX_DISTANCE: f32 = 0.2;
/// The fraction of its score that a passage with hardly any query term keeps.
const MIN_COVERAGE_FACTOR: f32 = 0.5;

/// An index that is open for searching. Shared by all threads.
pub struct Index {
    reader: IndexReader,
    fields: Fields,
    meta: PathBuf,
    newest: Mutex<Arc<Loaded>>,
    /// Held by the thread that loads a newer commit.
    loading: Mutex<()>,
}

/// The state of one commit. A search uses one state from beginning to end.
struct Loaded {
    commit: Commit,
    searcher: Searcher,
    id: IndexId,
    /// Loaded by the first search that needs them, and again for another embedder.
    vectors: Mutex<Option<Arc<Vectors>>>,
    /// The vectors of the previous commit, from which unchanged segments are taken.
    earlier: Option<Arc<Vectors>>,
}

/// A found passage.
#[derive(Debug, Clone, PartialEq)]
pub struct Hit {
    pub passage: Passage,
    /// Hits are sorted by it.
    pub score: f32,
    /// The score by words, relative to the best; 0 without any word of the question.
    pub words: f32,
    /// The fraction of the question's words that the passage has, by weight.
    pub coverage: f32,
    /// The cosine of its vector and the question's, if both have one.
    pub meaning: Option<f32>,
}

/// The place of a file in the ranking for a question.
#[derive(Debug, Clone, PartialEq)]
pub enum FileRank {
    /// The file is in no folder that was added.
    OutsideFolders,
    /// The folder was added, but the file has no passages: it is new, of another type, or was skipped.
    NotIndexed { folder: PathBuf },
    /// None of its passages is among the nearest; `meaning` is the best of their cosines.
    NotNear { passages: usize, meaning: Option<f32> },
    /// Its best passage, and the place of that, from 1.
    Ranked { place: usize, hit: Hit },
}

/// Identifies a commit by the metadata of its file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Commit {
    inode: u64,
    modified: (i64, i64),
    size: u64,
}

/// A passage that may become a hit, with a hit's scores.
struct Candidate {
    address: DocAddress,
    score: f32,
    words: WordsScore,
    meaning: Option<f32>,
}

/// A passage's score by words.
#[derive(Debug, Clone, Copy, Default)]
struct WordsScore {
    /// To the best passage's.
    relative: f32,
    coverage: f32,
}

impl Candidate {
    fn by_words((words, address): (WordsScore, DocAddress)) -> Self {
        Self { address, score: words.relative, words, meaning: None }
    }
}

/// A query term that is in the index.
struct WeightedTerm {
    /// The gain of a passage with this term in the ranking.
    weight: f32,
    terms: Vec<(Term, f32)>,
}

impl Index {
    /// `None` if nothing was ever indexed in this folder. Creates nothing.
    pub fn open(folder: &Path) -> Result<Option<Self>, IndexError> {
        let meta = folder.join(META_FILE);
        // Read before the index, so that a commit in between is loaded twice rather than missed.
        let commit = Commit::read(&meta);
        let Some((index, catalogue)) = super::open(folder)? else { return Ok(None) };
        let reader: IndexReader =
            catch_panic(|| index.reader_builder().reload_policy(ReloadPolicy::Manual).try_into())?
                .map_err(IndexError::reading)?;
        let loaded = Loaded {
            commit: commit?,
            searcher: reader.searcher(),
            id: catalogue.id,
            vectors: Mutex::default(),
            earlier: None,
        };
        Ok(Some(Self {
            reader,
            fields: schema().1,
            meta,
            newest: Mutex::new(Arc::new(loaded)),
            loading: Mutex::default(),
        }))
    }

    /// The id in the newest commit: the index may have been replaced.
    pub fn id(&self) -> Result<IndexId, IndexError> {
        Ok(self.loaded()?.id.clone())
    }

    pub fn is_empty(&self) -> Result<bool, IndexError> {
        Ok(self.loaded()?.searcher.num_docs() == 0)
    }

    /// Whether any passage has a vector, of any embedder.
    pub fn has_vectors(&self) -> Result<bool, IndexError> {
        let loaded = self.loaded()?;
        let has_any = |reader: &SegmentReader| -> tantivy::Result<bool> {
            Ok(reader.fast_fields().bytes(VECTOR)?.is_some_and(|column| column.num_terms() > 0))
        };
        let mut segments = loaded.searcher.segment_readers().iter();
        catch_panic(|| segments.try_fold(false, |any, reader| Ok(any || has_any(reader)?)))?
            .map_err(IndexError::reading)
    }

    /// Best first. The question has no operators. Without its vector, passages are found by words alone.
    pub fn search(
        &self,
        question: &str,
        vector: Option<&QuestionVector>,
        limit: usize,
    ) -> Result<Vec<Hit>, IndexError> {
        let loaded = self.loaded()?;
        let vectors = vector.map(|vector| loaded.vectors(vector.embedder)).transpose()?;
        let by_meaning = vectors.as_deref().filter(|vectors| !vectors.is_empty()).zip(vector);
        catch_panic(|| self.search_in(&loaded.searcher, question, by_meaning, limit))?.map_err(IndexError::reading)
    }

    fn search_in(
        &self,
        searcher: &Searcher,
        question: &str,
        by_meaning: Option<(&Vectors, &QuestionVector)>,
        limit: usize,
    ) -> tantivy::Result<Vec<Hit>> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let max_distance = if by_meaning.is_some() { MAX_DISTANCE } else { 1.0 - MIN_RELATIVE_SCORE };
        let mut found = self.candidates(searcher, question, by_meaning)?;
        let best = found.first().map_or(0.0, |candidate| candidate.score);
        found.retain(|candidate| candidate.score >= best - max_distance);
        found.truncate(limit);
        found.into_iter().map(|candidate| self.hit(searcher, candidate)).collect()
    }

    /// The nearest passages by words and by vectors, best first.
    fn candidates(
        &self,
        searcher: &Searcher,
        question: &str,
        by_meaning: Option<(&Vectors, &QuestionVector)>,
    ) -> tantivy::Result<Vec<Candidate>> {
        let by_words = self.search_words(searcher, question)?;
        let mut found = match by_meaning {
            Some((vectors, question)) => {
                let nearest = vectors.nearest(searcher, question, CANDIDATES);
                merge(&by_words, question.words_weight(), &nearest, |address| vectors.cosine(address, question))
            }
            None => by_words.into_iter().map(Candidate::by_words).collect(),
        };
        found.sort_by(|one, other| other.score.total_cmp(&one.score));
        Ok(found)
    }

    fn hit(&self, searcher: &Searcher, candidate: Candidate) -> tantivy::Result<Hit> {
        let Candidate { address, score, words, meaning } = candidate;
        let passage = self.passage(searcher.doc(address)?, score)?;
        Ok(Hit { passage, score, words: words.relative, coverage: words.coverage, meaning })
    }

    /// Where a file's best passage stands in the ranking for a question, whether it is a hit or not. `file` is absolute.
    pub fn rank(&self, file: &Path, question: &str, vector: Option<&QuestionVector>) -> Result<FileRank, IndexError> {
        let loaded = self.loaded()?;
        let searcher = &loaded.searcher;
        let collections = super::catalogue(searcher.index())?.ok_or(IndexError::Gone)?.collections;
        let Some(folder) = collections.into_iter().map(|each| each.folder).find(|folder| file.starts_with(folder))
        else {
            return Ok(FileRank::OutsideFolders);
        };
        let vectors = vector.map(|vector| loaded.vectors(vector.embedder)).transpose()?;
        let by_meaning = vectors.as_deref().filter(|vectors| !vectors.is_empty()).zip(vector);
        let term = file_term(&collection_id(&folder), file.strip_prefix(&folder).unwrap_or(file));
        let term = TermQuery::new(Term::from_field_text(self.fields.file, &term), IndexRecordOption::Basic);
        let ranked = || -> tantivy::Result<FileRank> {
            let passages = searcher.search(&term, &DocSetCollector)?;
            if passages.is_empty() {
                return Ok(FileRank::NotIndexed { folder });
            }
            let mut ranked = self.candidates(searcher, question, by_meaning)?;
            let Some(place) = ranked.iter().position(|candidate| passages.contains(&candidate.address)) else {
                let cosine = |address: &DocAddress| {
                    by_meaning.and_then(|(vectors, question)| vectors.cosine(*address, question))
                };
                let meaning = passages.iter().filter_map(cosine).max_by(f32::total_cmp);
                return Ok(FileRank::NotNear { passages: passages.len(), meaning });
            };
            Ok(FileRank::Ranked { place: place + 1, hit: self.hit(searcher, ranked.swap_remove(place))? })
        };
        catch_panic(ranked)?.map_err(IndexError::reading)
    }

    /// Best first.
    fn search_words(&self, searcher: &Searcher, question: &str) -> tantivy::Result<Vec<(WordsScore, DocAddress)>> {
        let (terms, total) = self.weighted_terms(searcher, question)?;
        if terms.is_empty() {
            return Ok(Vec::new());
        }
        let found = searcher.search(&query(&terms), &TopDocs::with_limit(CANDIDATES).order_by_score())?;
        let mut found = rerank(searcher, &terms, found)?;
        let best = found.first().map_or(1.0, |(words, _)| words.relative.max(f32::MIN_POSITIVE));
        for (words, _) in &mut found {
            *words = WordsScore { relative: words.relative / best, coverage: words.coverage / total };
        }
        Ok(found)
    }

    /// The rarest terms of the question that are in the index, and the weight of all terms.
    fn weighted_terms(&self, searcher: &Searcher, question: &str) -> tantivy::Result<(Vec<WeightedTerm>, f32)> {
        let (mut all, mut missing) = (Vec::new(), 0.0);
        for term in query_terms(question) {
            for split in &term.splits {
                if self.are_words(searcher, split)? {
                    for part in split {
                        all.extend(self.weighted(searcher, &QueryTerm::part(part))?);
                    }
                    break;
                }
            }
            match self.weighted(searcher, &term)? {
                Some(weighted) => all.push(weighted),
                None => missing += idf(searcher, 0) * term.forms.first().map_or(0.0, |form| form.weight),
            }
        }
        all.sort_by(|one, other| other.weight.total_cmp(&one.weight));
        all.truncate(MAX_QUERY_TERMS);
        let total = missing + all.iter().map(|term| term.weight).sum::<f32>();
        Ok((all, total.max(f32::MIN_POSITIVE)))
    }

    fn are_words(&self, searcher: &Searcher, stems: &[String]) -> tantivy::Result<bool> {
        for stem in stems {
            if searcher.doc_freq(&Term::from_field_text(self.fields.stems, stem))? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// `None` if the index has no form of it.
    fn weighted(&self, searcher: &Searcher, term: &QueryTerm) -> tantivy::Result<Option<WeightedTerm>> {
        let (mut terms, mut max_frequency, mut max_weight) = (Vec::new(), 0, 0.0_f32);
        for form in &term.forms {
            let term = Term::from_field_text(self.field(form.field), &form.term);
            let frequency = searcher.doc_freq(&term)?;
            if frequency > 0 {
                terms.push((term, form.weight));
                max_frequency = max_frequency.max(frequency);
                max_weight = max_weight.max(form.weight);
            }
        }
        let weight = idf(searcher, max_frequency) * max_weight;
        Ok((!terms.is_empty()).then_some(WeightedTerm { weight, terms }))
    }

    fn field(&self, field: TermField) -> Field {
        match field {
            TermField::Words => self.fields.words,
            TermField::Stems => self.fields.stems,
            TermField::Parts => self.fields.parts,
        }
    }

    fn passage(&self, stored: TantivyDocument, score: f32) -> tantivy::Result<Passage> {
        let json = stored.get_first(self.fields.passage).and_then(|value| value.as_str()).unwrap_or_default();
        let damaged = |_| TantivyError::InternalError("a stored passage is damaged".into());
        Ok(Passage { score: Some(score), ..serde_json::from_str(json).map_err(damaged)? })
    }

    /// The newest commit. Reads one file's metadata each time, which takes a microsecond and needs no watcher thread.
    fn loaded(&self) -> Result<Arc<Loaded>, IndexError> {
        // While another thread loads the newest commit, the previous one suffices.
        let Some(_loading) = self.loading.try_lock() else { return Ok(self.newest.lock().clone()) };
        let before = self.newest.lock().clone();
        let commit = Commit::read(&self.meta)?;
        if commit == before.commit {
            return Ok(before);
        }
        catch_panic(|| self.reader.reload())?.map_err(IndexError::reading)?;
        let searcher = self.reader.searcher();
        let id = super::catalogue(searcher.index())?.ok_or(IndexError::Gone)?.id;
        let earlier = before.vectors.lock().clone().or_else(|| before.earlier.clone());
        let newest = Arc::new(Loaded { commit, searcher, id, vectors: Mutex::default(), earlier });
        *self.newest.lock() = newest.clone();
        Ok(newest)
    }
}

impl Loaded {
    fn vectors(&self, embedder: EmbedderId) -> Result<Arc<Vectors>, IndexError> {
        let mut vectors = self.vectors.lock();
        if let Some(vectors) = vectors.as_ref().filter(|vectors| vectors.embedder() == embedder) {
            return Ok(vectors.clone());
        }
        let loaded = catch_panic(|| Vectors::load(&self.searcher, embedder, self.earlier.as_deref()))?;
        Ok(vectors.insert(Arc::new(loaded.map_err(IndexError::reading)?)).clone())
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

/// All passages that were found by words or by vectors, each once. A passage without a vector gets the lowest cosine of
/// the nearest ones.
fn merge(
    by_words: &[(WordsScore, DocAddress)],
    words_weight: f32,
    nearest: &[(f32, DocAddress)],
    cosine: impl Fn(DocAddress) -> Option<f32>,
) -> Vec<Candidate> {
    let farthest = nearest.last().map_or(0.0, |(cosine, _)| *cosine);
    let mut words: BTreeMap<DocAddress, WordsScore> =
        nearest.iter().map(|(_, address)| (*address, WordsScore::default())).collect();
    words.extend(by_words.iter().map(|(words, address)| (*address, *words)));
    let candidate = |(address, words): (DocAddress, WordsScore)| {
        let meaning = cosine(address);
        Candidate { address, score: meaning.unwrap_or(farthest) + words_weight * words.relative, words, meaning }
    };
    words.into_iter().map(candidate).collect()
}

/// How much a term tells that is in this number of passages.
fn idf(searcher: &Searcher, frequency: u64) -> f32 {
    let (passages, frequency) = (searcher.num_docs() as f32, frequency as f32);
    (1.0 + (passages - frequency + 0.5).max(0.0) / (frequency + 0.5)).ln()
}

/// Matches any of the terms. Flat, because Tantivy skips fast through a union of plain terms.
fn query(terms: &[WeightedTerm]) -> BooleanQuery {
    let clause = |(term, weight): &(Term, f32)| -> (Occur, Box<dyn Query>) {
        let term = TermQuery::new(term.clone(), IndexRecordOption::WithFreqs);
        (Occur::Should, Box::new(BoostQuery::new(Box::new(term), *weight)))
    };
    BooleanQuery::new(terms.iter().flat_map(|weighted| &weighted.terms).map(clause).collect())
}

/// Lowers the scores of passages with only some of the terms, and sorts again: all terms count more than repetitions of
/// one.
fn rerank(
    searcher: &Searcher,
    terms: &[WeightedTerm],
    mut found: Vec<(f32, DocAddress)>,
) -> tantivy::Result<Vec<(WordsScore, DocAddress)>> {
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
    let total = total.max(f32::MIN_POSITIVE);
    let factor = |held: f32| MIN_COVERAGE_FACTOR + (1.0 - MIN_COVERAGE_FACTOR) * held / total;
    let ranked = found.into_iter().zip(held);
    let ranked =
        ranked.map(|((score, address), held)| (WordsScore { relative: score * factor(held), coverage: held }, address));
    let mut ranked: Vec<_> = ranked.collect();
    ranked.sort_by(|(one, _), (other, _)| other.relative.total_cmp(&one.relative));
    Ok(ranked)
}
