//! A small file server that fails as it is told.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// What was asked for, and how much of it went out.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub authorization: Option<String>,
    /// The first byte that was wanted.
    pub from: Option<usize>,
    pub sent: usize,
}

/// What to answer.
pub struct Reply {
    status: u16,
    headers: Vec<String>,
    body: Vec<u8>,
    end: End,
}

enum End {
    Whole,
    /// After so many bytes the connection is closed.
    Cut(usize),
    /// After so many bytes nothing more comes, until the other side has gone.
    Stall(usize),
}

impl Reply {
    /// Nothing but a status.
    pub fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), end: End::Whole }
    }

    /// A whole file, whatever range was wanted.
    pub fn whole(file: &[u8]) -> Self {
        Self { body: file.to_vec(), ..Self::status(200) }
    }

    /// A file, or that much of it that was wanted.
    pub fn file(file: &[u8], request: &Request) -> Self {
        let length = file.len();
        match request.from {
            None => Self::whole(file),
            Some(from) if from < length => Self {
                headers: vec![format!("Content-Range: bytes {from}-{}/{length}", length - 1)],
                body: file[from..].to_vec(),
                ..Self::status(206)
            },
            Some(_) => Self { headers: vec![format!("Content-Range: bytes */{length}")], ..Self::status(416) },
        }
    }

    /// The same, with one more header.
    pub fn with(mut self, header: String) -> Self {
        self.headers.push(header);
        self
    }

    /// The same, but the connection is closed after so many bytes.
    pub fn cut_after(self, bytes: usize) -> Self {
        Self { end: End::Cut(bytes), ..self }
    }

    /// The same, but after so many bytes nothing more comes.
    pub fn stall_after(self, bytes: usize) -> Self {
        Self { end: End::Stall(bytes), ..self }
    }
}

/// The server, which runs as long as the test does.
pub struct Server {
    address: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Answers as it is told; the number says how many requests there were before.
    pub fn that(answer: impl Fn(usize, &Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            address: format!("http://{}", listener.local_addr().unwrap()),
            requests: Arc::new(Mutex::new(Vec::new())),
        };
        let (requests, answer) = (server.requests.clone(), Arc::new(answer));
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (requests, answer) = (requests.clone(), answer.clone());
                thread::spawn(move || serve(socket, &requests, answer.as_ref()));
            }
        });
        server
    }

    /// Its base URL.
    pub fn url(&self) -> &str {
        &self.address
    }

    /// Every request so far.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// Every byte of a body that went out.
    pub fn sent(&self) -> usize {
        self.requests().iter().map(|request| request.sent).sum()
    }
}

fn serve(mut socket: TcpStream, requests: &Mutex<Vec<Request>>, answer: &dyn Fn(usize, &Request) -> Reply) {
    let Some(request) = read(&socket) else { return };
    let number = {
        let mut requests = requests.lock().unwrap();
        requests.push(request.clone());
        requests.len() - 1
    };
    let reply = answer(number, &request);
    let mut head =
        format!("HTTP/1.1 {} Test\r\nConnection: close\r\nContent-Length: {}\r\n", reply.status, reply.body.len());
    reply.headers.iter().for_each(|header| head.push_str(&format!("{header}\r\n")));
    let body = match reply.end {
        _ if request.method == "HEAD" => &[],
        End::Whole => &reply.body[..],
        End::Cut(bytes) | End::Stall(bytes) => &reply.body[..bytes.min(reply.body.len())],
    };
    if socket.write_all(format!("{head}\r\n").as_bytes()).and_then(|()| socket.write_all(body)).is_ok() {
        requests.lock().unwrap()[number].sent = body.len();
    }
    if matches!(reply.end, End::Stall(_)) && request.method != "HEAD" {
        let _ = socket.read(&mut [0]); // ends when the other side goes
    }
}

fn read(socket: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(socket).lines().map_while(Result::ok);
    let first = lines.next()?;
    let mut words = first.split(' ');
    let mut request =
        Request { method: words.next()?.to_owned(), path: words.next()?.to_owned(), ..Request::default() };
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':')?;
        match name.to_ascii_lowercase().as_str() {
            "range" => request.from = value.trim().strip_prefix("bytes=")?.split('-').next()?.parse().ok(),
            "authorization" => request.authorization = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    Some(request)
}
