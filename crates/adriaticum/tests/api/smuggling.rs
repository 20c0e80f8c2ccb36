//! Request smuggling, and bytes that are not HTTP.

use testbed::{Behaviour, Connection, FakeRuntime, Http2Client, Request, Service, chat_body};

use crate::ADRIATICUM;

/// Closes connections soon, so that the responses on them can be counted.
const SHORT_TIMEOUT: &str = "300ms";

/// Sends bytes that two servers could read differently, with a hidden request in them. There may be one response, and
/// the runtime must not get the hidden request.
fn is_not_smuggled(service: &Service, runtime: &FakeRuntime, what: &str, bytes: &[u8]) {
    let mut connection = service.connect();
    connection.send_while_open(bytes);
    let received = String::from_utf8_lossy(&connection.read_to_end()).into_owned();
    let responses = received.matches("HTTP/1.1 ").count();
    assert!(responses <= 1, "{what} got {responses} answers:\n{received}");
    let asked = runtime.requests();
    assert!(!asked.iter().any(|request| request.to_string().contains("smuggled")), "{what}: the runtime got {asked:?}");
}

#[test]
fn no_request_can_be_smuggled() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM
        .service_with(&[&runtime])
        .set("api.idle_timeout", SHORT_TIMEOUT)
        .set("api.head_timeout", SHORT_TIMEOUT)
        .start();
    let key = service.key();
    let hidden = String::from_utf8(Request::chat(&key, chat_body("smuggled")).bytes()).unwrap();
    let body = chat_body("hello");
    let length = body.len();
    let with_headers = |headers: &str, body: &str| {
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Authorization: Bearer {key}\r\n{headers}\r\n\r\n{body}"
        )
    };
    let chunked = |size_line: &str| format!("{size_line}\r\n{body}\r\n0\r\n\r\n{hidden}");
    let plain = format!("{body}{hidden}");
    let whole = plain.len();
    let hex = format!("{length:x}");
    let (te, cl) = ("Transfer-Encoding: chunked", format!("Content-Length: {length}"));
    let te_cases = [
        // Both, in either order, with the length covering the hidden request or not.
        ("TE and CL", format!("{te}\r\n{cl}")),
        ("CL and TE", format!("{cl}\r\n{te}")),
        ("TE and CL of all", format!("{te}\r\nContent-Length: {whole}")),
        ("TE and CL of nothing", format!("{te}\r\nContent-Length: 0")),
        ("TE twice", format!("{te}\r\n{te}")),
        ("TE and identity", format!("{te}\r\nTransfer-Encoding: identity")),
        ("identity and TE", format!("Transfer-Encoding: identity\r\n{te}")),
        ("TE list", "Transfer-Encoding: gzip, chunked".into()),
        ("TE not last", "Transfer-Encoding: chunked, gzip".into()),
        ("TE unknown", "Transfer-Encoding: xchunked".into()),
        ("TE in capitals", "Transfer-Encoding: CHUNKED".into()),
        ("TE quoted", "Transfer-Encoding: \"chunked\"".into()),
        ("TE with a tab", "Transfer-Encoding:\tchunked".into()),
        ("TE with a vertical tab", "Transfer-Encoding: \u{b}chunked".into()),
        ("TE empty", "Transfer-Encoding: ".into()),
        ("TE folded", "Transfer-Encoding:\r\n chunked".into()),
        ("TE with a space before the colon", "Transfer-Encoding : chunked".into()),
        ("TE with a space before the name", " Transfer-Encoding: chunked".into()),
        ("TE behind a bare CR", format!("X: y\r{te}")),
        ("TE behind a NUL", format!("X: y\0\r\n{te}")),
    ];
    for (what, headers) in &te_cases {
        is_not_smuggled(&service, &runtime, what, with_headers(headers, &chunked(&hex)).as_bytes());
    }
    let longer = format!("Content-Length: {whole}");
    let cl_cases = [
        ("two lengths", format!("{cl}\r\n{longer}")),
        ("two lengths, the longer first", format!("{longer}\r\n{cl}")),
        ("a list of lengths", format!("Content-Length: {length}, {whole}")),
        ("a signed length", format!("Content-Length: +{length}")),
        ("a negative length", format!("Content-Length: -{length}")),
        ("a hexadecimal length", format!("Content-Length: 0x{length:x}")),
        ("a length with a fraction", format!("Content-Length: {length}.0")),
        ("a length with a space inside", "Content-Length: 1 0".into()),
        ("no length", "Content-Length: ".into()),
        ("a huge length", "Content-Length: 99999999999999999999999".into()),
        ("a folded length", format!("Content-Length:\r\n {length}")),
        ("a space before the colon", format!("Content-Length : {length}")),
        ("a folded header", format!("X: y\r\n z\r\n{longer}")),
        ("a bare CR", format!("X: y\r{longer}\r\n{longer}")),
        ("a header without colon", format!("X\r\n{longer}")),
        ("a header without name", format!(": x\r\n{longer}")),
        (
            "a length of all, HTTP/2 upgrade",
            format!("{longer}\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk"),
        ),
        ("another length by Connection", format!("{longer}\r\nConnection: Content-Length")),
    ];
    for (what, headers) in &cl_cases {
        is_not_smuggled(&service, &runtime, what, with_headers(headers, &plain).as_bytes());
    }
    let size_cases = [
        ("no size", String::new()),
        ("0x", format!("0x{hex}")),
        ("a sign", format!("+{hex}")),
        ("negative", format!("-{hex}")),
        ("a space before", format!(" {hex}")),
        ("a bare LF", format!("{hex}\n")),
        ("a bare CR", format!("{hex}\r")),
        ("LF in the extension", format!("{hex};a\nb")),
        ("CR in the extension", format!("{hex};a\rb")),
        ("an overflow to the right size", format!("10000000000000000{hex}")),
        ("too long by one", format!("{:x}", length + 1)),
        ("too short by one", format!("{:x}", length - 1)),
        ("not hexadecimal", format!("{hex}g")),
        ("an underscore", format!("{}_{}", &hex[..1], &hex[1..])),
    ];
    for (what, size_line) in &size_cases {
        is_not_smuggled(&service, &runtime, what, with_headers(te, &chunked(size_line)).as_bytes());
    }
    let trailers = format!("{hex}\r\n{body}\r\n0\r\nContent-Length: 0\r\nHost: example.com\r\n\r\n{hidden}");
    is_not_smuggled(&service, &runtime, "trailers", with_headers(te, &trailers).as_bytes());
    let get = format!("GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{hidden}", hidden.len());
    is_not_smuggled(&service, &runtime, "a GET with a body", get.as_bytes());
    let refused = Request::chat("nonsense", hidden.clone());
    is_not_smuggled(&service, &runtime, "the body of a 401", &refused.bytes());
    is_not_smuggled(&service, &runtime, "the body of a 401, chunked", &refused.chunked(7).bytes());

    // A valid connection does carry two requests, so the test would see a second one.
    let mut connection = service.connect();
    let honest = Request::chat(&key, chat_body("honest")).bytes();
    connection.send([honest.as_slice(), &honest].concat());
    (0..2).for_each(|_| assert_eq!(connection.response().completion().content, "honest"));
}

