//! HTTP/1.1 as a client speaks it, without a socket: the bytes of a request, and what the bytes of a response mean.
//!
//! A connection to a runtime carries one request at a time, and its response is used as a whole. That needs little of
//! HTTP, and what is not done for every request is time that callers have.

use std::io;
use std::mem::MaybeUninit;

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use httparse::{Header, ParserConfig, Status};

/// Limits of a response: its head, and the lines around its chunks; its body, far above 512 tokens of anything.
const MAX_HEAD_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 100;
const MAX_BODY_BYTES: usize = 4 << 20;

/// The head of a request that is being written.
pub(crate) struct RequestHead(Vec<u8>);

impl RequestHead {
    pub(crate) fn new(method: &Method, path: &str, host: &HeaderValue, body_bytes: usize) -> Self {
        let mut head = Vec::with_capacity(512 + path.len() + body_bytes);
        for part in [method.as_str(), " ", path, " HTTP/1.1\r\n"] {
            head.extend_from_slice(part.as_bytes());
        }
        let mut head = Self(head);
        head.add(&header::HOST, host.as_bytes());
        head
    }

    /// A value that cannot stand in a header is left out.
    pub(crate) fn add(&mut self, name: &HeaderName, value: &[u8]) {
        if value.iter().any(|&byte| byte == 0x7f || byte < b' ' && byte != b'\t') {
            return;
        }
        for part in [name.as_str().as_bytes(), b": ", value, b"\r\n"] {
            self.0.extend_from_slice(part);
        }
    }

    pub(crate) fn add_all(&mut self, headers: &HeaderMap) {
        headers.iter().for_each(|(name, value)| self.add(name, value.as_bytes()));
    }

    /// The whole request, with a JSON body.
    pub(crate) fn with_json(mut self, body: &[u8]) -> Vec<u8> {
        self.add(&header::CONTENT_TYPE, b"application/json");
        self.add(&header::CONTENT_LENGTH, itoa::Buffer::new().format(body.len()).as_bytes());
        self.0.extend_from_slice(b"\r\n");
        self.0.extend_from_slice(body);
        self.0
    }

    /// The whole request, without a body.
    pub(crate) fn without_body(mut self) -> Vec<u8> {
        self.0.extend_from_slice(b"\r\n");
        self.0
    }
}

/// Why the bytes are no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ResponseError {
    #[error("it is not HTTP/1.1")]
    Malformed,
    #[error("it is too large")]
    TooLarge,
}

impl From<ResponseError> for io::Error {
    fn from(error: ResponseError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResponseHead {
    pub(crate) status: StatusCode,
    /// In seconds. 0 if the header is a date, which no runtime sends.
    pub(crate) retry_after: Option<u64>,
    pub(crate) framing: Framing,
    /// Whether another request may follow on the connection.
    pub(crate) keeps_alive: bool,
}

/// Where the body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

impl ResponseHead {
    /// Takes the head from what has arrived; `None` if there is more to come. Interim responses are skipped.
    pub(crate) fn take(arrived: &mut BytesMut) -> Result<Option<Self>, ResponseError> {
        loop {
            let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADERS];
            let mut response = httparse::Response::new(&mut []);
            let parsed =
                ParserConfig::default().parse_response_with_uninit_headers(&mut response, arrived, &mut headers);
            let length = match parsed {
                Ok(Status::Complete(length)) => length,
                Ok(Status::Partial) if arrived.len() < MAX_HEAD_BYTES => return Ok(None),
                Ok(Status::Partial) | Err(httparse::Error::TooManyHeaders) => return Err(ResponseError::TooLarge),
                Err(_) => return Err(ResponseError::Malformed),
            };
            let status = response.code.and_then(|code| StatusCode::from_u16(code).ok());
            let status = status.ok_or(ResponseError::Malformed)?;
            let is_interim = status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS;
            let head = Self::read(status, response.version == Some(1), response.headers);
            arrived.advance(length);
            if !is_interim {
                return head.map(Some);
            }
        }
    }

    fn read(status: StatusCode, is_http_11: bool, headers: &[Header<'_>]) -> Result<Self, ResponseError> {
        let (mut length, mut is_chunked) = (None, None);
        let (mut retry_after, mut keeps_alive) = (None, is_http_11);
        for Header { name, value } in headers {
            if header::CONTENT_LENGTH.as_str().eq_ignore_ascii_case(name) {
                let given: usize = parse(value).ok_or(ResponseError::Malformed)?;
                if *length.get_or_insert(given) != given {
                    return Err(ResponseError::Malformed);
                }
            } else if header::TRANSFER_ENCODING.as_str().eq_ignore_ascii_case(name) {
                is_chunked = tokens(value).next_back().map(|last| last.eq_ignore_ascii_case(b"chunked"));
            } else if header::CONNECTION.as_str().eq_ignore_ascii_case(name) {
                let says = |wanted: &[u8]| tokens(value).any(|token| token.eq_ignore_ascii_case(wanted));
                keeps_alive = !says(b"close") && (keeps_alive || says(b"keep-alive"));
            } else if header::RETRY_AFTER.as_str().eq_ignore_ascii_case(name) {
                retry_after = Some(parse(value).unwrap_or(0) as u64);
            }
        }
        let framing = match (is_chunked, length) {
            _ if matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) => Framing::Length(0),
            (Some(true), _) => Framing::Chunked,
            (None, Some(length)) if length <= MAX_BODY_BYTES => Framing::Length(length),
            (None, Some(_)) => return Err(ResponseError::TooLarge),
            (Some(false), _) | (None, None) => Framing::UntilClose,
        };
        Ok(Self { status, retry_after, framing, keeps_alive: keeps_alive && framing != Framing::UntilClose })
    }
}

fn parse(value: &[u8]) -> Option<usize> {
    // `parse` would take a sign.
    let digits =
        std::str::from_utf8(value.trim_ascii()).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()))?;
    digits.parse().ok()
}

