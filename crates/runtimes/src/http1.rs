//! HTTP/1.1 as a client speaks it, without a socket: the bytes of a request, and what the bytes of a response mean.
//!
//! A connection to a runtime carries one request at a time, and its response is used as a whole. What is unusual is read,
//! but the connection is not used again: a response that ends elsewhere than the runtime meant would hand its rest to
//! the next caller.

use std::io;
use std::mem::MaybeUninit;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use httparse::{Header, ParserConfig, Status};

/// What a response begins with.
const PROTOCOL: &[u8] = b"HTTP/1.";
/// Limits of a response: its head, the lines around its chunks, and its body, far above 512 tokens of anything.
const MAX_HEAD_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 100;
const MAX_LINE_BYTES: usize = 1 << 10;
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
    /// Whether another request may follow on the connection: this is a 200, and where it ends is beyond doubt.
    pub(crate) keeps_alive: bool,
    /// Whether the id of the request is in it.
    pub(crate) has_id: bool,
}

/// Where the body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

/// Takes a head from what has arrived. Looks at every byte once, however it arrives.
#[derive(Default)]
pub(crate) struct HeadReader {
    /// Before this there is no end of the head.
    searched: usize,
    has_skipped: bool,
}

impl HeadReader {
    /// `None` if there is more to come. Interim responses are skipped.
    pub(crate) fn take(&mut self, arrived: &mut BytesMut, id: &[u8]) -> Result<Option<ResponseHead>, ResponseError> {
        loop {
            let known = arrived.len().min(PROTOCOL.len());
            if arrived[..known] != PROTOCOL[..known] {
                return Err(ResponseError::Malformed);
            }
            let Some(end) = self.find_end(arrived) else {
                return if arrived.len() < MAX_HEAD_BYTES { Ok(None) } else { Err(ResponseError::TooLarge) };
            };
            let head = arrived.split_to(end);
            self.searched = 0;
            let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADERS];
            let mut response = httparse::Response::new(&mut []);
            match ParserConfig::default().parse_response_with_uninit_headers(&mut response, &head, &mut headers) {
                Ok(Status::Complete(_)) => {}
                Err(httparse::Error::TooManyHeaders) => return Err(ResponseError::TooLarge),
                Ok(Status::Partial) | Err(_) => return Err(ResponseError::Malformed),
            }
            let status = response.code.and_then(|code| StatusCode::from_u16(code).ok());
            let status = status.ok_or(ResponseError::Malformed)?;
            if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
                self.has_skipped = true;
                continue;
            }
            let mut read = ResponseHead::read(status, response.version == Some(1), response.headers)?;
            read.keeps_alive &= !self.has_skipped;
            read.has_id = contains(&head, id);
            return Ok(Some(read));
        }
    }

    /// The end of the empty line behind the headers.
    fn find_end(&mut self, arrived: &[u8]) -> Option<usize> {
        while let Some(at) = memchr::memchr(b'\n', &arrived[self.searched..]) {
            let next_line = self.searched + at + 1;
            match &arrived[next_line..] {
                [b'\n', ..] => return Some(next_line + 1),
                [b'\r', b'\n', ..] => return Some(next_line + 2),
                [] | [b'\r'] => {
                    self.searched += at;
                    return None;
                }
                _ => self.searched = next_line,
            }
        }
        self.searched = arrived.len();
        None
    }
}

impl ResponseHead {
    fn read(status: StatusCode, is_http_11: bool, headers: &[Header<'_>]) -> Result<Self, ResponseError> {
        let (mut length, mut is_chunked) = (None, None);
        let (mut retry_after, mut keeps_alive) = (None, is_http_11 && status == StatusCode::OK);
        for Header { name, value } in headers {
            if header::CONTENT_LENGTH.as_str().eq_ignore_ascii_case(name) {
                let given: usize = parse(value).ok_or(ResponseError::Malformed)?;
                keeps_alive &= length.is_none();
                if *length.get_or_insert(given) != given {
                    return Err(ResponseError::Malformed);
                }
            } else if header::TRANSFER_ENCODING.as_str().eq_ignore_ascii_case(name) {
                keeps_alive &= is_chunked.is_none();
                is_chunked = Some(value.trim_ascii().eq_ignore_ascii_case(b"chunked"));
            } else if header::CONNECTION.as_str().eq_ignore_ascii_case(name) {
                let mut tokens = value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
                keeps_alive &= !tokens.any(|token| token.eq_ignore_ascii_case(b"close"));
            } else if header::RETRY_AFTER.as_str().eq_ignore_ascii_case(name) {
                retry_after = Some(parse(value).unwrap_or(0) as u64);
            }
        }
        let framing = match (is_chunked, length) {
            _ if status.is_informational() || matches!(status.as_u16(), 204 | 304) => Framing::Length(0),
            (Some(true), _) => Framing::Chunked,
            (None, Some(length)) if length <= MAX_BODY_BYTES => Framing::Length(length),
            (None, Some(_)) => return Err(ResponseError::TooLarge),
            (Some(false), _) | (None, None) => Framing::UntilClose,
        };
        keeps_alive &= framing != Framing::UntilClose && !(is_chunked.is_some() && length.is_some());
        Ok(Self { status, retry_after, framing, keeps_alive, has_id: false })
    }
}

fn parse(value: &[u8]) -> Option<usize> {
    // `parse` would take a sign.
    let digits =
        std::str::from_utf8(value.trim_ascii()).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()))?;
    digits.parse().ok()
}

