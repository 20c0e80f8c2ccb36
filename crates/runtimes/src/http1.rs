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
pub(crate) const MAX_BODY_BYTES: usize = 4 << 20;

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
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, PartialEq, Eq)]
    struct Response {
        head: ResponseHead,
        body: Vec<u8>,
        /// What arrived behind it.
        rest: Vec<u8>,
    }

    /// Reads a response that arrives in the given pieces, and then the end of the connection.
    fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Option<Response>, ResponseError> {
        let mut arrived = BytesMut::new();
        let mut begun: Option<(ResponseHead, BodyReader)> = None;
        let mut whole = None;
        for piece in pieces {
            arrived.extend_from_slice(piece);
            if begun.is_none() {
                begun = ResponseHead::take(&mut arrived)?.map(|head| (head, BodyReader::new(head.framing)));
            }
            if let (Some((head, body)), None) = (&mut begun, &whole) {
                whole = body.take(&mut arrived)?.map(|body| (*head, body));
            }
        }
        if let (Some((head, body)), None) = (&begun, &whole) {
            whole = body.end(&mut arrived).map(|body| (*head, body));
        }
        Ok(whole.map(|(head, body)| Response { head, body: body.to_vec(), rest: arrived.to_vec() }))
    }

    fn read_text(text: &str) -> Result<Option<Response>, ResponseError> {
        read([text.as_bytes()])
    }

    #[test]
    fn a_response_has_the_body_that_its_head_says() {
        let cases = [
            ("200 OK\r\nContent-Length: 3\r\n\r\nabc", Framing::Length(3), true, "abc", ""),
            (
                "200 OK\r\ncontent-length: 3\r\nContent-Length: 3\r\n\r\nabcHTTP",
                Framing::Length(3),
                true,
                "abc",
                "HTTP",
            ),
            ("200\r\nContent-Length: 0\r\nConnection: x, Close\r\n\r\n", Framing::Length(0), false, "", ""),
            ("204 None\r\n\r\nx", Framing::Length(0), true, "", "x"),
            ("200 OK\r\n\r\nabc", Framing::UntilClose, false, "abc", ""),
            ("200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\nabc", Framing::UntilClose, false, "abc", ""),
            // Both: the length is that of something else.
            (
                "200 OK\r\nContent-Length: 99\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n2;x=y\r\nab\r\n1\r\nc\r\n0\r\nA: b\r\n\r\nx",
                Framing::Chunked,
                true,
                "abc",
                "x",
            ),
        ];
        for (text, framing, keeps_alive, body, rest) in cases {
            let response = read_text(&format!("HTTP/1.1 {text}")).unwrap().unwrap_or_else(|| panic!("{text}"));
            let head = response.head;
            assert_eq!((head.framing, head.keeps_alive), (framing, keeps_alive), "{text}");
            assert_eq!(
                (response.body.as_slice(), response.rest.as_slice()),
                (body.as_bytes(), rest.as_bytes()),
                "{text}"
            );
        }
    }

    #[test]
    fn interim_responses_are_skipped() {
        let text = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\nHTTP/1.1 503 No\r\nRetry-After: 7\r\nContent-Length: 1\r\n\r\nx";
        let response = read_text(text).unwrap().unwrap();
        assert_eq!((response.head.status.as_u16(), response.head.retry_after), (503, Some(7)));
        assert_eq!(response.body, b"x");
    }

    #[test]
    fn an_older_server_must_say_that_it_keeps_the_connection() {
        for (text, keeps_alive) in [("", false), ("Connection: Keep-Alive\r\n", true)] {
            let response = read_text(&format!("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n{text}\r\n")).unwrap().unwrap();
            assert_eq!(response.head.keeps_alive, keeps_alive);
        }
    }

    #[test]
    fn what_is_no_response_or_too_much_of_one_is_an_error() {
        use ResponseError::{Malformed, TooLarge};
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let long = |bytes: usize| "x".repeat(bytes);
        let cases = [
            ("SSH-2.0-OpenSSH_9.2\r\n".to_owned(), Malformed),
            ("HTTP/1.1 2000 OK\r\n\r\n".into(), Malformed),
            ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd".into(), Malformed),
            ("HTTP/1.1 200 OK\r\nContent-Length: +3\r\n\r\nabc".into(), Malformed),
            ("HTTP/1.1 200 OK\r\nContent-Length: 3, 3\r\n\r\nabc".into(), Malformed),
            ("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\nabc".into(), Malformed),
            (format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", MAX_BODY_BYTES + 1), TooLarge),
            (format!("HTTP/1.1 200 OK\r\nA: {}", long(MAX_HEAD_BYTES)), TooLarge),
            (format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(MAX_HEADERS + 1)), TooLarge),
            (format!("HTTP/1.1 200 OK\r\n\r\n{}", long(MAX_BODY_BYTES + 1)), TooLarge),
            (format!("{chunked}zz\r\n"), Malformed),
            (format!("{chunked}1\r\nabc"), Malformed),
            (format!("{chunked}400001\r\n"), TooLarge),
            (format!("{chunked}ffffffffffffffff\r\n"), TooLarge),
            (format!("{chunked}0\r\nA: {}", long(MAX_HEAD_BYTES)), TooLarge),
        ];
        for (text, error) in cases {
            assert_eq!(read_text(&text), Err(error), "{}", &text[..text.len().min(100)]);
        }
    }

    #[test]
    fn a_request_is_written_as_it_is_sent() {
        let mut head = RequestHead::new(&Method::POST, "/v1/chat", &HeaderValue::from_static("host:1"), 2);
        head.add(&header::AUTHORIZATION, b"Bearer x");
        head.add(&header::COOKIE, b"a\r\nb: c");
        let expected = "POST /v1/chat HTTP/1.1\r\nhost: host:1\r\nauthorization: Bearer x\r\n\
                        content-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
        assert_eq!(String::from_utf8(head.with_json(b"{}")).unwrap(), expected);
    }

    proptest! {
        /// However the bytes are cut into pieces, and however the body into chunks.
        #[test]
        fn pieces_do_not_matter(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..300), 0..6),
            is_chunked: bool,
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let body = chunks.concat();
            let mut bytes = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n".to_vec();
            if is_chunked {
                bytes.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
                for chunk in &chunks {
                    bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                    bytes.extend_from_slice(chunk);
                    bytes.extend_from_slice(b"\r\n");
                }
                bytes.extend_from_slice(b"0\r\n\r\n");
            } else {
                bytes.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
                bytes.extend_from_slice(&body);
            }
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]);
            let response = read(pieces).unwrap().unwrap();
            prop_assert_eq!((&response.body, response.rest.is_empty()), (&body, true));
            // Any part of it is not the whole.
            prop_assert_eq!(read([&bytes[..bytes.len() - 1]]).unwrap(), None);
        }
    }
}
