//! A `Source` that downloads over HTTP.

use std::pin::Pin;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use reqwest::header::{ACCEPT_ENCODING, CONTENT_RANGE, RANGE};
use reqwest::{Client, Response, StatusCode, Url};

use super::download::{Source, SourceError, SourceStream, is_transient};

pub(super) struct WebFile {
    /// For messages.
    pub(super) name: String,
    pub(super) client: Client,
    pub(super) url: Url,
    pub(super) token: Option<String>,
    /// Added to the message on 401 and 403.
    pub(super) access_hint: &'static str,
}

impl Source for WebFile {
    fn name(&self) -> String {
        self.name.clone()
    }

    async fn open(&self, offset: u64) -> Result<SourceStream, SourceError> {
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
        let offset = match response.status() {
            StatusCode::OK => {
                return Ok(SourceStream { offset: 0, total: response.content_length(), chunks: chunks(response) });
            }
            StatusCode::PARTIAL_CONTENT if first == Some(offset) => offset,
            StatusCode::RANGE_NOT_SATISFIABLE if total == Some(offset) => {
                return Ok(SourceStream { offset, total, chunks: futures_util::stream::empty().boxed() });
            }
            StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => return Err(SourceError::Stale),
            status if is_transient(status) => {
                return Err(SourceError::Transient(format!("the server answers {status}")));
            }
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                return Err(SourceError::Permanent(format!("the server answers {status}{}", self.access_hint)));
            }
            status => return Err(SourceError::Permanent(format!("the server answers {status}"))),
        };
        Ok(SourceStream { offset, total, chunks: chunks(response) })
    }
}

fn chunks(response: Response) -> Pin<Box<dyn Stream<Item = Result<Bytes, SourceError>> + Send>> {
    response.bytes_stream().map(|chunk| chunk.map_err(SourceError::from)).boxed()
}

/// The first byte and the total size of `bytes 100-199/200` or `bytes */200`.
fn content_range(response: &Response) -> (Option<u64>, Option<u64>) {
    let header = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    let Some((range, total)) = header.and_then(|text| text.strip_prefix("bytes ")?.split_once('/')) else {
        return (None, None);
    };
    (range.split_once('-').and_then(|(first, _)| first.parse().ok()), total.parse().ok())
}