#[test]
fn bytes_that_are_not_http_get_the_envelope_and_a_close() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).set("api.head_timeout", SHORT_TIMEOUT).start();
    let key = service.key();
    let head = |headers: &str| format!("GET / HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n").into_bytes();
    let (broken, too_large) = ("not valid HTTP", "at most 32768 bytes and 100 headers");
    let cases = [
        (b"\0\0\0\0\r\n\r\n".to_vec(), broken),
        (b"hello\r\n\r\n".to_vec(), broken),
        (b"GET /\r\n\r\n".to_vec(), broken),
        (b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n".to_vec(), broken),
        (b"GET  / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(), broken),
        (b"G\xc3\x89T / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(), broken),
        (head("no colon\r\n"), broken),
        (head("Content-Length: x\r\n"), broken),
        (head("Content-Length: -1\r\n"), broken),
        (head("Content-Length: 1\r\nContent-Length: 2\r\n"), broken),
        (head("Transfer-Encoding: gzip\r\n"), broken),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(), broken),
        (head(&"X: y\r\n".repeat(101)), too_large),
        (head(&format!("X: {}\r\n", "y".repeat(33_000))), too_large),
        (head(&format!("X: {}\r\n", "y".repeat(4_000_000))), too_large),
        (format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "a".repeat(70_000)).into_bytes(), too_large),
    ];
    let console = service.banner_value("Console").unwrap().rsplit(':').next().unwrap().parse::<u16>().unwrap();
    for address in [service.address(), ([127, 0, 0, 1], console).into(), service.ops_address()] {
        for (bytes, says) in &cases {
            let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
            let mut connection = Connection::connect(address);
            connection.send_while_open(bytes);
            let response = connection.try_response().unwrap_or_else(|| panic!("{shown}"));
            assert_eq!(response.status, 400, "{shown}");
            let message = response.expect_error("invalid_request");
            assert!(message.contains(says), "{shown}: {message}");
            assert_eq!(response.header("connection"), Some("close"), "{shown}");
            assert!(response.header("date").is_some(), "{shown}");
            connection.assert_closed();
        }
    }
    // On every listener, for every response: the bytes that follow could have been meant as a part of the request.
    for address in [service.address(), ([127, 0, 0, 1], console).into(), service.ops_address()] {
        for host in ["localhost", "elsewhere.example"] {
            let request = Request::chat(&key, "").without("Host").header("Host", host).target("/healthz").chunked(5);
            let mut connection = Connection::connect(address);
            let response = connection.send(request.bytes()).response();
            assert_eq!(response.header("connection"), Some("close"), "{address} {host}: {response:?}");
            connection.assert_closed();
        }
    }
    // Invalid HTTP/2 gets no response.
    let received = service.connect().send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nno frame of HTTP/2 at all").read_to_end();
    assert!(!String::from_utf8_lossy(&received).contains(" 200 "), "{received:?}");
    assert_eq!(runtime.requests().len(), 0);
    service.chat(&key, "hello").completion();
}

