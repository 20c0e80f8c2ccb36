//! The body of a site's response: known as a whole, or produced while it is sent.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

/// Chunks that are buffered for a client that reads slowly.
const BUFFERED_CHUNKS: usize = 2;

pub type Response = http::Response<ResponseBody>;

pub enum ResponseBody {
    Whole(Full<Bytes>),
    /// An error closes the connection, so that no client takes a partial body for a complete one.
    Stream(mpsc::Receiver<io::Result<Bytes>>),
}

impl ResponseBody {
    /// A streamed body and its sender. Sending fails once the client has disconnected.
    pub fn stream() -> (mpsc::Sender<io::Result<Bytes>>, Self) {
        let (sender, receiver) = mpsc::channel(BUFFERED_CHUNKS);
        (sender, Self::Stream(receiver))
    }
}

impl<T: Into<Bytes>> From<T> for ResponseBody {
    fn from(whole: T) -> Self {
        Self::Whole(Full::new(whole.into()))
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Whole(body) => Pin::new(body).poll_frame(context).map_err(|never| match never {}),
            Self::Stream(chunks) => chunks.poll_recv(context).map(|chunk| chunk.map(|chunk| chunk.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_end_stream(),
            Self::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}
