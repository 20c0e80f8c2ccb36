//! Requests and sums of requests, in the JSON and CSV of the console and the command line.

use chat::FinishReason;
use serde_json::{Value, json};
use store::{Figures, KeyState, RecordedRequest};

use crate::numbers::score;
use crate::times::rfc3339_micros;

/// The members of a request's row, which are the columns of the CSV.
pub const REQUEST_COLUMNS: [&str; 20] = [
    "request_id", "received_at", "key_id", "key_name", "status", "code", "prompt_tokens", "completion_tokens",
    "total_tokens", "queue_us", "search_us", "inference_us", "total_us", "persist_us", "grounded", "grounding_score",
    "scorer_version", "sources", "runtime", "finish_reason",
];

/// One request. Durations are microseconds.
pub fn request_row(record: &RecordedRequest) -> Value {
    json!({
        "request_id": record.request_id.to_string(),
        "received_at": rfc3339_micros(record.request_id.unix_micros()),
        "key_id": record.key.to_string(),
        "key_name": record.key_name,
        "status": record.status,
        "code": record.code,
        "prompt_tokens": record.usage.prompt,
        "completion_tokens": record.usage.completion,
        "total_tokens": record.usage.total,
        "queue_us": record.queue_us,
        "search_us": record.search_us,
        "inference_us": record.inference_us,
        "total_us": record.total_us,
        "persist_us": record.persist_us,
        // Whether Search was called and its results, even if none, are in the prompt; `null` if the request was not scored.
        "grounded": record.grounding.map(|grounding| grounding.sources.is_some()),
        "grounding_score": record.grounding.map(|grounding| score(grounding.score)),
        "scorer_version": record.grounding.map(|grounding| grounding.scorer),
        "sources": record.grounding.and_then(|grounding| grounding.sources),
        "runtime": record.inference.runtime.as_deref(),
        "finish_reason": record.inference.finish_reason.map(FinishReason::as_str),
    })
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
    use crate::{csv_cells, write_csv};

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

    #[test]
    fn the_columns_are_the_fields() {
        let row = request_row(&record());
        assert_eq!(row.as_object().unwrap().keys().collect::<Vec<_>>(), REQUEST_COLUMNS);
        assert_eq!(token_sums(&Figures::default()).map(|(column, _)| column).collect::<Vec<_>>(), TOKEN_COLUMNS);
    }

    #[test]
    fn unmeasured_values_are_empty_and_no_name_is_a_formula() {
        let mut text = Vec::new();
        let record = record();
        write_csv(&mut text, None, [csv_cells(&request_row(&record), &REQUEST_COLUMNS)]).unwrap();
        let text = String::from_utf8(text).unwrap();
        let received = rfc3339_micros(record.request_id.unix_micros());
        let row = format!("{},{received},{},'=1+1,200,,,,,1,,2,3,,,,,,,\n", record.request_id, record.key);
        assert_eq!(text, row);
    }
}
