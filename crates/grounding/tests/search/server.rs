//! A scripted search server on plain sockets, because half of the scripts violate HTTP.

use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[derive(Clone)]
pub(crate) enum Response {
    /// A complete response, after which the connection stays open.
    Complete(u16, Vec<(&'static str, &'static str)>, Vec<u8>),
    /// These bytes, then the connection is closed.
    ThenClose(Vec<u8>),
    /// These bytes, then no more.
    ThenHang(Vec<u8>),
}

impl Response {
    pub(crate) fn status(status: u16) -> Self {
        Self::Complete(status, Vec::new(), b"text of the server".to_vec())
    }

    pub(crate) fn json(text: impl Into<Vec<u8>>) -> Self {
        Self::Complete(200, vec![("content-type", "application/json")], text.into())
    }

    /// A recording by its name in `tests/responses`.
    pub(crate) fn recorded(name: &str) -> Self {
        Self::json(recording(name))
    }
}

pub(crate) fn recording(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/responses").join(name).with_extension("json");
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[derive(Debug, Clone)]
pub(crate) struct ReceivedRequest {
    /// Method, target and version.
    pub(crate) line: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl ReceivedRequest {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) connections: usize,
    pub(crate) requests: usize,
    /// Connections that the client closed while it waited.
    pub(crate) cancelled: usize,
}

/// A server on a separate port, which runs as long as the test's runtime.
pub(crate) struct Server {
    /// For example `127.0.0.1:40000`.
    pub(crate) address: String,
    seen: Arc<Mutex<Vec<ReceivedRequest>>>,
    counts: watch::Receiver<Counts>,
}

impl Server {
    /// Responds to the first request with `script(0)`, and so on.
    pub(crate) async fn start(script: impl Fn(usize) -> Response + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (seen, (count, counts)) =
            (Arc::<Mutex<Vec<ReceivedRequest>>>::default(), watch::channel(Counts::default()));
        let state = Arc::new(ServerState { script: Box::new(script), seen: seen.clone(), count });
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                state.count.send_modify(|counts| counts.connections += 1);
                tokio::spawn(serve(state.clone(), socket));
            }
        });
        Self { address, seen, counts }
    }

    pub(crate) async fn always(reply: Response) -> Self {
        Self::start(move |_| reply.clone()).await
    }

    pub(crate) fn searxng(&self) -> String {
        format!("searxng+http://{}", self.address)
    }

    pub(crate) fn opensearch(&self) -> String {
        format!("opensearch+http://{}/handbook", self.address)
    }

    pub(crate) fn received(&self) -> Vec<ReceivedRequest> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn counts(&self) -> Counts {
        *self.counts.borrow()
    }

    pub(crate) async fn until(&self, wanted: impl FnMut(&Counts) -> bool) {
        let mut counts = self.counts.clone();
        tokio::time::timeout(crate::LONG_DEADLINE, counts.wait_for(wanted)).await.expect("it holds in time").unwrap();
    }
}

struct ServerState {
    script: Box<dyn Fn(usize) -> Response + Send + Sync>,
    seen: Arc<Mutex<Vec<ReceivedRequest>>>,
    count: watch::Sender<Counts>,
}

async fn serve(state: Arc<ServerState>, socket: TcpStream) {
    let mut socket = BufReader::new(socket);
    while let Some(request) = read(&mut socket).await {
        let at = {
            let mut seen = state.seen.lock().unwrap();
            seen.push(request);
            seen.len() - 1
        };
        state.count.send_modify(|counts| counts.requests += 1);
        let (bytes, is_end) = match (state.script)(at) {
            Response::Complete(status, headers, body) => {
                let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
                let head = format!("HTTP/1.1 {status} Whatever\r\n{headers}content-length: {}\r\n\r\n", body.len());
                ([head.into_bytes(), body].concat(), false)
            }
            Response::ThenClose(bytes) => (bytes, true),
            Response::ThenHang(bytes) => {
                // A client that has read enough may have disconnected.
                let _ = socket.write_all(&bytes).await;
                let _ = socket.read(&mut [0]).await;
                state.count.send_modify(|counts| counts.cancelled += 1);
                return;
            }
        };
        if socket.write_all(&bytes).await.is_err() || is_end {
            return;
        }
    }
}

async fn read(socket: &mut BufReader<TcpStream>) -> Option<ReceivedRequest> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if socket.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let line = lines.remove(0);
    let headers = lines.iter().filter_map(|line| line.split_once(": "));
    let headers: Vec<_> = headers.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
    let mut seen = ReceivedRequest { line, headers, body: String::new() };
    let length = seen.header("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    socket.read_exact(&mut body).await.ok()?;
    seen.body = String::from_utf8(body).unwrap();
    Some(seen)
}
