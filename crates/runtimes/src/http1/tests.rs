use proptest::prelude::*;

use super::*;

const ID: &[u8] = b"id-7";

#[derive(Debug, PartialEq, Eq)]
struct Response {
    head: ResponseHead,
    is_unusual: bool,
    body: Vec<u8>,
    /// What arrived behind it.
    rest: Vec<u8>,
}

/// Reads a response that arrives in the given pieces, and then the end of the connection.
fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Option<Response>, ResponseError> {
    let mut arrived = BytesMut::new();
    let mut reader = HeadReader::default();
    let mut begun: Option<(ResponseHead, BodyReader)> = None;
    let mut whole = None;
    for piece in pieces {
        arrived.extend_from_slice(piece);
        if begun.is_none() {
            begun = reader.take(&mut arrived, ID)?.map(|head| (head, BodyReader::new(head.framing)));
        }
        if let (Some((_, body)), None) = (&mut begun, &whole) {
            whole = body.take(&mut arrived)?;
        }
    }
    let Some((head, reader)) = begun else { return Ok(None) };
    let whole = whole.or_else(|| reader.end(&mut arrived));
    let is_unusual = reader.is_unusual();
    Ok(whole.map(|body| Response { head, is_unusual, body: body.to_vec(), rest: arrived.to_vec() }))
}

fn read_text(text: &str) -> Result<Option<Response>, ResponseError> {
    read([text.as_bytes()])
}

/// Head and body, whether the connection may be used again, the body as it is read, and what is behind it.
#[test]
fn a_response_has_the_body_that_its_head_says() {
    let chunks = "2\r\nab\r\n1\r\nc\r\n0\r\n\r\n";
    let cases = [
        ("200 OK\r\nContent-Length: 3\r\n\r\nabc", true, "abc", ""),
        ("200\r\ncontent-length:3\r\n\r\nabcHTTP", true, "abc", "HTTP"),
        (&format!("200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n{chunks}"), true, "abc", ""),
        // Not a 200.
        ("204 None\r\n\r\nx", false, "", "x"),
        ("101 Switching\r\n\r\nx", false, "", "x"),
        ("429 Wait\r\nContent-Length: 1\r\n\r\nx", false, "x", ""),
        // The runtime closes it.
        ("200 OK\r\nContent-Length: 0\r\nConnection: x, Close\r\n\r\n", false, "", ""),
        ("200 OK\r\n\r\nabc", false, "abc", ""),
        ("200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\nabc", false, "abc", ""),
        // Unusual.
        ("200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", false, "abc", ""),
        (&format!("200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}"), false, "abc", ""),
        ("200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\n\r\n", false, "abc", ""),
        ("200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA: b\r\n\r\nx", false, "abc", "x"),
        ("100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", false, "x", ""),
    ];
    for (text, is_kept, body, rest) in cases {
        let response = read_text(&format!("HTTP/1.1 {text}")).unwrap().unwrap_or_else(|| panic!("{text}"));
        assert_eq!(response.head.keeps_alive && !response.is_unusual, is_kept, "{text}");
        assert_eq!((response.body.as_slice(), response.rest.as_slice()), (body.as_bytes(), rest.as_bytes()), "{text}");
    }
}

#[test]
fn a_connection_to_an_older_server_is_not_used_again() {
    let response = read_text("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n");
    assert!(!response.unwrap().unwrap().head.keeps_alive);
}

#[test]
fn an_id_is_found_wherever_the_head_has_it() {
    for (head, has_id) in [("X-Request-Id: id-7", true), ("Via: x; id-77", true), ("X-Request-Id: id-6", false)] {
        let response = read_text(&format!("HTTP/1.1 200 OK\r\n{head}\r\nContent-Length: 0\r\n\r\n"));
        assert_eq!(response.unwrap().unwrap().head.has_id, has_id, "{head}");
    }
    assert!(!contains(b"anything", b""));
}

/// Each byte of a head is looked at once, however slowly it comes.
#[test]
fn a_head_that_arrives_byte_by_byte_costs_no_more_than_one_that_arrives_at_once() {
    let mut arrived = BytesMut::from(&b"HTTP/1.1 200 OK\r\n"[..]);
    let mut reader = HeadReader::default();
    while arrived.len() < MAX_HEAD_BYTES - 8 {
        arrived.extend_from_slice(b"A: b\r\n");
        assert_eq!(reader.take(&mut arrived, ID), Ok(None));
        assert!(reader.searched + 2 > arrived.len(), "what was searched is not searched again");
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
fn what_is_no_response_or_too_much_of_one_is_an_error() {
    use ResponseError::{Malformed, TooLarge};
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let long = |bytes: usize| "x".repeat(bytes);
    let cases = [
        ("SSH-2.0-OpenSSH_9.2".to_owned(), Malformed),
        ("HTTP/1.1 2000 OK\r\n\r\n".into(), Malformed),
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd".into(), Malformed),
        ("HTTP/1.1 200 OK\r\nContent-Length: +3\r\n\r\nabc".into(), Malformed),
        ("HTTP/1.1 200 OK\r\nContent-Length: 3, 3\r\n\r\nabc".into(), Malformed),
        ("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\nabc".into(), Malformed),
        (format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", MAX_BODY_BYTES + 1), TooLarge),
        (format!("HTTP/1.1 200 OK\r\nA: {}", long(MAX_HEAD_BYTES)), TooLarge),
        (format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(MAX_HEADERS + 1)), TooLarge),
        (format!("HTTP/1.1 200 OK\r\n\r\n{}", long(MAX_BODY_BYTES + 1)), TooLarge),
        ("\r\nHTTP/1.1 200 OK\r\n\r\n".into(), Malformed),
        (format!("{chunked}zz\r\n"), Malformed),
        (format!("{chunked}\r\n\r\n"), Malformed),
        (format!("{chunked};x\r\n\r\n"), Malformed),
        (format!("{chunked}1x\r\na\r\n"), Malformed),
        (format!("{chunked}1\na\r\n"), Malformed),
        (format!("{chunked}0\r\n\n"), Malformed),
        (format!("{chunked}1\r\nabc\r\n"), Malformed),
        (format!("{chunked}400001\r\n"), TooLarge),
        (format!("{chunked}ffffffffffffffff\r\n"), TooLarge),
        (format!("{chunked}0\r\nA: {}", long(MAX_LINE_BYTES)), TooLarge),
        (format!("{chunked}1;{}", long(MAX_LINE_BYTES)), TooLarge),
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
