//! Responses of the console. Only this module sets the headers that every response carries.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode, header};
use maud::Markup;
use transport::{Response, ResponseBody};

const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

const SECURITY_HEADERS: [(HeaderName, &str); 7] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
];

/// For one year, without subdomains: other services may run there.
const TRANSPORT_SECURITY: &str = "max-age=31536000";

pub(crate) struct ConsoleResponse(Response);

impl ConsoleResponse {
    pub(crate) fn page(markup: Markup) -> Self {
        Self::new("text/html; charset=utf-8", markup.into_string())
    }

    /// Saved as a file by the browser.
    pub(crate) fn download(name: &str, content_type: &'static str, body: impl Into<ResponseBody>) -> Self {
        let disposition = format!("attachment; filename=\"{name}\"");
        Self::new(content_type, body).with_header(header::CONTENT_DISPOSITION, &disposition)
    }

    pub(crate) fn json(body: String) -> Self {
        Self::new("application/json", body)
    }

    /// An export whose filter is invalid.
    pub(crate) fn bad_query(sentence: &str) -> Self {
        Self::new("text/plain; charset=utf-8", sentence.to_owned()).with_status(StatusCode::BAD_REQUEST)
    }

    /// A file whose name changes with its content.
    pub(crate) fn asset(content_type: &'static str, body: &'static [u8]) -> Self {
        let mut response = Self::new(content_type, Bytes::from_static(body));
        response.set_cache_control("public, max-age=31536000, immutable");
        response
    }

    /// With 303, so that a reload does not post the form again.
    pub(crate) fn redirect(to: &str) -> Self {
        Self::new("text/plain", "").with_status(StatusCode::SEE_OTHER).with_header(header::LOCATION, to)
    }

    pub(crate) fn from_api(response: Response) -> Self {
        let mut response = Self(response);
        response.set_cache_control("no-store");
        response
    }

    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        *self.0.status_mut() = status;
        self
    }

    pub(crate) fn with_header(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.0.headers_mut().append(name, value);
        }
        self
    }

    /// With `is_secure`, browsers reach the console over TLS, and the response restricts them to TLS.
    pub(crate) fn into_response(self, is_secure: bool) -> Response {
        let mut response = self.0;
        if is_secure {
            let value = HeaderValue::from_static(TRANSPORT_SECURITY);
            response.headers_mut().insert(header::STRICT_TRANSPORT_SECURITY, value);
        }
        for (name, value) in SECURITY_HEADERS {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }

    fn new(content_type: &'static str, body: impl Into<ResponseBody>) -> Self {
        let mut response = Self(Response::new(body.into()));
        response.0.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        response.set_cache_control("no-store");
        response
    }

    fn set_cache_control(&mut self, value: &'static str) {
        self.0.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static(value));
    }
}
