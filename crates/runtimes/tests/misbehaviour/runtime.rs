//! A runtime that misbehaves as the message of a request says, and returns that message as the completion.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Mutex;

/// Where responses carry the ids of their requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ids {
    None,
    InHead,
    InBody,
}

/// How it responds to a request. The first four are correct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behaviour {
    Complete,
    InChunks,
    ByteByByte,
    AfterInterim,
    Twice,
    /// Again after this number of milliseconds.
    TwiceLate(u64),
    /// Again, but incomplete.
    TwiceInPart,
    LineBreakBehind,
    NoContentWithBody,
    SwitchingProtocols,
    LengthAndChunks,
    Trailers,
    EmptyChunkSize,
    LengthTooSmall,
    LengthTooLarge,
    /// Refuses without reading the body, which is then read as another request.
    RefusedEarly,
    AnsweredEarly,
    ServerError,
    Garbage,
    Close,
    CloseInHead,
    CloseInBody,
}

use Behaviour::*;

const ALL: [Behaviour; 22] = [
    Complete,
    InChunks,
    ByteByByte,
    AfterInterim,
    Twice,
    TwiceLate(0),
    TwiceInPart,
    LineBreakBehind,
    NoContentWithBody,
    SwitchingProtocols,
    LengthAndChunks,
    Trailers,
    EmptyChunkSize,
    LengthTooSmall,
    LengthTooLarge,
    RefusedEarly,
    AnsweredEarly,
    ServerError,
    Garbage,
    Close,
    CloseInHead,
    CloseInBody,
];

impl Behaviour {
    /// A runtime without ids sends a second response within the time that connections to it stay unused: a later one would
    /// look like the next response.
    pub(crate) fn random(rng: &mut fastrand::Rng, ids: Ids) -> Self {
        let behaviours = if rng.bool() { &ALL[..4] } else { &ALL[4..] };
        match *rng.choice(behaviours).unwrap() {
            TwiceLate(_) => TwiceLate(rng.u64(..if ids == Ids::None { 2 } else { 150 })),
            other => other,
        }
    }

    pub(crate) fn is_good(self) -> bool {
        ALL[..4].contains(&self)
    }

    pub(crate) fn to_message(self, nonce: u64) -> String {
        let (at, late) = match self {
            TwiceLate(late) => (5, late),
            other => (ALL.iter().position(|known| *known == other).unwrap(), 0),
        };
        format!("{at} {late} {nonce}")
    }

    fn of_message(message: &str) -> Self {
        let mut numbers = message.split(' ').map(|number| number.parse::<u64>().unwrap());
        match ALL[numbers.next().unwrap() as usize] {
            TwiceLate(_) => TwiceLate(numbers.next().unwrap()),
            other => other,
        }
    }
}

pub(crate) struct Runtime {
    folder: TempDir,
    ids: Ids,
}

impl Runtime {
    /// Listens for as long as tokio runs.
    pub(crate) fn start(ids: Ids) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, ids));
            }
        });
        Self { folder, ids }
    }

    pub(crate) fn url(&self) -> String {
        format!("unix:{}", self.folder.path().join("socket").display())
    }

    pub(crate) fn ids(&self) -> Ids {
        self.ids
    }
}

/// Serves until either side closes the connection.
async fn serve(socket: UnixStream, ids: Ids) -> Option<()> {
    let (read, write) = socket.into_split();
    let (mut read, write) = (BufReader::new(read), Arc::new(Mutex::new(write)));
    loop {
        let Some(head) = read_head(&mut read).await else {
            // The data after an early response is not a request.
            let mut write = write.lock().await;
            write.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await.ok()?;
            return None;
        };
        let header = |name: &str| {
            let value = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            value.unwrap_or_default().to_owned()
        };
        if head.starts_with("GET ") {
            respond(&write, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").await?;
            continue;
        }
        // Peeks at the body, as if its first part had arrived with the head.
        let length: usize = header("content-length").parse().unwrap();
        let body = read.fill_buf().await.ok()?;
        let body = if body.len() < length { read_all(&mut read, length).await? } else { body[..length].to_vec() };
        let request: Value = serde_json::from_slice(&body).unwrap();
        let message = request["messages"][0]["content"].as_str().unwrap().to_owned();
        let behaviour = Behaviour::of_message(&message);
        if !matches!(behaviour, RefusedEarly | AnsweredEarly) {
            read.consume(length);
        }
        perform(&write, behaviour, &Response { message, id: header("x-request-id"), ids }).await?;
    }
}

async fn read_all(read: &mut BufReader<OwnedReadHalf>, length: usize) -> Option<Vec<u8>> {
    let mut body = vec![0; length];
    read.read_exact(&mut body).await.ok()?;
    Some(body)
}

/// `None` if the data is not the head of a request.
async fn read_head(read: &mut BufReader<OwnedReadHalf>) -> Option<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if read.read_line(&mut head).await.ok()? == 0 || !(head.starts_with("GET ") || head.starts_with("POST ")) {
            return None;
        }
    }
    Some(head)
}

