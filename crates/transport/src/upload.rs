//! A request's body: read within its limits when it is wanted, drained within limits when it is not.
//!
//! A client that is refused while it still sends would see a connection reset instead of its response if nobody read
//! on. So an upload that is dropped unread is drained. The exception is a client that waits for `100 Continue`: reading
//! would invite the body that was just refused.

use std::io::ErrorKind;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::time::{Instant, timeout_at};

pub(crate) const MAX_DRAIN_BYTES: usize = 8 << 20;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    max_bytes: usize,
    /// Between two chunks.
    idle_timeout: Duration,
    total_timeout: Duration,
}

impl BodyLimits {
    /// The whole body may take four times the idle timeout.
    pub fn new(max_bytes: usize, idle_timeout: Duration) -> Self {
        Self { max_bytes, idle_timeout, total_timeout: idle_timeout * 4 }
    }
}

/// Why a body could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UploadError {
    #[error("the body is too large")]
    TooLarge,
    #[error("the body did not arrive in time")]
    TimedOut,
    #[error("the body is not framed as its headers say")]
    BadFraming,
    #[error("the client disconnected")]
    Disconnected,
}

/// A body that has not been read yet.
pub struct Upload {
    incoming: Option<Incoming>,
    expects_continue: bool,
}

impl Upload {
    pub fn new(incoming: Incoming, headers: &HeaderMap) -> Self {
        Self { incoming: Some(incoming), expects_continue: headers.contains_key(header::EXPECT) }
    }

    /// Reads the whole body; fails as soon as it is too large or too slow.
    pub async fn read(mut self, limits: BodyLimits) -> Result<Bytes, UploadError> {
        let Some(incoming) = &mut self.incoming else { return Ok(Bytes::new()) };
        if incoming.size_hint().lower() > limits.max_bytes as u64 {
            return Err(UploadError::TooLarge);
        }
        self.expects_continue = false;
        let total_deadline = Instant::now() + limits.total_timeout;
        let mut first = Bytes::new();
        let mut gathered = BytesMut::new();
        loop {
            let deadline = total_deadline.min(Instant::now() + limits.idle_timeout);
            let frame = match timeout_at(deadline, incoming.frame()).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(error))) => return Err(read_error(&error)),
                Ok(None) => break,
                Err(_elapsed) => {
                    self.incoming = None; // too slow to be worth draining
                    return Err(UploadError::TimedOut);
                }
            };
            let Ok(data) = frame.into_data() else { continue }; // trailers
            if first.len() + gathered.len() + data.len() > limits.max_bytes {
                return Err(UploadError::TooLarge);
            }
            // Most bodies come in one chunk, which is then used without a copy.
            if first.is_empty() && gathered.is_empty() {
                first = data;
            } else {
                gathered.extend_from_slice(&std::mem::take(&mut first));
                gathered.extend_from_slice(&data);
            }
        }
        Ok(if gathered.is_empty() { first } else { gathered.freeze() })
    }
}

fn read_error(error: &hyper::Error) -> UploadError {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
    match cause.map(std::io::Error::kind) {
        Some(ErrorKind::InvalidInput | ErrorKind::InvalidData) => UploadError::BadFraming,
        _ => UploadError::Disconnected,
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let unread = self.incoming.take().filter(|incoming| !incoming.is_end_stream() && !self.expects_continue);
        if let (Some(incoming), Ok(runtime)) = (unread, tokio::runtime::Handle::try_current()) {
            runtime.spawn(drain(incoming));
        }
    }
}

async fn drain(mut incoming: Incoming) {
    let deadline = Instant::now() + DRAIN_TIMEOUT;
    let mut drained = 0;
    while let Ok(Some(Ok(frame))) = timeout_at(deadline, incoming.frame()).await {
        drained += frame.data_ref().map_or(0, Bytes::len);
        if drained > MAX_DRAIN_BYTES {
            return;
        }
    }
}
