//! The vectors of all passages, in memory. A question is compared with the beginning of every one of them, which lie side by
//! side, and with the whole of those that are closest.

use std::sync::Arc;

use tantivy::index::SegmentId;
use tantivy::{DocAddress, DocId, Searcher, SegmentReader};

use super::embedding::Vector;
use super::schema::VECTOR;

/// Of one state of the index.
#[derive(Default)]
pub(super) struct Vectors(Vec<Arc<SegmentVectors>>);

/// A segment never changes, but passages in it can be deleted.
struct SegmentVectors {
    segment: SegmentId,
    /// The first numbers of each vector, and its length; no numbers for passages without one.
    beginnings: Vec<(Beginning, f32)>,
    /// By document; `None` for passages without a vector of this embedder.
    vectors: Vec<Option<(Vector, f32)>>,
}

/// A question's vector.
pub(super) struct Direction {
    vector: Vector,
    length: f32,
}

/// So many numbers tell far from near; the rest tells near from nearest.
type Beginning = [i8; 128];
/// How many of the passages that are closest by their beginnings are compared as a whole.
const COMPARED: usize = 1000;

impl Direction {
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

    /// Whether any passage has a vector.
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|segment| segment.vectors.iter().all(Option::is_none))
    }

    /// The passages that are closest to a question by the beginnings of their vectors.
    fn near(&self, searcher: &Searcher, question: &Direction) -> Vec<DocAddress> {
        let mut near = Vec::new();
        for ((ord, reader), segment) in (0..).zip(searcher.segment_readers()).zip(&self.0) {
            let with_dot = (0..).zip(&segment.beginnings).filter_map(|(doc, (beginning, length))| {
                let dot = question.vector.dot_beginning(beginning) as f32;
                (!reader.is_deleted(doc)).then(|| (Ordered(dot / length), DocAddress::new(ord, doc)))
            });
            near.extend(with_dot);
        }
        if near.len() > COMPARED {
            near.select_nth_unstable_by(COMPARED, |(one, _), (other, _)| other.cmp(one));
            near.truncate(COMPARED);
        }
        near.into_iter().map(|(_, address)| address).collect()
    }

    /// The passages that are closest to a question, the closest first.
    pub(super) fn nearest(&self, searcher: &Searcher, question: &Direction, limit: usize) -> Vec<(f32, DocAddress)> {
        let near = self.near(searcher, question).into_iter();
        let mut nearest: Vec<_> = near.filter_map(|address| Some((self.cosine(address, question)?, address))).collect();
        nearest.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        nearest.truncate(limit);
        nearest
    }

    /// `None` if the passage has no vector.
    pub(super) fn cosine(&self, address: DocAddress, question: &Direction) -> Option<f32> {
        let segment = self.0.get(address.segment_ord as usize)?;
        segment.vectors.get(address.doc_id as usize)?.as_ref().map(|vector| question.cosine(vector))
    }
}

impl SegmentVectors {
    fn load(reader: &SegmentReader) -> tantivy::Result<Self> {
        let mut vectors = vec![None; reader.max_doc() as usize];
        if let Some(column) = reader.fast_fields().bytes(VECTOR)? {
            let mut different = Vec::with_capacity(column.num_terms());
            let mut terms = column.dictionary().stream()?;
            while terms.advance() {
                different.push(Vector::from_bytes(terms.key()).map(|vector| (vector.length(), vector)));
            }
            for (doc, vector) in (0..).zip(&mut vectors) {
                let found = column.term_ords(doc as DocId).next().and_then(|ord| different.get(ord as usize));
                *vector = found.cloned().flatten().map(|(length, vector)| (vector, length));
            }
        }
        let beginning = |vector: &Option<(Vector, f32)>| match vector {
            Some((vector, length)) => (vector.beginning(), *length),
            None => ([0; _], 1.0),
        };
        Ok(Self { segment: reader.segment_id(), beginnings: vectors.iter().map(beginning).collect(), vectors })
    }
}

/// Cosines are never NaN.
#[derive(Clone, Copy, PartialEq)]
struct Ordered(f32);

impl Eq for Ordered {}

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