#[test]
fn a_response_is_complete_before_the_error_for_what_follows_it() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let good = Request::chat(&service.key(), chat_body("hello")).bytes();
    for _ in 0..20 {
        let mut connection = service.connect();
        connection.send([good.as_slice(), b"no request at all\r\n\r\n"].concat());
        assert_eq!(connection.response().completion().content, "hello");
        connection.response().expect_error("invalid_request");
        connection.assert_closed();
    }
}

#[test]
fn heads_have_the_same_limits_over_http2() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let connection = Http2Client::connect(service.address());
    let with = |count: usize, bytes: usize| {
        let mut request = Http2Client::request(&service.key(), chat_body("hello"));
        for number in 0..count {
            let name = http::HeaderName::try_from(format!("x-{number}")).unwrap();
            request.headers_mut().insert(name, "y".repeat(bytes).parse().unwrap());
        }
        request
    };
    let requests = vec![with(1, 30_000), with(90, 1), with(1, 33_000), with(101, 1), with(0, 0)];
    let responses = connection.send(requests);
    for (at, response) in responses.iter().enumerate() {
        match at {
            2 | 3 => assert!(response.expect_error("invalid_request").contains("100 headers"), "{at}"),
            _ => drop(response.completion()),
        }
    }
}

#[test]
fn a_body_with_broken_framing_is_the_callers_error() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let head = Request::chat(&service.key(), "").chunked(1).head();
    for body in ["zz\r\n", "-1\r\n", "fffffffffffffffff\r\n", "1\r\n{x\r\n", "1;a\nb\r\n"] {
        let mut connection = service.connect();
        connection.send([head.as_slice(), body.as_bytes()].concat()).response().expect_error("invalid_request");
        connection.assert_closed();
    }
    assert_eq!(service.rows().len(), 5);
    assert_eq!(runtime.requests().len(), 0);
}
