//! An HTTP/1.1 client that can also send malformed requests.

use std::io::{BufRead, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use crate::{Response, TIMEOUT};

/// The body of a request with one message.
pub fn chat_body(content: &str) -> String {
    let message = serde_json::json!({ "role": "user", "content": content });
    serde_json::json!({ "model": "adriaticum", "messages": [message] }).to_string()
}

/// A request to be sent: valid, unless a test changes it.
#[derive(Debug, Clone)]
pub struct Request {
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    chunks: Option<usize>,
}

impl Request {
    /// A valid request with that key and body.
    pub fn chat(key: &str, body: impl Into<Vec<u8>>) -> Self {
        let headers =
            [("Host", "localhost"), ("Content-Type", "application/json"), ("Authorization", &format!("Bearer {key}"))];
        Self {
            method: "POST".into(),
            target: "/v1/chat/completions".into(),
            headers: headers.map(|(name, value)| (name.into(), value.into())).into(),
            body: body.into(),
            chunks: None,
        }
    }

    pub fn method(mut self, method: &str) -> Self {
        self.method = method.into();
        self
    }

    pub fn target(mut self, target: &str) -> Self {
        self.target = target.into();
        self
    }

    /// Sets a header, in place of any of that name.
    pub fn header(self, name: &str, value: &str) -> Self {
        self.without(name).add_header(name, value)
    }

    /// Adds a header beside those of that name.
    pub fn add_header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(header, _)| !header.eq_ignore_ascii_case(name));
        self
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Sends the body in chunks of that size, without a `Content-Length`.
    pub fn chunked(mut self, bytes: usize) -> Self {
        self.chunks = Some(bytes);
        self
    }

    /// Request line and headers, with the empty line.
    pub fn head(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&match self.chunks {
            Some(_) => "Transfer-Encoding: chunked\r\n\r\n".to_owned(),
            None => format!("Content-Length: {}\r\n\r\n", self.body.len()),
        });
        head.into_bytes()
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.head();
        match self.chunks {
            None => bytes.extend_from_slice(&self.body),
            Some(size) => {
                for chunk in self.body.chunks(size) {
                    bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                    bytes.extend_from_slice(chunk);
                    bytes.extend_from_slice(b"\r\n");
                }
                bytes.extend_from_slice(b"0\r\n\r\n");
            }
        }
        bytes
    }
}

/// A connection to the service, with its unread bytes.
pub struct Connection {
    socket: TcpStream,
    received: Vec<u8>,
}

impl Connection {
    pub fn connect(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).unwrap())
    }

    /// A connection, if a server listens there.
    pub fn try_connect(address: SocketAddr) -> Option<Self> {
        TcpStream::connect(address).ok().map(Self::over)
    }

    /// A connection from another of this machine's addresses.
    pub fn connect_from(source: IpAddr, address: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let socket = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind(SocketAddr::new(source, 0)).unwrap();
            socket.connect(address).await.unwrap().into_std().unwrap()
        });
        socket.set_nonblocking(false).unwrap();
        Self::over(socket)
    }

    fn over(socket: TcpStream) -> Self {
        socket.set_nodelay(true).unwrap();
        Self { socket, received: Vec::new() }.with_timeout(TIMEOUT)
    }

    /// With another limit on how long a read or a write may take.
    pub fn with_timeout(self, timeout: Duration) -> Self {
        self.socket.set_read_timeout(Some(timeout)).unwrap();
        self.socket.set_write_timeout(Some(timeout)).unwrap();
        self
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.socket.write_all(bytes.as_ref()).unwrap();
        self
    }

    /// Whether everything was sent; the other side may close the connection meanwhile.
    pub fn send_while_open(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.socket.write_all(bytes.as_ref()).is_ok()
    }

    /// A second handle, to send from another thread.
    pub fn second_handle(&self) -> Self {
        Self::over(self.socket.try_clone().unwrap())
    }

    /// Whether unread bytes, or the connection's end, have arrived.
    pub fn has_news(&self) -> bool {
        self.socket.set_nonblocking(true).unwrap();
        let peeked = self.socket.peek(&mut [0]);
        self.socket.set_nonblocking(false).unwrap();
        !self.received.is_empty() || !matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    /// The next response, an interim one included.
    pub fn response(&mut self) -> Response {
        self.next_response(true).expect("a response before the connection is closed")
    }

    /// The next response, or `None` if the connection is closed before it is complete.
    pub fn try_response(&mut self) -> Option<Response> {
        self.next_response(true)
    }

    /// The response to a HEAD request, which has no body, even with a `Content-Length`.
    pub fn response_to_head(&mut self) -> Response {
        self.next_response(false).expect("a response before the connection is closed")
    }

    /// Everything until the other side closes.
    pub fn read_to_end(&mut self) -> Vec<u8> {
        while self.receive() {}
        std::mem::take(&mut self.received)
    }

    /// Waits until the other side closes without another byte.
    pub fn assert_closed(&mut self) {
        let rest = self.read_to_end();
        assert!(rest.is_empty(), "bytes before the close: {:?}", String::from_utf8_lossy(&rest));
    }

    fn next_response(&mut self, with_body: bool) -> Option<Response> {
        let head_bytes = loop {
            match self.received.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                Some(at) => break at + 4,
                None if !self.receive() => return None,
                None => {}
            }
        };
        let head: Vec<u8> = self.received.drain(..head_bytes).collect();
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 "));
        let status = status.and_then(|line| line.get(..3)?.parse().ok()).unwrap_or_else(|| panic!("{head}"));
        let headers = lines.map(|line| line.split_once(": ").unwrap_or_else(|| panic!("{head}")));
        let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
        let mut response = Response { status, headers, body: Vec::new() };
        if with_body && response.header("transfer-encoding") == Some("chunked") {
            response.body = self.receive_chunks()?;
            return Some(response);
        }
        let length = response.header("content-length").map_or(0, |length| length.parse().unwrap());
        if with_body {
            while self.received.len() < length {
                if !self.receive() {
                    return None;
                }
            }
            response.body = self.received.drain(..length).collect();
        }
        Some(response)
    }

    /// A body of chunks; `None` if the other side closes before the last one.
    fn receive_chunks(&mut self) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let end = loop {
                match self.received.windows(2).position(|bytes| bytes == b"\r\n") {
                    Some(end) => break end,
                    None if !self.receive() => return None,
                    None => {}
                }
            };
            let head: Vec<u8> = self.received.drain(..end + 2).collect();
            let size = usize::from_str_radix(str::from_utf8(&head).ok()?.trim(), 16).ok()?;
            while self.received.len() < size + 2 {
                if !self.receive() {
                    return None;
                }
            }
            body.extend(self.received.drain(..size));
            self.received.drain(..2);
            if size == 0 {
                return Some(body);
            }
        }
    }

    /// Receives the next bytes; `false` once the other side has closed.
    fn receive(&mut self) -> bool {
        let mut bytes = [0; 16 << 10];
        match self.socket.read(&mut bytes) {
            Ok(0) => false,
            Ok(count) => {
                self.received.extend_from_slice(&bytes[..count]);
                true
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => true,
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => false,
            Err(error) => {
                panic!(
                    "neither a response nor a close: {error}; received {:?}",
                    String::from_utf8_lossy(&self.received)
                )
            }
        }
    }
}

/// Reads a request as a server does: its head and body, `None` at the end of the connection.
pub fn read_request(reader: &mut impl BufRead) -> Option<(String, Vec<u8>)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        reader.read_line(&mut head).ok().filter(|&count| count > 0)?;
    }
    let length =
        head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    Some((head, body))
}
