//! The site's own response to an HTTP/1.1 head that cannot be parsed.
//!
//! hyper responds to such heads itself, with an empty body, and offers no way to change that. So its socket inspects the
//! end of the bytes written: an error head without a body is hyper's own, and is replaced by the site's response. Bytes
//! that the client still sends are drained within limits, so that it sees the response instead of a reset.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::FutureExt;
use http_body_util::BodyExt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::response_body::Response;
use crate::site::Rejection;
use crate::upload::MAX_DRAIN_BYTES;

/// The first lines of hyper's automatic responses, with their meanings.
const AUTOMATIC: [(&[u8], Rejection); 3] = [
    (b"HTTP/1.1 400 Bad Request\r\n", Rejection::MalformedHead),
    (b"HTTP/1.1 414 URI Too Long\r\n", Rejection::HeadTooLarge),
    (b"HTTP/1.1 431 Request Header Fields Too Large\r\n", Rejection::HeadTooLarge),
];
/// Longer than any of them.
const MAX_AUTOMATIC_BYTES: usize = 256;

/// A socket on which hyper's automatic responses are replaced by those of `reject`.
pub(crate) struct ParseErrors<S, R> {
    socket: S,
    reject: R,
    replacement: Option<Replacement>,
}

struct Replacement {
    bytes: Vec<u8>,
    sent: usize,
    is_shut: bool,
    drained: usize,
}

impl<S, R: Fn(Rejection) -> Response> ParseErrors<S, R> {
    pub(crate) fn new(socket: S, reject: R) -> Self {
        Self { socket, reject, replacement: None }
    }

    fn replace(&mut self, automatic: &[u8], why: Rejection) -> usize {
        let bytes = encode((self.reject)(why), date_line(automatic));
        self.replacement = Some(Replacement { bytes, sent: 0, is_shut: false, drained: 0 });
        automatic.len()
    }
}

/// Where an automatic response begins in these bytes, if they end with one.
fn find_automatic(bytes: &[u8]) -> Option<(usize, Rejection)> {
    if !bytes.ends_with(b"\r\n\r\n") {
        return None;
    }
    let tail = bytes.len().saturating_sub(MAX_AUTOMATIC_BYTES);
    let (start, why) = AUTOMATIC.iter().find_map(|(head, why)| Some((tail + find(&bytes[tail..], head)?, *why)))?;
    find(&bytes[start..], b"\r\ncontent-length: 0\r\n").map(|_| (start, why))
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).rposition(|window| window == wanted)
}

/// The `date` header that hyper has written, with its line end.
fn date_line(head: &[u8]) -> &[u8] {
    head.split_inclusive(|byte| *byte == b'\n').find(|line| line.starts_with(b"date: ")).unwrap_or_default()
}

/// A whole response in HTTP/1.1 that closes its connection.
fn encode(response: Response, date: &[u8]) -> Vec<u8> {
    let (head, body) = response.into_parts();
    let body = body.collect().now_or_never().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default();
    let mut bytes = format!("HTTP/1.1 {}\r\n", head.status).into_bytes();
    for (name, value) in &head.headers {
        bytes.extend_from_slice(name.as_str().as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(date);
    bytes.extend_from_slice(format!("connection: close\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

impl<S: AsyncRead + Unpin, R: Unpin> AsyncRead for ParseErrors<S, R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, into)
    }
}

/// Writes are not vectored: the head of a response must arrive in one piece.
impl<S, R> AsyncWrite for ParseErrors<S, R>
where
    S: AsyncRead + AsyncWrite + Unpin,
    R: Fn(Rejection) -> Response + Unpin,
{
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        match find_automatic(bytes) {
            None => Pin::new(&mut self.socket).poll_write(context, bytes),
            Some((0, why)) => Poll::Ready(Ok(self.replace(bytes, why))),
            // An earlier response comes first.
            Some((start, _)) => Pin::new(&mut self.socket).poll_write(context, &bytes[..start]),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let this = &mut *self;
        if let Some(replacement) = &mut this.replacement {
            while let Some(rest) = replacement.bytes.get(replacement.sent..).filter(|rest| !rest.is_empty()) {
                replacement.sent += ready!(Pin::new(&mut this.socket).poll_write(context, rest))?;
            }
        }
        Pin::new(&mut this.socket).poll_flush(context)
    }

    /// After a replaced response this waits for the client's end, too; the connection's timer limits how long.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        ready!(self.as_mut().poll_flush(context))?;
        let this = &mut *self;
        if this.replacement.as_ref().is_none_or(|replacement| !replacement.is_shut) {
            ready!(Pin::new(&mut this.socket).poll_shutdown(context))?;
        }
        let Some(replacement) = &mut this.replacement else { return Poll::Ready(Ok(())) };
        replacement.is_shut = true;
        while replacement.drained < MAX_DRAIN_BYTES {
            let mut buffer = [0; 4096];
            let mut buffer = ReadBuf::new(&mut buffer);
            ready!(Pin::new(&mut this.socket).poll_read(context, &mut buffer))?;
            if buffer.filled().is_empty() {
                break;
            }
            replacement.drained += buffer.filled().len();
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const OWN: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\ndate: today\r\n\r\n";

    /// The bytes that arrive when hyper writes these pieces, one call each, and then ends the connection.
    async fn arrives(pieces: &[&[u8]]) -> String {
        let (near, mut far) = tokio::io::duplex(16); // so small that every write is partial
        let mut socket = ParseErrors::new(near, |why| Response::new(format!("{why:?}").into()));
        let written = async {
            for piece in pieces {
                socket.write_all(piece).await.unwrap();
            }
            socket.shutdown().await.unwrap();
            drop(socket);
        };
        let read = async {
            let mut arrived = String::new();
            far.read_to_string(&mut arrived).await.unwrap();
            drop(far);
            arrived
        };
        // The far side reads until the near side has shut down, and only then ends: shutting down waits for that.
        let (reader, ()) = tokio::join!(read, written);
        reader
    }

    #[tokio::test]
    async fn an_automatic_response_is_replaced_and_nothing_else_is() {
        let replaced = "HTTP/1.1 200 OK\r\ndate: today\r\nconnection: close\r\ncontent-length: 13\r\n\r\nMalformedHead";
        assert_eq!(arrives(&[OWN]).await, replaced);
        let earlier = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        let both = [&earlier[..], OWN].concat();
        assert_eq!(arrives(&[&both]).await, format!("{}{replaced}", str::from_utf8(earlier).unwrap()));
        for ours in [
            &b"HTTP/1.1 303 See Other\r\ncontent-length: 0\r\n\r\n"[..],
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 4\r\n\r\n{..}",
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 4\r\n\r\n",
            b"\r\n\r\n",
            b"",
        ] {
            assert_eq!(arrives(&[ours]).await.as_bytes(), ours);
        }
    }
}
