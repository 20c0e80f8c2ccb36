//! Checks that a body is uncompressed JSON by its headers.

use http::header::{self, HeaderMap};

use crate::error::ApiError;

pub(crate) fn require_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let is_json = |value: &http::HeaderValue| {
        let essence = value.to_str().ok()?.split(';').next()?.trim();
        Some(essence.eq_ignore_ascii_case("application/json"))
    };
    match (types.next().map(is_json), types.next()) {
        (Some(Some(true)), None) => {}
        (None, _) => return Err(ApiError::invalid("The header `Content-Type: application/json` is required.")),
        _ => return Err(ApiError::invalid("`Content-Type` must be `application/json`.")),
    }
    let encodings = headers.get_all(header::CONTENT_ENCODING);
    if encodings.iter().any(|encoding| !encoding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity")) {
        return Err(ApiError::invalid("`Content-Encoding` other than `identity` is not accepted."));
    }
    Ok(())
}
