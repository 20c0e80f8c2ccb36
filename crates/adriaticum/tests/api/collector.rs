//! A fake trace collector: receives OTLP over HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use prost::Message;

pub(crate) struct Collector {
    address: SocketAddr,
    bodies: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// A span, with its ids as text.
#[derive(Debug)]
pub(crate) struct Span {
    pub(crate) name: String,
    pub(crate) trace: String,
    pub(crate) id: String,
    pub(crate) parent: String,
    began: u64,
    ended: u64,
    attributes: Vec<(String, String)>,
}

impl Span {
    pub(crate) fn micros(&self) -> u64 {
        (self.ended - self.began) / 1_000
    }

    pub(crate) fn attribute(&self, name: &str) -> Option<String> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    }
}

impl Collector {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let collector = Self { address: listener.local_addr().unwrap(), bodies: Arc::default() };
        let bodies = collector.bodies.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let bodies = bodies.clone();
                std::thread::spawn(move || while take(&socket, &bodies).is_some() {});
            }
        });
        collector
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All spans so far, in the order of their start.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let bodies = self.bodies.lock().unwrap();
        let requests = bodies.iter().map(|body| ExportTraceServiceRequest::decode(body.as_slice()).unwrap());
        let scopes = requests.flat_map(|request| request.resource_spans).flat_map(|resource| resource.scope_spans);
        let mut spans: Vec<_> = scopes.flat_map(|scope| scope.spans).map(Span::from).collect();
        spans.sort_by_key(|span| span.began);
        spans
    }

    /// Whether anything received contains that text.
    pub(crate) fn received(&self, text: &str) -> bool {
        let within = |body: &Vec<u8>| body.windows(text.len()).any(|window| window == text.as_bytes());
        self.bodies.lock().unwrap().iter().any(within)
    }
}

impl From<opentelemetry_proto::tonic::trace::v1::Span> for Span {
    fn from(span: opentelemetry_proto::tonic::trace::v1::Span) -> Self {
        let hex = |bytes: &[u8]| base16ct::lower::encode_string(bytes);
        let attributes = span.attributes.into_iter().map(|attribute| {
            let value = match attribute.value.and_then(|value| value.value) {
                Some(Value::StringValue(text)) => text,
                Some(Value::IntValue(number)) => number.to_string(),
                other => format!("{other:?}"),
            };
            (attribute.key, value)
        });
        Self {
            name: span.name,
            trace: hex(&span.trace_id),
            id: hex(&span.span_id),
            parent: hex(&span.parent_span_id),
            began: span.start_time_unix_nano,
            ended: span.end_time_unix_nano,
            attributes: attributes.collect(),
        }
    }
}

/// Receives and accepts one request; `None` at the end of the connection.
fn take(mut socket: &TcpStream, bodies: &Mutex<Vec<Vec<u8>>>) -> Option<()> {
    let mut reader = BufReader::new(socket);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        reader.read_line(&mut head).ok().filter(|&count| count > 0)?;
    }
    assert!(head.starts_with("POST /v1/traces "), "{head}");
    let head = head.to_ascii_lowercase();
    assert!(head.contains("content-type: application/x-protobuf"), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok());
    let mut body = vec![0; length.unwrap()];
    reader.read_exact(&mut body).ok()?;
    bodies.lock().unwrap().push(body);
    socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n").ok()
}
