//! The body of an answer: whole, or in pieces that are made while they are sent.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

/// Pieces that may wait for a client that reads slowly.
const PIECES_AHEAD: usize = 2;

/// What a client is sent.
pub enum ResponseBody {
    /// Known as a whole.
    Whole(Full<Bytes>),
    /// Sent as it is made; an error breaks the connection off, so that nobody takes a part for the whole.
    Stream(mpsc::Receiver<io::Result<Bytes>>),
}

impl ResponseBody {
    /// A body in pieces, and where they are put. Putting fails once the client has gone.
    pub fn stream() -> (mpsc::Sender<io::Result<Bytes>>, Self) {
        let (sender, receiver) = mpsc::channel(PIECES_AHEAD);
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
            Self::Stream(pieces) => pieces.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data))),
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
