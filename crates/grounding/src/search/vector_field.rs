//! The fields of an index that hold vectors, from its mapping, and the part of a query that compares them with a vector.

use serde_json::{Map, Value, json};

/// Nested objects in a mapping that are followed.
const MAX_DEPTH: usize = 8;
/// Passages that Elasticsearch compares on each shard, for each that it returns.
const CANDIDATES_PER_HIT: usize = 10;
/// The score of a vector is at most 1; the score of words is unbounded, and mostly below 30. With this factor, a cosine that
/// is larger by 0.1 counts as much as one point by words.
const BOOST: u32 = 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VectorField {
    pub name: String,
    pub dimensions: usize,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// OpenSearch's `knn_vector`.
    Knn,
    /// Elasticsearch's `dense_vector`.
    Dense,
}

impl VectorField {
    /// From the response to `_mapping`. Of several indices, only the fields that all of them have, because one query
    /// searches all.
    pub(super) fn parse_mapping(body: &[u8]) -> Vec<Self> {
        let indices: Map<String, Value> = serde_json::from_slice(body).unwrap_or_default();
        let mut indices = indices.values().map(|index| {
            let mut fields = Vec::new();
            collect(&index["mappings"], "", 0, &mut fields);
            fields
        });
        let mut fields = indices.next().unwrap_or_default();
        indices.for_each(|other| fields.retain(|field| other.contains(field)));
        fields
    }

    /// Adds the comparison to the body of a search by words. Documents are found by words or by vectors, and their scores are
    /// summed.
    pub(super) fn add_to(&self, body: &mut Value, vector: &[f32], limit: usize) {
        match self.kind {
            Kind::Knn => {
                let knn = json!({"knn": {&self.name: {"vector": vector, "k": limit, "boost": BOOST}}});
                body["query"] = json!({"bool": {"should": [body["query"].take(), knn]}});
            }
            Kind::Dense => {
                body["knn"] = json!({
                    "field": self.name,
                    "query_vector": vector,
                    "k": limit,
                    "num_candidates": limit * CANDIDATES_PER_HIT,
                    "boost": BOOST,
                });
            }
        }
    }
}

/// Nested documents are skipped: they need another query.
fn collect(mapping: &Value, path: &str, depth: usize, fields: &mut Vec<VectorField>) {
    let Some(properties) = mapping["properties"].as_object().filter(|_| depth < MAX_DEPTH) else { return };
    for (name, field) in properties {
        let name = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let (kind, dimensions) = match field["type"].as_str() {
            Some("knn_vector") => (Kind::Knn, &field["dimension"]),
            Some("dense_vector") if field["index"] != json!(false) => (Kind::Dense, &field["dims"]),
            None | Some("object") => {
                collect(field, &name, depth + 1, fields);
                continue;
            }
            Some(_) => continue,
        };
        if let Some(dimensions) = dimensions.as_u64().and_then(|number| usize::try_from(number).ok()) {
            fields.push(VectorField { name, dimensions, kind });
        }
    }
}
