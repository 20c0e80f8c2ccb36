//! A request's body: read within its limits when it is wanted, drained within limits when it is not.
//!
//! A body takes its bytes from a budget before it is read: its whole declared length, or one step ahead of the bytes that
//! have arrived. They return to the budget when the request ends, in any way. A form of an unknown sender takes none: it
//! is small, and every request has a slot of the listener, so the slots are its budget.
//!
//! A client that is refused while it still sends would see a connection reset instead of its response. So an upload that
//! is dropped unread is drained. The exception is a client that waits for `100 Continue`: reading would invite the body
//! that was just refused.

use std::io::ErrorKind;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use admission::{Admission, Client, Permit};
use bytes::Bytes;
use http::header::{self, HeaderMap};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use tokio::time::{Instant, timeout_at};

use crate::connection::BUFFER_BYTES;

pub(crate) const MAX_DRAIN_BYTES: usize = 8 << 20;
/// Bytes that a body without a declared length reserves beyond those that have arrived: one read may bring this much.
const STEP_BYTES: usize = BUFFER_BYTES;
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

    /// The whole body has this time, with any pauses.
    pub fn within(max_bytes: usize, total_timeout: Duration) -> Self {
        Self { max_bytes, idle_timeout: total_timeout, total_timeout }
    }
}

/// Why a body could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UploadError {
    #[error("the body is too large")]
    TooLarge,
    #[error("there is no memory for the body now")]
    OverBudget,
    #[error("the body did not arrive in time")]
    TimedOut,
    #[error("the body is not framed as its headers say")]
    BadFraming,
    #[error("the client disconnected")]
    Disconnected,
}

/// The bytes of bodies that may be held at the same time, in all and by each client.
pub type BodyBudget<C> = Admission<C>;

/// A part of that budget, returned on drop.
pub type BodyPermit<C> = Permit<C>;

/// A body that was read, and its part of the budget.
pub struct Body<C: Client> {
    pub bytes: Bytes,
    /// Held for as long as the bytes, or values parsed from them, are in memory.
    pub permit: BodyPermit<C>,
}

/// A body that has not been read yet.
pub struct Upload {
    incoming: Option<Incoming>,
    /// The part that was read early, or why that failed.
    first: Result<Bytes, UploadError>,
    expects_continue: bool,
}

impl Upload {
    pub fn new(incoming: Incoming, headers: &HeaderMap) -> Self {
        let expects_continue = headers.contains_key(header::EXPECT);
        Self { incoming: Some(incoming), first: Ok(Bytes::new()), expects_continue }
    }

    /// Whether all of a small body has arrived. Called once, before it is read.
    pub fn has_arrived(&mut self) -> bool {
        let Some(incoming) = &mut self.incoming else { return false };
        let is_small = incoming.size_hint().exact().is_some_and(|bytes| bytes <= STEP_BYTES as u64);
        if is_small
            && !self.expects_continue
            && !incoming.is_end_stream()
            && let Poll::Ready(Some(frame)) =
                Pin::new(&mut *incoming).poll_frame(&mut Context::from_waker(Waker::noop()))
        {
            let data = frame.map(|frame| frame.into_data().unwrap_or_default());
            self.first = data.map_err(|error| read_error(&error));
        }
        self.first.is_ok() && incoming.is_end_stream()
    }

    /// Reads the whole body for a client; fails as soon as it is too large, too slow or more than its share of the
    /// budget.
    pub async fn read<C: Client>(
        self,
        limits: BodyLimits,
        budget: &BodyBudget<C>,
        client: C,
    ) -> Result<Body<C>, UploadError> {
        let mut permit = budget.empty(client);
        let bytes = self.read_within(limits, |bytes| permit.resize(bytes)).await?;
        Ok(Body { bytes, permit })
    }

    /// Reads the form of an unknown sender, without a budget; the limits must be small.
    pub async fn read_form(self, limits: BodyLimits) -> Result<Bytes, UploadError> {
        self.read_within(limits, |_bytes| true).await
    }

    /// `reserve` gets the total number of bytes needed, and returns `false` if they are not available.
    async fn read_within(
        mut self,
        limits: BodyLimits,
        mut reserve: impl FnMut(usize) -> bool,
    ) -> Result<Bytes, UploadError> {
        let mut first = std::mem::replace(&mut self.first, Ok(Bytes::new()))?;
        let declared = self.incoming.as_ref().map_or(Some(0), |incoming| incoming.size_hint().exact());
        let declared = declared.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX).saturating_add(first.len()));
        if declared.is_some_and(|bytes| bytes > limits.max_bytes) {
            return Err(UploadError::TooLarge);
        }
        let mut reserved = declared.unwrap_or(STEP_BYTES.min(limits.max_bytes));
        if !reserve(reserved) {
            return Err(UploadError::OverBudget);
        }
        let Some(incoming) = &mut self.incoming else { return Ok(Bytes::new()) };
        self.expects_continue = false;
        let total_deadline = Instant::now() + limits.total_timeout;
        let mut gathered = Vec::new();
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
            let read = first.len() + gathered.len() + data.len();
            if read > limits.max_bytes {
                return Err(UploadError::TooLarge);
            }
            let ahead = (read + STEP_BYTES).min(limits.max_bytes);
            if declared.is_none() && reserved < ahead {
                if !reserve(ahead) {
                    return Err(UploadError::OverBudget);
                }
                reserved = ahead;
            }
            // Most bodies come in one chunk, which is then used without a copy.
            if first.is_empty() && gathered.is_empty() {
                first = data;
            } else {
                gathered.reserve_exact(reserved - gathered.len());
                gathered.extend_from_slice(&std::mem::take(&mut first));
                gathered.extend_from_slice(&data);
            }
        }
        if declared.is_none() {
            reserve(first.len() + gathered.len());
            gathered.shrink_to_fit();
        }
        Ok(if gathered.is_empty() { first } else { gathered.into() })
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
