//! Files on the web, as a `Source` of a download.

use std::pin::Pin;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use reqwest::header::{ACCEPT_ENCODING, CONTENT_RANGE, RANGE};
use reqwest::{Client, Response, StatusCode, Url};

use super::download::{Failure, Opened, Source, is_passing};

/// A file on the web.
pub(super) struct WebFile {
    /// What it is called in messages.
    pub(super) name: String,
    pub(super) client: Client,
    pub(super) url: Url,
    /// Who asks, if that is to be told.
    pub(super) token: Option<String>,
    /// What to say where the server refuses it.
    pub(super) refused: &'static str,
}

impl Source for WebFile {
    fn name(&self) -> String {
        self.name.clone()
    }

    async fn open(&self, offset: u64) -> Result<Opened, Failure> {
        // Packed on the way, bytes could not be counted.
        let mut request = self.client.get(self.url.clone()).header(ACCEPT_ENCODING, "identity");
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if offset > 0 {
            request = request.header(RANGE, format!("bytes={offset}-"));
        }
        let answer = request.send().await?;
        let (first, total) = content_range(&answer);
        let offset = match answer.status() {
            StatusCode::OK => return Ok(Opened { offset: 0, total: answer.content_length(), pieces: pieces(answer) }),
            StatusCode::PARTIAL_CONTENT if first == Some(offset) => offset,
            StatusCode::RANGE_NOT_SATISFIABLE if total == Some(offset) => {
                return Ok(Opened { offset, total, pieces: futures_util::stream::empty().boxed() });
            }
            StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => return Err(Failure::Stale),
            status if is_passing(status) => return Err(Failure::Passing(format!("the server answers {status}"))),
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                return Err(Failure::Lasting(format!("the server answers {status}{}", self.refused)));
            }
            status => return Err(Failure::Lasting(format!("the server answers {status}"))),
        };
        Ok(Opened { offset, total, pieces: pieces(answer) })
    }
}

fn pieces(answer: Response) -> Pin<Box<dyn Stream<Item = Result<Bytes, Failure>> + Send>> {
    answer.bytes_stream().map(|piece| piece.map_err(Failure::from)).boxed()
}

/// The first byte and the whole size in `bytes 100-199/200` or `bytes */200`.
fn content_range(answer: &Response) -> (Option<u64>, Option<u64>) {
    let header = answer.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    let Some((range, total)) = header.and_then(|text| text.strip_prefix("bytes ")?.split_once('/')) else {
        return (None, None);
    };
    (range.split_once('-').and_then(|(first, _)| first.parse().ok()), total.parse().ok())
}
