//! Responses: the one for a recorded completion, and the JSON response that all others use.

use chat::RequestId;
use grounding::augment::Source;
use http::header::{self, HeaderName};
use http::{HeaderValue, StatusCode};
use store::Receipt;
use transport::Response;

use crate::inference::GroundedCompletion;

const SOURCE_SCORES: HeaderName = HeaderName::from_static("x-source-scores");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The response to a completion whose row is durable. No other response has the status 200.
pub(crate) fn completed(receipt: &Receipt, grounded: &GroundedCompletion) -> Response {
    let id = receipt.request_id();
    let mut response = json(StatusCode::OK, wire::completion(&grounded.completion, id), id);
    for source in &grounded.sources {
        let link = HeaderValue::from_str(&source.link()).expect("a link is visible ASCII");
        response.headers_mut().append(header::LINK, link);
    }
    if let Some(scores) = scores(&grounded.sources) {
        response.headers_mut().insert(SOURCE_SCORES, scores);
    }
    response
}

/// The scores of the sources, in the order of their links; `None` if a score is unknown.
fn scores(sources: &[Source]) -> Option<HeaderValue> {
    let scores: Vec<String> =
        sources.iter().map(|source| Some(format!("{:.2}", source.score()?))).collect::<Option<_>>()?;
    HeaderValue::from_str(&scores.join(", ")).ok().filter(|value| !value.is_empty())
}

pub(crate) fn json(status: StatusCode, body: Vec<u8>, id: RequestId) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(REQUEST_ID, HeaderValue::try_from(id.to_string()).expect("a request id is ASCII"));
    response
}