/// Whether a request's id is in these bytes. An empty one is in none.
pub(crate) fn contains(bytes: &[u8], id: &[u8]) -> bool {
    !id.is_empty() && memchr::memmem::find(bytes, id).is_some()
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
            Framing::Chunked => Self::Chunked(ChunkedReader::default()),
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

    /// Whether there were chunk extensions or trailers, which no runtime sends.
    pub(crate) fn is_unusual(&self) -> bool {
        matches!(self, Self::Chunked(ChunkedReader { is_unusual: true, .. }))
    }
}

#[derive(Default)]
pub(crate) struct ChunkedReader {
    body: BytesMut,
    expected: Expected,
    is_unusual: bool,
}

/// What comes next in a chunked body.
#[derive(Default, Clone, Copy)]
enum Expected {
    /// The line with a chunk's size.
    #[default]
    Size,
    /// That many bytes of a chunk.
    Data(usize),
    /// The line break behind a chunk.
    LineBreak,
    /// Trailers, which are not read, and the empty line behind them.
    Trailer,
}

impl ChunkedReader {
    fn take(&mut self, arrived: &mut BytesMut) -> Result<Option<Bytes>, ResponseError> {
        loop {
            match self.expected {
                Expected::Data(0) => self.expected = Expected::LineBreak,
                Expected::Data(_) if arrived.is_empty() => return Ok(None),
                Expected::Data(left) => {
                    let data = arrived.split_to(left.min(arrived.len()));
                    self.expected = Expected::Data(left - data.len());
                    self.body.unsplit(data);
                }
                Expected::Size | Expected::LineBreak | Expected::Trailer => {
                    let Some(line) = take_line(arrived)? else { return Ok(None) };
                    match (self.expected, &line[..]) {
                        (Expected::Size, line) => self.begin_chunk(line)?,
                        (Expected::LineBreak, []) => self.expected = Expected::Size,
                        (Expected::Trailer, []) => return Ok(Some(self.body.split().freeze())),
                        (Expected::Trailer, _) => self.is_unusual = true,
                        _ => return Err(ResponseError::Malformed),
                    }
                }
            }
        }
    }

    fn begin_chunk(&mut self, line: &[u8]) -> Result<(), ResponseError> {
        let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let (digits, extension) = line.split_at(digits);
        if digits.is_empty() || !matches!(extension, [] | [b';' | b' ' | b'\t', ..]) {
            return Err(ResponseError::Malformed);
        }
        self.is_unusual |= !extension.is_empty();
        let size = std::str::from_utf8(digits).ok().and_then(|digits| usize::from_str_radix(digits, 16).ok());
        let size = size.filter(|size| *size <= MAX_BODY_BYTES - self.body.len()).ok_or(ResponseError::TooLarge)?;
        self.expected = if size == 0 { Expected::Trailer } else { Expected::Data(size) };
        Ok(())
    }
}

/// A line without its line break; `None` if there is more to come.
fn take_line(arrived: &mut BytesMut) -> Result<Option<BytesMut>, ResponseError> {
    let Some(end) = memchr::memchr(b'\n', &arrived[..arrived.len().min(MAX_LINE_BYTES)]) else {
        return if arrived.len() < MAX_LINE_BYTES { Ok(None) } else { Err(ResponseError::TooLarge) };
    };
    let mut line = arrived.split_to(end + 1);
    if !line.ends_with(b"\r\n") {
        return Err(ResponseError::Malformed);
    }
    line.truncate(end - 1);
    Ok(Some(line))
}

#[cfg(test)]
mod tests;
