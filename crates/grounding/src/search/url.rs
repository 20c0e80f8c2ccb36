//! The setting for Search: `local`, or the URL of a search server.

use std::fmt;
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use url::{Position, Url};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SearchUrl {
    /// The built-in index.
    Local,
    Remote(RemoteUrl),
}

/// `searxng+http://HOST`, or `opensearch+http://HOST/INDEX` (`elasticsearch+` is the same). Both may have a path,
/// `https`, and `USER:PASSWORD@` for basic authentication, which is never displayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteUrl {
    pub(super) kind: Kind,
    pub(super) credentials: Option<Credentials>,
    /// Without credentials, query, fragment and trailing slash.
    base: Url,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Searxng,
    /// Or Elasticsearch, whose API is the same here.
    Opensearch {
        /// Percent-encoded, as in the URL.
        index: String,
    },
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) user: String,
    pub(super) password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl RemoteUrl {
    /// Whether the server's index can have vectors.
    pub fn can_have_vectors(&self) -> bool {
        matches!(self.kind, Kind::Opensearch { .. })
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.base.scheme() == "https"
    }

    pub(super) fn join(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        url.set_path(&format!("{}{path}", self.base.path().trim_end_matches('/')));
        url
    }

    /// For example `http://search.example:8080`.
    pub(super) fn base_url(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }
}

impl fmt::Display for SearchUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Remote(remote) => remote.fmt(f),
        }
    }
}

impl fmt::Display for RemoteUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (prefix, index) = match &self.kind {
            Kind::Searxng => ("searxng", None),
            Kind::Opensearch { index } => ("opensearch", Some(index)),
        };
        let hidden = if self.credentials.is_some() { "***@" } else { "" };
        let rest = &self.base[Position::BeforeHost..].trim_end_matches('/');
        write!(f, "{prefix}+{}://{hidden}{rest}", self.base.scheme())?;
        index.map_or(Ok(()), |index| write!(f, "/{index}"))
    }
}

impl FromStr for SearchUrl {
    type Err = SearchUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "local" {
            return Ok(Self::Local);
        }
        let is_searxng = match text.split_once('+') {
            Some(("searxng", _)) => true,
            Some(("opensearch" | "elasticsearch", _)) => false,
            _ => {
                return Err(SearchUrlError(
                    "it is not `local`, and does not begin with searxng+http://, searxng+https://, opensearch+http:// or opensearch+https://",
                ));
            }
        };
        let (_, address) = text.split_once('+').unwrap_or_default();
        let mut base = Url::parse(address).map_err(|_| SearchUrlError("the text after the `+` is not a URL"))?;
        if !matches!(base.scheme(), "http" | "https") {
            return Err(SearchUrlError("the text after the `+` does not begin with http:// or https://"));
        }
        if base.query().is_some() || base.fragment().is_some() {
            return Err(SearchUrlError(
                "it has a query or a fragment; a `?` or `#` in a password is written %3F or %23",
            ));
        }
        let credentials = take_credentials(&mut base)?;
        let path = base.path().trim_end_matches('/').to_owned();
        let kind = match is_searxng {
            true => {
                base.set_path(&path);
                Kind::Searxng
            }
            false => {
                let (before, index) = path.rsplit_once('/').unwrap_or(("", &path));
                if index.is_empty() {
                    return Err(SearchUrlError(
                        "it does not end with the name of an index: opensearch+http://HOST/INDEX",
                    ));
                }
                if index.starts_with('_') {
                    return Err(SearchUrlError("it ends with a name that begins with `_`, which no index has"));
                }
                base.set_path(before.trim_end_matches('/'));
                Kind::Opensearch { index: index.to_owned() }
            }
        };
        Ok(Self::Remote(RemoteUrl { kind, credentials, base }))
    }
}

