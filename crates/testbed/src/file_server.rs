//! A small file server that can also fail in the middle of a response.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// A request, and how many bytes of the response's body were sent.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub authorization: Option<String>,
    /// The first byte of the requested range.
    pub from: Option<usize>,
    pub sent: usize,
}

pub struct Response {
    status: u16,
    headers: Vec<String>,
    body: Vec<u8>,
    end: End,
}

enum End {
    Whole,
    /// Closes the connection after this many bytes.
    Cut(usize),
    /// Sends nothing after this many bytes, until the client disconnects.
    Stall(usize),
}

impl Response {
    /// A status without a body.
    pub fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), end: End::Whole }
    }

    /// A whole file; the requested range is ignored.
    pub fn whole(file: &[u8]) -> Self {
        Self { body: file.to_vec(), ..Self::status(200) }
    }

    /// A file, or the requested range of it.
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

    pub fn with(mut self, header: String) -> Self {
        self.headers.push(header);
        self
    }

    pub fn cut_after(self, bytes: usize) -> Self {
        Self { end: End::Cut(bytes), ..self }
    }

    pub fn stall_after(self, bytes: usize) -> Self {
        Self { end: End::Stall(bytes), ..self }
    }
}

pub struct FileServer {
    address: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl FileServer {
    /// Sends the handler's responses; the handler gets the number of earlier requests.
    pub fn start(response: impl Fn(usize, &Request) -> Response + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            address: format!("http://{}", listener.local_addr().unwrap()),
            requests: Arc::new(Mutex::new(Vec::new())),
        };
        let (requests, response) = (server.requests.clone(), Arc::new(response));
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (requests, response) = (requests.clone(), response.clone());
                thread::spawn(move || serve(socket, &requests, response.as_ref()));
            }
        });
        server
    }

    pub fn url(&self) -> &str {
        &self.address
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// How many bytes of bodies were sent.
    pub fn sent(&self) -> usize {
        self.requests().iter().map(|request| request.sent).sum()
    }
}

fn serve(mut socket: TcpStream, requests: &Mutex<Vec<Request>>, response: &dyn Fn(usize, &Request) -> Response) {
    let Some(request) = read(&socket) else { return };
    let number = {
        let mut requests = requests.lock().unwrap();
        requests.push(request.clone());
        requests.len() - 1
    };
    let response = response(number, &request);
    let mut head = format!(
        "HTTP/1.1 {} Test\r\nConnection: close\r\nContent-Length: {}\r\n",
        response.status,
        response.body.len()
    );
    response.headers.iter().for_each(|header| head.push_str(&format!("{header}\r\n")));
    let body = match response.end {
        _ if request.method == "HEAD" => &[],
        End::Whole => &response.body[..],
        End::Cut(bytes) | End::Stall(bytes) => &response.body[..bytes.min(response.body.len())],
    };
    if socket.write_all(format!("{head}\r\n").as_bytes()).and_then(|()| socket.write_all(body)).is_ok() {
        requests.lock().unwrap()[number].sent = body.len();
    }
    if matches!(response.end, End::Stall(_)) && request.method != "HEAD" {
        let _ = socket.read(&mut [0]); // until the client disconnects
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