fn tokens(value: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii)
}

/// Takes a body from what has arrived.
pub(crate) enum BodyReader {
    Length(usize),
    Chunked(ChunkedReader),
    UntilClose,
}

impl BodyReader {
    pub(crate) fn new(framing: Framing) -> Self {
        match framing {
            Framing::Length(length) => Self::Length(length),
            Framing::Chunked => Self::Chunked(ChunkedReader { body: BytesMut::new(), expected: Expected::Size }),
            Framing::UntilClose => Self::UntilClose,
        }
    }

    /// The whole body; `None` if there is more to come.
    pub(crate) fn take(&mut self, arrived: &mut BytesMut) -> Result<Option<Bytes>, ResponseError> {
        match self {
            Self::Length(length) if arrived.len() < *length => Ok(None),
            Self::Length(length) => Ok(Some(arrived.split_to(*length).freeze())),
            Self::Chunked(chunked) => chunked.take(arrived),
            Self::UntilClose if arrived.len() > MAX_BODY_BYTES => Err(ResponseError::TooLarge),
            Self::UntilClose => Ok(None),
        }
    }

    /// The whole body, if the end of the connection is its end.
    pub(crate) fn end(&self, arrived: &mut BytesMut) -> Option<Bytes> {
        matches!(self, Self::UntilClose).then(|| arrived.split().freeze())
    }
}

pub(crate) struct ChunkedReader {
    body: BytesMut,
    expected: Expected,
}

/// What comes next in a chunked body.
enum Expected {
    /// The line with a chunk's size.
    Size,
    /// So many bytes of a chunk.
    Data(usize),
    /// The line break behind a chunk.
    LineBreak,
    /// Trailers, which nobody reads, and the empty line behind them.
    Trailer,
}

impl ChunkedReader {
    fn take(&mut self, arrived: &mut BytesMut) -> Result<Option<Bytes>, ResponseError> {
        loop {
            match self.expected {
                Expected::Size => match httparse::parse_chunk_size(arrived) {
                    Ok(Status::Complete((line, size))) => {
                        let size = usize::try_from(size).unwrap_or(usize::MAX);
                        if size > MAX_BODY_BYTES - self.body.len() {
                            return Err(ResponseError::TooLarge);
                        }
                        arrived.advance(line);
                        self.expected = if size == 0 { Expected::Trailer } else { Expected::Data(size) };
                    }
                    Ok(Status::Partial) => return more_of_a_line(arrived),
                    Err(_) => return Err(ResponseError::Malformed),
                },
                Expected::Data(0) => self.expected = Expected::LineBreak,
                Expected::Data(_) if arrived.is_empty() => return Ok(None),
                Expected::Data(left) => {
                    let data = arrived.split_to(left.min(arrived.len()));
                    self.expected = Expected::Data(left - data.len());
                    self.body.unsplit(data);
                }
                Expected::LineBreak if arrived.len() < 2 => return Ok(None),
                Expected::LineBreak if !arrived.starts_with(b"\r\n") => return Err(ResponseError::Malformed),
                Expected::LineBreak => {
                    arrived.advance(2);
                    self.expected = Expected::Size;
                }
                Expected::Trailer => {
                    let Some(end) = arrived.iter().position(|&byte| byte == b'\n') else {
                        return more_of_a_line(arrived);
                    };
                    let is_last = arrived[..end].trim_ascii().is_empty();
                    arrived.advance(end + 1);
                    if is_last {
                        return Ok(Some(self.body.split().freeze()));
                    }
                }
            }
        }
    }
}

fn more_of_a_line(arrived: &BytesMut) -> Result<Option<Bytes>, ResponseError> {
    if arrived.len() < MAX_HEAD_BYTES { Ok(None) } else { Err(ResponseError::TooLarge) }
}

#[cfg(test)]
mod tests;
