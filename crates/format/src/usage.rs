//! Requests and sums of requests, in the JSON and CSV of the console and the command line.

use chat::FinishReason;
use serde::Serialize;
use store::{Figures, KeyState, RecordedRequest};

use crate::csv::spreadsheet_safe;
use crate::numbers::score;
use crate::times::rfc3339_micros;

/// One request. Durations are microseconds.
#[derive(Debug, Serialize)]
pub struct RequestRow {
    request_id: String,
    received_at: String,
    key_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_name: Option<String>,
    status: u16,
    code: Option<String>,
    prompt_tokens: Option<u32>,
    completion_tokens: Option<u32>,
    total_tokens: Option<u32>,
    queue_us: Option<u64>,
    search_us: Option<u64>,
    inference_us: Option<u64>,
    total_us: u64,
    persist_us: Option<u64>,
    /// Whether Search was called and its results, even if none, are in the prompt; `null` if the request was not scored.
    grounded: Option<bool>,
    grounding_score: Option<f64>,
    scorer_version: Option<u16>,
    sources: Option<u16>,
    runtime: Option<String>,
    finish_reason: Option<&'static str>,
}

impl RequestRow {
    pub const COLUMNS_WITH_KEY_NAME: [&str; 20] = [
        "request_id", "received_at", "key_id", "key_name", "status", "code", "prompt_tokens", "completion_tokens",
        "total_tokens", "queue_us", "search_us", "inference_us", "total_us", "persist_us", "grounded",
        "grounding_score", "scorer_version", "sources", "runtime", "finish_reason",
    ];

    pub fn columns() -> Vec<&'static str> {
        Self::COLUMNS_WITH_KEY_NAME.into_iter().filter(|column| *column != "key_name").collect()
    }

    /// For a spreadsheet: no name is a formula.
    pub fn for_csv(record: &RecordedRequest) -> Self {
        Self { key_name: Some(spreadsheet_safe(&record.key_name)), ..Self::from(record) }
    }

    pub fn with_key_name(record: &RecordedRequest) -> Self {
        Self { key_name: Some(record.key_name.clone()), ..Self::from(record) }
    }
}

impl From<&RecordedRequest> for RequestRow {
    fn from(record: &RecordedRequest) -> Self {
        Self {
            request_id: record.request_id.to_string(),
            received_at: rfc3339_micros(record.request_id.unix_micros()),
            key_id: record.key.to_string(),
            key_name: None,
            status: record.status,
            code: record.code.clone(),
            prompt_tokens: record.usage.prompt,
            completion_tokens: record.usage.completion,
            total_tokens: record.usage.total,
            queue_us: record.queue_us,
            search_us: record.search_us,
            inference_us: record.inference_us,
            total_us: record.total_us,
            persist_us: record.persist_us,
            grounded: record.grounding.map(|grounding| grounding.sources.is_some()),
            grounding_score: record.grounding.map(|grounding| score(grounding.score)),
            scorer_version: record.grounding.map(|grounding| grounding.scorer),
            sources: record.grounding.and_then(|grounding| grounding.sources),
            runtime: record.inference.runtime.as_deref().map(str::to_owned),
            finish_reason: record.inference.finish_reason.map(FinishReason::as_str),
        }
    }
}

/// Token sums, and for each the number of requests for which it was measured.
pub const TOKEN_COLUMNS: [&str; 6] = [
    "prompt_tokens", "prompt_tokens_measured", "completion_tokens", "completion_tokens_measured", "total_tokens",
    "total_tokens_measured",
];

/// The columns and their values. A sum that was measured for no request is `None`.
pub fn token_sums(figures: &Figures) -> impl Iterator<Item = (&'static str, Option<u64>)> {
    let measured = [figures.prompt, figures.completion, figures.total];
    let values = measured.into_iter().flat_map(|measured| [measured.get(), Some(measured.count)]);
    TOKEN_COLUMNS.into_iter().zip(values)
}

/// `200 ok`, `502 inference_error`.
pub fn outcome(status: u16, code: Option<&str>) -> String {
    format!("{status} {}", code.unwrap_or("ok"))
}

pub fn key_state(state: KeyState) -> &'static str {
    match state {
        KeyState::Active => "active",
        KeyState::Expired => "expired",
        KeyState::Revoked => "revoked",
    }
}

#[cfg(test)]
mod tests {
    use chat::TokenUsage;
    use store::InferenceRecord;

    use super::*;
    use crate::write_csv;

    fn record() -> RecordedRequest {
        RecordedRequest {
            request_id: "chatcmpl_0192f0c1d2e37a4b8c5d6e7f80910213".parse().unwrap(),
            key: "abcdefghijkl".parse().unwrap(),
            key_name: "=1+1".into(),
            is_key_visible: true,
            status: 200,
            code: None,
            usage: TokenUsage::default(),
            queue_us: Some(1),
            search_us: None,
            inference_us: Some(2),
            total_us: 3,
            persist_us: None,
            grounding: None,
            inference: InferenceRecord::default(),
        }
    }

    /// The names of a row's fields, in the order of serialization.
    fn names(row: &impl Serialize) -> Vec<String> {
        let json = serde_json::to_string(row).unwrap();
        let fields = json.trim_matches(['{', '}']).split(',').map(|field| field.split('"').nth(1).unwrap().to_owned());
        fields.collect()
    }

    #[test]
    fn the_columns_are_the_fields() {
        assert_eq!(names(&RequestRow::from(&record())), RequestRow::columns());
        assert_eq!(names(&RequestRow::with_key_name(&record())), RequestRow::COLUMNS_WITH_KEY_NAME);
        assert_eq!(token_sums(&Figures::default()).map(|(column, _)| column).collect::<Vec<_>>(), TOKEN_COLUMNS);
    }

    #[test]
    fn unmeasured_values_are_empty_and_no_name_is_a_formula() {
        let mut text = Vec::new();
        let record = record();
        write_csv(&mut text, None, [RequestRow::for_csv(&record)]).unwrap();
        let text = String::from_utf8(text).unwrap();
        let received = rfc3339_micros(record.request_id.unix_micros());
        let row = format!("{},{received},{},'=1+1,200,,,,,1,,2,3,,,,,,,\n", record.request_id, record.key);
        assert_eq!(text, row);
    }
}