struct Response {
    message: String,
    id: String,
    ids: Ids,
}

impl Response {
    fn body(&self) -> String {
        let id = if self.ids == Ids::InBody { format!("chatcmpl-{}", self.id) } else { "chatcmpl-1".into() };
        let message = json!({ "role": "assistant", "content": self.message });
        json!({ "id": id, "choices": [{ "message": message, "finish_reason": "stop" }] }).to_string()
    }

    fn with(&self, status: &str, framing: &str, body: &str) -> Vec<u8> {
        let id = if self.ids == Ids::InHead { format!("X-Request-Id: {}\r\n", self.id) } else { String::new() };
        format!("HTTP/1.1 {status}\r\n{id}{framing}\r\n\r\n{body}").into()
    }

    fn complete(&self) -> Vec<u8> {
        let body = self.body();
        self.with("200 OK", &format!("Content-Length: {}", body.len()), &body)
    }

    fn in_chunks(&self, last: &str) -> Vec<u8> {
        let body = self.body();
        let (first, second) = body.split_at(body.len() / 2);
        let chunks = [first, second].map(|chunk| format!("{:x}\r\n{chunk}\r\n", chunk.len())).concat();
        self.with("200 OK", "Transfer-Encoding: chunked", &format!("{chunks}{last}"))
    }

    fn of_length(&self, length: impl Fn(usize) -> usize) -> Vec<u8> {
        let body = self.body();
        self.with("200 OK", &format!("Content-Length: {}", length(body.len())), &body)
    }
}

async fn respond(write: &Mutex<OwnedWriteHalf>, bytes: &[u8]) -> Option<()> {
    write.lock().await.write_all(bytes).await.ok()
}

/// `None` if this ends the connection.
async fn perform(write: &Arc<Mutex<OwnedWriteHalf>>, behaviour: Behaviour, response: &Response) -> Option<()> {
    let complete = response.complete();
    let bytes = match behaviour {
        Complete | AnsweredEarly => complete,
        InChunks => response.in_chunks("0\r\n\r\n"),
        ByteByByte => {
            let mut write = write.lock().await;
            for byte in response.in_chunks("0\r\n\r\n") {
                write.write_all(&[byte]).await.ok()?;
                tokio::task::yield_now().await;
            }
            return Some(());
        }
        AfterInterim => [b"HTTP/1.1 100 Continue\r\n\r\n".as_slice(), &complete].concat(),
        Twice => [complete.as_slice(), &complete].concat(),
        TwiceLate(millis) => {
            respond(write, &complete).await?;
            let write = write.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(millis)).await;
                respond(&write, &complete).await
            });
            return Some(());
        }
        TwiceInPart => [complete.as_slice(), &complete[..complete.len() / 2]].concat(),
        LineBreakBehind => [complete.as_slice(), b"\r\n"].concat(),
        NoContentWithBody => response.with("204 No Content", "Content-Length: 5", "HTTP/"),
        SwitchingProtocols => [response.with("101 Switching Protocols", "Upgrade: x", ""), complete].concat(),
        LengthAndChunks => {
            let chunked = String::from_utf8(response.in_chunks("0\r\n\r\n")).unwrap();
            chunked.replacen("Transfer-", "Content-Length: 7\r\nTransfer-", 1).into()
        }
        Trailers => response.in_chunks("0\r\nA: b\r\n\r\n"),
        EmptyChunkSize => [response.in_chunks("\r\n\r\n"), complete].concat(),
        LengthTooSmall => response.of_length(|length| length - 3),
        LengthTooLarge => {
            respond(write, &response.of_length(|length| length + 3)).await?;
            return None;
        }
        RefusedEarly => response.with("429 Too Many Requests", "Content-Length: 0", ""),
        ServerError => response.with("500 Oh", "Content-Length: 2", "no"),
        Garbage => b"garbage\r\n\r\n".to_vec(),
        Close => return None,
        CloseInHead | CloseInBody => {
            let cut = if behaviour == CloseInHead { 20 } else { complete.len() - 5 };
            respond(write, &complete[..cut]).await?;
            return None;
        }
    };
    respond(write, &bytes).await
}
