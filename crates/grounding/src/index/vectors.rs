//! The vectors of all passages of a commit, in memory. A question is compared with a prefix of every one of them, which lie side
//! by side, and with the whole of those that are closest.

use std::sync::Arc;

use tantivy::index::SegmentId;
use tantivy::{DocAddress, DocId, Searcher, SegmentReader};

use super::embedding::Vector;
use super::schema::VECTOR;

/// Of one commit.
#[derive(Default)]
pub(super) struct Vectors(Vec<Arc<SegmentVectors>>);

/// A segment never changes, but passages in it can be deleted.
struct SegmentVectors {
    segment: SegmentId,
    /// By document, if any has one; `None` for passages without a vector of this embedder.
    vectors: Vec<Option<(Vector, f32)>>,
    /// The prefix of each vector, and the vector's length, which is 0 where there is none.
    prefixes: Vec<(Prefix, f32)>,
}

pub(super) struct QuestionVector {
    vector: Vector,
    length: f32,
}

type Prefix = [i8; 128];
/// How many of the passages that are closest by their prefixes are compared as a whole.
const PRESELECTED: usize = 1000;

impl QuestionVector {
    pub(super) fn new(numbers: &[f32]) -> Self {
        let vector = Vector::quantize(numbers);
        Self { length: vector.length(), vector }
    }

    fn cosine(&self, (vector, length): &(Vector, f32)) -> f32 {
        self.vector.dot(vector) as f32 / (self.length * length)
    }
}

impl Vectors {
    /// Takes those of segments that were there before from `earlier`.
    pub(super) fn load(searcher: &Searcher, earlier: &Self) -> tantivy::Result<Self> {
        let segments = searcher.segment_readers().iter().map(|reader| {
            let known = earlier.0.iter().find(|known| known.segment == reader.segment_id());
            known.map_or_else(|| SegmentVectors::load(reader).map(Arc::new), |known| Ok(known.clone()))
        });
        Ok(Self(segments.collect::<tantivy::Result<_>>()?))
    }

    /// Whether no passage has a vector.
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|segment| segment.vectors.is_empty())
    }

    /// The passages that are closest to a question, the closest first. The searcher must be of the same commit.
    pub(super) fn nearest(
        &self,
        searcher: &Searcher,
        question: &QuestionVector,
        limit: usize,
    ) -> Vec<(f32, DocAddress)> {
        let preselected = self.preselect(searcher, question).into_iter();
        let mut nearest: Vec<_> =
            preselected.filter_map(|address| Some((self.cosine(address, question)?, address))).collect();
        nearest.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        nearest.truncate(limit);
        nearest
    }

    /// `None` if the passage has no vector.
    pub(super) fn cosine(&self, address: DocAddress, question: &QuestionVector) -> Option<f32> {
        let segment = self.0.get(address.segment_ord as usize)?;
        segment.vectors.get(address.doc_id as usize)?.as_ref().map(|vector| question.cosine(vector))
    }

    fn preselect(&self, searcher: &Searcher, question: &QuestionVector) -> Vec<DocAddress> {
        let mut near = Vec::new();
        for ((ord, reader), segment) in (0..).zip(searcher.segment_readers()).zip(&self.0) {
            for (doc, (prefix, length)) in (0..).zip(&segment.prefixes) {
                if *length > 0.0 && !reader.is_deleted(doc) {
                    near.push((question.vector.dot_prefix(prefix) as f32 / length, DocAddress::new(ord, doc)));
                }
            }
        }
        if near.len() > PRESELECTED {
            near.select_nth_unstable_by(PRESELECTED, |(one, _), (other, _)| other.total_cmp(one));
            near.truncate(PRESELECTED);
        }
        near.into_iter().map(|(_, address)| address).collect()
    }
}

impl SegmentVectors {
    fn load(reader: &SegmentReader) -> tantivy::Result<Self> {
        let segment = reader.segment_id();
        let Some(column) = reader.fast_fields().bytes(VECTOR)?.filter(|column| column.num_terms() > 0) else {
            return Ok(Self { segment, vectors: Vec::new(), prefixes: Vec::new() });
        };
        let mut distinct = Vec::with_capacity(column.num_terms());
        let mut terms = column.dictionary().stream()?;
        while terms.advance() {
            distinct.push(Vector::from_bytes(terms.key()).map(|vector| (vector.length(), vector)));
        }
        let of_doc = |doc: DocId| {
            let found = column.term_ords(doc).next().and_then(|ord| distinct.get(ord as usize));
            found.cloned().flatten().map(|(length, vector)| (vector, length))
        };
        let vectors: Vec<_> = (0..reader.max_doc()).map(of_doc).collect();
        let prefix = |vector: &Option<(Vector, f32)>| match vector {
            Some((vector, length)) => (vector.prefix(), *length),
            None => ([0; _], 0.0),
        };
        Ok(Self { segment, prefixes: vectors.iter().map(prefix).collect(), vectors })
    }
}
