//! Where the API is served: its host and its one route. Pure.

use chat::MODEL;
use http::{Method, request::Parts};
use transport::{BaseUrl, BaseUrlError, HostName};

use crate::error::ApiError;

/// Where the API is served: the host and the path of its base URL.
#[derive(Debug, Clone)]
pub struct ApiAddress {
    /// As callers write it, for messages; without user and password.
    base_url: String,
    host: HostName,
    path: String,
    route: String,
}

impl ApiAddress {
    /// From the API's base URL, such as `http://localhost:8080/v1`.
    pub fn from_base_url(base_url: &str) -> Result<Self, BaseUrlError> {
        let BaseUrl { host, origin, path } = BaseUrl::parse(base_url)?;
        if !path.ends_with("/v1") {
            return Err(BaseUrlError("its path does not end in /v1"));
        }
        Ok(Self { base_url: format!("{origin}{path}"), host, route: format!("{path}/chat/completions"), path })
    }

    pub fn host(&self) -> &HostName {
        &self.host
    }

    /// Whether a path is the API's base path or below it.
    pub(crate) fn covers(&self, path: &str) -> bool {
        path.strip_prefix(&self.path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// A request that names another host, several, or none is an error.
    pub(crate) fn require_host(&self, head: &Parts) -> Result<(), ApiError> {
        if self.host.is_named_by(head) { Ok(()) } else { Err(self.wrong_host()) }
    }

    pub(crate) fn wrong_host(&self) -> ApiError {
        ApiError::not_found(format!("This host does not serve the API. Send {}.", self.operation()))
    }

    /// Every route but `POST {base_url}/chat/completions` is an error.
    pub(crate) fn require_route(&self, head: &Parts) -> Result<(), ApiError> {
        let path = head.uri.path();
        let refused = if path == self.route {
            if head.method == Method::POST {
                return Ok(());
            }
            format!("Only the method POST is answered at this path. Send {}.", self.operation())
        } else if path.strip_prefix(&self.path) == Some("/models") {
            format!(
                "There is no list of models: the one model is `{MODEL}`. The one operation is {}.",
                self.operation()
            )
        } else {
            format!("There is nothing at this path. The one operation is {}.", self.operation())
        };
        Err(ApiError::not_found(refused))
    }

    fn operation(&self) -> String {
        format!("`POST {}/chat/completions`", self.base_url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, header};

    fn accepts(base_url: &str, target: &str, hosts: &[&str]) -> bool {
        let mut request = Request::post(target);
        for host in hosts {
            request = request.header(header::HOST, *host);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        ApiAddress::from_base_url(base_url).unwrap().require_host(&head).is_ok()
    }

    #[test]
    fn the_host_is_compared_without_case_and_port_and_loopback_is_one_host() {
        let local = "http://localhost:8080/v1";
        let named = "https://api.example.com/v1";
        let cases: &[(&str, &str, &[&str], bool)] = &[
            (local, "/", &["localhost"], true),
            (local, "/", &["LOCALHOST:9999"], true),
            (local, "/", &["127.0.0.1:8080"], true),
            (local, "/", &["127.9.9.9"], true),
            (local, "/", &["[::1]:8080"], true),
            (local, "/", &["example.com"], false),
            (local, "/", &["10.0.0.1"], false),
            (local, "/", &[], false),
            (local, "/", &["localhost", "localhost"], false),
            (local, "http://localhost/", &[], true),
            (local, "http://example.com/", &["localhost"], false),
            (local, "http://localhost/", &["example.com"], false),
            (named, "/", &["api.example.com"], true),
            (named, "/", &["API.Example.com:443"], true),
            (named, "/", &["api.example.com."], true),
            (named, "/", &["localhost"], false),
            (named, "/", &["console.example.com"], false),
            (named, "/", &["api.example.com.evil.org"], false),
            (named, "/", &["not a host"], false),
            (local, "/", &["user@localhost"], false),
            (local, "/", &["localhost:http"], false),
            (local, "/", &["localhost:"], true),
            (local, "/", &["localhost::"], false),
            (local, "/", &["localhost:+80"], false),
            (local, "/", &["localhost:65536"], false),
            (local, "/", &["localhosts"], false),
            (local, "/", &["[::1]:"], true),
            (local, "/", &[":"], false),
            (local, "/", &["localhost@localhost"], false),
            ("http://10.0.0.1/v1", "/", &["10.0.0.1:80"], true),
            ("http://[::1]:80/v1", "/", &["localhost"], true),
        ];
        for (base_url, target, hosts, expected) in cases {
            assert_eq!(accepts(base_url, target, hosts), *expected, "{base_url} {target} {hosts:?}");
        }
    }

    #[test]
    fn only_the_one_route_is_accepted() {
        let accepts = |method: &str, path: &str| {
            let (head, ()) = Request::builder().method(method).uri(path).body(()).unwrap().into_parts();
            ApiAddress::from_base_url("http://localhost/v1").unwrap().require_route(&head).is_ok()
        };
        assert!(accepts("POST", "/v1/chat/completions"));
        assert!(accepts("POST", "/v1/chat/completions?a=b"));
        for (method, path) in [
            ("GET", "/v1/chat/completions"),
            ("post", "/v1/chat/completions"),
            ("POST", "/v1/chat/completions/"),
            ("POST", "/V1/chat/completions"),
            ("POST", "/v1/chat%2Fcompletions"),
            ("POST", "//v1/chat/completions"),
            ("POST", "/v1/models"),
            ("POST", "/"),
        ] {
            assert!(!accepts(method, path), "{method} {path}");
        }
    }

    #[test]
    fn paths_below_the_base_url_belong_to_the_api() {
        let address = ApiAddress::from_base_url("http://localhost/team/v1/").unwrap();
        for path in ["/team/v1", "/team/v1/", "/team/v1/chat/completions", "/team/v1/models"] {
            assert!(address.covers(path), "{path}");
        }
        for path in ["/", "/team", "/team/v1x", "/v1/chat/completions", ""] {
            assert!(!address.covers(path), "{path}");
        }
    }

    #[test]
    fn base_urls_that_cannot_work_are_refused_with_a_reason() {
        for base_url in ["", "localhost:8080/v1", "ftp://localhost/v1", "http://localhost", "http://localhost/v1?x"] {
            let refusal = ApiAddress::from_base_url(base_url).unwrap_err().to_string();
            assert!(refusal.starts_with("it"), "{base_url}: {refusal}");
        }
    }
}
