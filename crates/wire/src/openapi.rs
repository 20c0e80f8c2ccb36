//! The API as OpenAPI 3.1: docs/openapi.json. A test compares it with the limits, enumerations and error table of the code.

use serde_json::{Value, json};

/// The description with the base URL that callers use.
pub fn document(base_url: &str) -> Value {
    let file = include_str!("../../../docs/openapi.json");
    let mut document: Value = serde_json::from_str(file).expect("the file is valid JSON, which a test checks");
    document["servers"] = json!([{ "url": base_url }]);
    document
}
