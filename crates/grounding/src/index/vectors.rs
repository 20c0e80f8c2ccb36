//! The vectors of all passages of a commit, in memory. A question is compared with the prefixes of all vectors, which are
//! contiguous, and with the whole vectors of the closest ones.

use std::sync::Arc;

use tantivy::index::SegmentId;
use tantivy::{DocAddress, Searcher, SegmentReader};

use super::embedding::{EmbedderId, Prefix, QuestionVector, Vector};
use super::schema::VECTOR;

/// The vectors of one commit, by one embedder.
pub(super) struct Vectors {
    embedder: EmbedderId,
    segments: Vec<Arc<SegmentVectors>>,
}

/// A segment never changes, but passages in it can be deleted.
struct SegmentVectors {
    segment: SegmentId,
    dimensions: usize,
    /// The numbers of all vectors, by document; zeros for passages without a vector of this embedder. Empty if there are no
    /// vectors.
    numbers: Vec<i8>,
    /// The prefix and the length of each vector. The length is 0 for passages without a vector.
    prefixes: Vec<(Prefix, f32)>,
}

/// The number of passages, closest by prefix, whose whole vectors are compared.
const PRESELECTED: usize = 1000;

impl Vectors {
    /// Loads vectors, except for segments that are in `earlier`.
    pub(super) fn load(searcher: &Searcher, embedder: EmbedderId, earlier: Option<&Self>) -> tantivy::Result<Self> {
        let earlier =
            earlier.filter(|earlier| earlier.embedder == embedder).map_or(&[][..], |earlier| &earlier.segments);
        let segments = searcher.segment_readers().iter().map(|reader| {
            let known = earlier.iter().find(|known| known.segment == reader.segment_id());
            known.map_or_else(|| SegmentVectors::load(reader, embedder).map(Arc::new), |known| Ok(known.clone()))
        });
        Ok(Self { embedder, segments: segments.collect::<tantivy::Result<_>>()? })
    }

    pub(super) fn embedder(&self) -> EmbedderId {
        self.embedder
    }

    /// Whether no passage has a vector.
    pub(super) fn is_empty(&self) -> bool {
        self.segments.iter().all(|segment| segment.prefixes.is_empty())
    }

    /// The passages that are closest to a question, the closest first. The searcher must belong to the same commit.
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
        let segment = self.segments.get(address.segment_ord as usize)?;
        let at = address.doc_id as usize;
        let (_, length) = segment.prefixes.get(at).filter(|(_, length)| *length > 0.0)?;
        Some(question.cosine(&segment.numbers[at * segment.dimensions..][..segment.dimensions], *length))
    }

    fn preselect(&self, searcher: &Searcher, question: &QuestionVector) -> Vec<DocAddress> {
        let mut near = Vec::new();
        for ((ord, reader), segment) in (0..).zip(searcher.segment_readers()).zip(&self.segments) {
            let products = question.dot_prefixes(&segment.prefixes);
            for ((doc, product), (_, length)) in (0..).zip(products).zip(&segment.prefixes) {
                if *length > 0.0 && !reader.is_deleted(doc) {
                    near.push((product as f32 / length, DocAddress::new(ord, doc)));
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
    fn load(reader: &SegmentReader, embedder: EmbedderId) -> tantivy::Result<Self> {
        let segment = reader.segment_id();
        let mut loaded = Self { segment, dimensions: 0, numbers: Vec::new(), prefixes: Vec::new() };
        let Some(column) = reader.fast_fields().bytes(VECTOR)?.filter(|column| column.num_terms() > 0) else {
            return Ok(loaded);
        };
        let mut distinct = Vec::with_capacity(column.num_terms());
        let mut terms = column.dictionary().stream()?;
        while terms.advance() {
            distinct.push(Vector::from_bytes(terms.key(), embedder));
        }
        loaded.dimensions = distinct.iter().flatten().next().map_or(0, |vector| vector.numbers().len());
        if loaded.dimensions == 0 {
            return Ok(loaded);
        }
        for doc in 0..reader.max_doc() {
            let found = column.term_ords(doc).next().and_then(|ord| distinct.get(ord as usize)?.as_ref());
            let found = found.filter(|vector| vector.numbers().len() == loaded.dimensions);
            let end = loaded.numbers.len() + loaded.dimensions;
            loaded.numbers.extend(found.map_or(&[][..], Vector::numbers));
            loaded.numbers.resize(end, 0);
            loaded.prefixes.push(found.map_or(([0; _], 0.0), |vector| (vector.prefix(), vector.length())));
        }
        Ok(loaded)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tantivy::{Index, IndexWriter, TantivyDocument, Term};

    use super::*;
    use crate::index::schema::schema;

    const EMBEDDER: EmbedderId = EmbedderId::of_test(7);
    const OTHER: EmbedderId = EmbedderId::of_test(8);

    /// An index with a passage for each vector, in two segments. The URL is the vector's number.
    fn index(vectors: &[Option<(EmbedderId, Vec<f32>)>]) -> (Index, IndexWriter) {
        let (schema, fields) = schema();
        let index = Index::create_in_ram(schema);
        let mut writer: IndexWriter = index.writer_with_num_threads(1, 20_000_000).unwrap();
        for (at, vector) in vectors.iter().enumerate() {
            let mut passage = TantivyDocument::default();
            passage.add_text(fields.file, at.to_string());
            if let Some((id, numbers)) = vector {
                passage.add_bytes(fields.vector, &Vector::quantize(numbers).to_bytes(*id));
            }
            writer.add_document(passage).unwrap();
            if at == vectors.len() / 2 {
                writer.commit().unwrap();
            }
        }
        writer.commit().unwrap();
        (index, writer)
    }

    fn vector() -> impl Strategy<Value = Option<(EmbedderId, Vec<f32>)>> {
        let numbers = prop::collection::vec(-1.0..1.0_f32, 200);
        prop_oneof![
            8 => numbers.clone().prop_map(|numbers| Some((EMBEDDER, numbers))),
            1 => numbers.prop_map(|numbers| Some((OTHER, numbers))),
            1 => Just(None),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]
        /// The result equals a comparison with all vectors, without deleted passages and vectors of other embedders.
        #[test]
        fn the_nearest_are_found(
            vectors in prop::collection::vec(vector(), 2..60),
            question in prop::collection::vec(-1.0..1.0_f32, 200),
            deleted in 0..60_usize,
            limit in 1..10_usize,
        ) {
            let (index, mut writer) = index(&vectors);
            writer.delete_term(Term::from_field_text(schema().1.file, &deleted.to_string()));
            writer.commit().unwrap();
            let searcher = index.reader().unwrap().searcher();
            let loaded = Vectors::load(&searcher, EMBEDDER, None).unwrap();
            let question = QuestionVector::of_test(EMBEDDER, &question);
            let own = |(at, it): (usize, &Option<(EmbedderId, Vec<f32>)>)| {
                let (_, numbers) = it.as_ref().filter(|(id, _)| *id == EMBEDDER && at != deleted)?;
                let vector = Vector::quantize(numbers);
                Some(question.cosine(vector.numbers(), vector.length()))
            };
            let mut expected: Vec<f32> = vectors.iter().enumerate().filter_map(own).collect();
            expected.sort_by(|one, other| other.total_cmp(one));
            expected.truncate(limit);
            let found = loaded.nearest(&searcher, &question, limit);
            let cosines: Vec<f32> = found.iter().map(|(cosine, _)| *cosine).collect();
            prop_assert_eq!(cosines, expected);
            for (cosine, address) in found {
                prop_assert_eq!(loaded.cosine(address, &question), Some(cosine));
            }
        }
    }
}
