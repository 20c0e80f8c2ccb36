//! Files on web servers, which can be read from any offset; and a model by its URL.

use reqwest::header::{ACCEPT_ENCODING, CONTENT_RANGE, RANGE};
use reqwest::{Client, Response, StatusCode, Url};
use sha2::{Digest, Sha256};

use super::download::{DownloadError, RetryPolicy, Tail, download, is_transient};
use super::gguf::Summary;
use super::model_dir::ModelDir;
use crate::error::CliError;

pub(super) struct WebFile {
    /// For messages.
    pub(super) name: String,
    pub(super) client: Client,
    pub(super) url: Url,
    pub(super) token: Option<String>,
    /// Added to the message on 401 and 403.
    pub(super) access_hint: &'static str,
}

impl WebFile {
    /// Starts at that offset, or at 0 if the server does not support ranges.
    pub(super) async fn open(&self, offset: u64) -> Result<Tail, DownloadError> {
        // Ranges and sizes count bytes of the file itself, so it must not be compressed on the way.
        let mut request = self.client.get(self.url.clone()).header(ACCEPT_ENCODING, "identity");
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if offset > 0 {
            request = request.header(RANGE, format!("bytes={offset}-"));
        }
        let response = request.send().await?;
        let (first, total) = content_range(&response);
        match response.status() {
            StatusCode::OK => Ok(Tail { offset: 0, total: response.content_length(), response: Some(response) }),
            StatusCode::PARTIAL_CONTENT if first == Some(offset) => {
                Ok(Tail { offset, total, response: Some(response) })
            }
            StatusCode::RANGE_NOT_SATISFIABLE if total == Some(offset) => Ok(Tail { offset, total, response: None }),
            StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => Err(DownloadError::Stale),
            status if is_transient(status) => Err(DownloadError::Transient(format!("the server answers {status}"))),
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                Err(DownloadError::Permanent(format!("the server answers {status}{}", self.access_hint)))
            }
            status => Err(DownloadError::Permanent(format!("the server answers {status}"))),
        }
    }
}

/// Installs the model at a URL, whose fragment may hold its digest: `#sha256=HEX`.
pub(super) async fn fetch(mut url: Url, model_dir: &ModelDir, retry: RetryPolicy) -> Result<Summary, CliError> {
    let expected = url.fragment().and_then(|fragment| fragment.strip_prefix("sha256=")).map(str::to_ascii_lowercase);
    url.set_fragment(None);
    let name = url.path_segments().and_then(|mut segments| segments.next_back()).unwrap_or_default().to_owned();
    // A partial download is resumed only from the same URL.
    let part = model_dir.part_path(&base16ct::lower::encode_string(&Sha256::digest(url.as_str())[..8]));
    let source = WebFile { name: name.clone(), client: retry.client()?, url, token: None, access_hint: "" };
    download(&source, model_dir, &part, 0, retry).await?;
    let candidate = model_dir.open_candidate(part)?;
    candidate.require_sha256(&name, expected.as_deref())?;
    candidate.install()
}

/// The first byte and the total size of `bytes 100-199/200` or `bytes */200`.
fn content_range(response: &Response) -> (Option<u64>, Option<u64>) {
    let header = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    let Some((range, total)) = header.and_then(|text| text.strip_prefix("bytes ")?.split_once('/')) else {
        return (None, None);
    };
    (range.split_once('-').and_then(|(first, _)| first.parse().ok()), total.parse().ok())
}