/// Removes user and password from the URL, so that only the `Authorization` header contains them.
fn take_credentials(url: &mut Url) -> Result<Option<Credentials>, SearchUrlError> {
    let decoded = |text: &str| {
        let text = percent_decode_str(text).decode_utf8();
        text.map(|text| text.into_owned()).map_err(|_| SearchUrlError("its user name or password is not UTF-8"))
    };
    let user = decoded(url.username())?;
    let password = url.password().map(decoded).transpose()?;
    let cannot_be_taken = SearchUrlError("it has no host");
    url.set_username("").map_err(|()| cannot_be_taken)?;
    url.set_password(None).map_err(|()| cannot_be_taken)?;
    match (user, password) {
        (user, None) if user.is_empty() => Ok(None),
        (_, None) => Err(SearchUrlError("it has a user name without a password; both are needed: USER:PASSWORD@HOST")),
        (user, Some(_)) if user.is_empty() || user.contains(':') => {
            Err(SearchUrlError("basic authentication needs a user name before the password, without a colon in it"))
        }
        (user, Some(password)) => Ok(Some(Credentials { user, password })),
    }
}

/// Does not repeat the text, which may contain a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SearchUrlError(&'static str);

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(text: &str) -> RemoteUrl {
        match text.parse() {
            Ok(SearchUrl::Remote(url)) => url,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn urls_are_parsed_and_normalized() {
        assert_eq!("local".parse(), Ok(SearchUrl::Local));
        assert_eq!(SearchUrl::Local.to_string(), "local");
        let cases = [
            ("searxng+http://127.0.0.1:8080", "searxng+http://127.0.0.1:8080", "http://127.0.0.1:8080/search"),
            ("searxng+https://Search.Example/", "searxng+https://search.example", "https://search.example/search"),
            ("searxng+http://a/s/x/", "searxng+http://a/s/x", "http://a/s/x/search"),
            ("searxng+http://[::1]:8/", "searxng+http://[::1]:8", "http://[::1]:8/search"),
        ];
        for (text, shown, below) in cases {
            let url = remote(text);
            assert_eq!((url.to_string().as_str(), url.join("/search").as_str()), (shown, below), "{text}");
            assert_eq!((url.kind, url.credentials), (Kind::Searxng, None), "{text}");
        }
        let cases = [
            ("opensearch+http://a:9200/docs", "docs", "opensearch+http://a:9200/docs", "http://a:9200/x"),
            ("elasticsearch+https://a/docs/", "docs", "opensearch+https://a/docs", "https://a/x"),
            // Found by fuzzing: it was shown as a different URL.
            ("elasticsearch+http://a///docs", "docs", "opensearch+http://a/docs", "http://a/x"),
            (
                "opensearch+http://a/es/v/docs-*,more",
                "docs-*,more",
                "opensearch+http://a/es/v/docs-*,more",
                "http://a/es/v/x",
            ),
        ];
        for (text, index, shown, below) in cases {
            let url = remote(text);
            assert_eq!((url.to_string().as_str(), url.join("/x").as_str()), (shown, below), "{text}");
            assert_eq!(url.kind, Kind::Opensearch { index: index.into() }, "{text}");
        }
    }

    #[test]
    fn credentials_are_decoded_and_never_shown() {
        let url = remote("opensearch+https://ad%40min:s%C3%A4cret%3A%2F@a:9200/docs");
        let expected = Credentials { user: "ad@min".into(), password: "säcret:/".into() };
        assert_eq!(url.credentials, Some(expected));
        assert_eq!(url.to_string(), "opensearch+https://***@a:9200/docs");
        assert_eq!(url.base_url(), "https://a:9200");
        let everything = format!("{url} {url:?} {}", url.join("/x"));
        assert!(!everything.contains("cret") && !everything.contains("min"), "{everything}");
    }

    #[test]
    fn invalid_urls_are_refused_without_repeating_them() {
        let cases = [
            "",
            "Local",
            "secret",
            "http://secret/",
            "secret+http://a/",
            "searxng+",
            "searxng+secret",
            "searxng+ftp://secret/",
            "searxng+http://",
            "searxng+http://u:secret@/",
            "searxng+http://a/?q=secret",
            "searxng+http://a/#secret",
            "searxng+http://secret@a/",
            "searxng+http://:secret@a/",
            "opensearch+http://a:99999/secret",
            "opensearch+http://u:secret@a",
            "opensearch+http://u:secret@a/",
            "opensearch+http://u:secret@a/docs/_search",
            "opensearch+http://u%3A:secret@a/docs",
            "opensearch+http://u:secret%FF@a/docs",
        ];
        for text in cases {
            let error = text.parse::<SearchUrl>().expect_err(text);
            let text_shown = format!("{error} {error:?}");
            assert!(text_shown.len() > 20 && !text_shown.contains("secret"), "{text}: {text_shown}");
        }
    }
}
