//! HTTP/2 rapid reset: thousands of streams, reset as soon as they are opened.

use testbed::{Behaviour, Connection, FakeRuntime};

use crate::ADRIATICUM;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_HEADERS: u8 = 4;
const CANCEL: u32 = 8;
const ENHANCE_YOUR_CALM: u32 = 11;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The head of a valid request without compression; its body is not sent.
fn head(key: &str) -> Vec<u8> {
    let authorization = format!("Bearer {key}");
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", "/v1/chat/completions"),
        ("content-type", "application/json"),
        ("authorization", &authorization),
    ];
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}

/// The error code of the GOAWAY frame.
fn goodbye(mut frames: &[u8]) -> Option<u32> {
    while let Some((start, rest)) = frames.split_at_checked(9) {
        let length = u32::from_be_bytes([0, start[0], start[1], start[2]]) as usize;
        let (payload, rest) = rest.split_at_checked(length)?;
        if start[3] == GOAWAY && payload[4..8] != [0; 4] {
            return Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
        }
        frames = rest;
    }
    None
}

#[test]
fn streams_opened_and_reset_by_the_thousand_end_the_connection_and_nothing_else() {
    const STREAMS: u32 = 20_000;
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let key = service.key();
    let head = head(&key);
    let mut flood = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    for stream in (0..STREAMS).map(|number| 2 * number + 1) {
        flood.extend(frame(HEADERS, END_HEADERS, stream, &head));
        flood.extend(frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes()));
    }
    for _ in 0..4 {
        let mut connection = Connection::connect(service.address());
        let mut sender = connection.second_handle();
        std::thread::scope(|scope| {
            let flooding = scope.spawn(|| sender.send_while_open(&flood));
            service.chat(&key, "hello").completion();
            let said = connection.read_to_end();
            assert_eq!(goodbye(&said), Some(ENHANCE_YOUR_CALM), "{said:?}");
            let _ = flooding.join().unwrap();
        });
    }
    service.chat(&key, "hello").completion();
    assert_eq!(runtime.requests().len(), 5, "no stream reached a runtime");
    let rows = service.rows().len();
    assert!(rows < STREAMS as usize, "{rows} of {} were begun", 4 * STREAMS);
}
