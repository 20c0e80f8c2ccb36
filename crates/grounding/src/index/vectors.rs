//! The vectors of all passages, in memory. A question is compared with every one of them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
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
    /// By document; `None` for passages without a vector of this embedder.
    vectors: Vec<Option<(Vector, f32)>>,
}

/// A question's vector.
pub(super) struct Direction {
    vector: Vector,
    length: f32,
}

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

    /// The passages that are closest to a question, in any order.
    pub(super) fn nearest(&self, searcher: &Searcher, question: &Direction, limit: usize) -> Vec<(f32, DocAddress)> {
        let mut nearest: BinaryHeap<Reverse<(Ordered, DocAddress)>> = BinaryHeap::with_capacity(limit + 1);
        for ((ord, reader), segment) in (0..).zip(searcher.segment_readers()).zip(&self.0) {
            for (doc, vector) in (0..).zip(&segment.vectors) {
                let Some(vector) = vector else { continue };
                let cosine = Ordered(question.cosine(vector));
                let is_near =
                    nearest.len() < limit || nearest.peek().is_some_and(|Reverse((least, _))| cosine > *least);
                if is_near && !reader.is_deleted(doc) {
                    nearest.push(Reverse((cosine, DocAddress::new(ord, doc))));
                    if nearest.len() > limit {
                        nearest.pop();
                    }
                }
            }
        }
        nearest.into_iter().map(|Reverse((cosine, address))| (cosine.0, address)).collect()
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
        Ok(Self { segment: reader.segment_id(), vectors })
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
