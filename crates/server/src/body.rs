//! A request's body: read within its bounds when it is wanted, drained within bounds when it is not.
//!
//! A client that is refused while it still sends would see a reset connection instead of its answer if nobody read on.
//! So an upload that is dropped unread is read a little further and thrown away. The exception is a client that waits
//! for `100 Continue`: reading would invite the body that was just refused.

use std::io::ErrorKind;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::time::{Instant, timeout_at};
use wire::MAX_BODY_BYTES;

use crate::answer::Refusal;

/// What is read of a refused body at the most.
pub(crate) const DRAINED_BYTES: usize = 8 << 20;
const DRAINED_FOR: Duration = Duration::from_secs(5);

/// How long a body may take.
#[derive(Debug, Clone, Copy)]
pub struct BodyTimeouts {
    /// Between two pieces.
    idle: Duration,
    /// From the first to the last.
    whole: Duration,
}

impl BodyTimeouts {
    /// With a pause of so long, and four times as long for the whole.
    pub fn with_idle(idle: Duration) -> Self {
        Self { idle, whole: idle * 4 }
    }
}

/// A body on its way in.
pub struct Upload {
    incoming: Option<Incoming>,
    waits_for_continue: bool,
}

impl Upload {
    /// The body that goes with a head.
    pub fn new(incoming: Incoming, headers: &HeaderMap) -> Self {
        let waits_for_continue = headers.contains_key(header::EXPECT);
        Self { incoming: Some(incoming), waits_for_continue }
    }

    /// The whole body; `None` if it is too large, too slow or broken off.
    pub async fn bytes(self, timeouts: BodyTimeouts) -> Option<Bytes> {
        self.read(timeouts).await.ok()
    }

    /// Reads the whole body; refuses it as soon as it is too large or too slow.
    pub(crate) async fn read(mut self, timeouts: BodyTimeouts) -> Result<Bytes, Refusal> {
        let Some(incoming) = &mut self.incoming else { return Ok(Bytes::new()) };
        if incoming.size_hint().lower() > MAX_BODY_BYTES as u64 {
            return Err(Refusal::payload_too_large());
        }
        self.waits_for_continue = false;
        let whole = Instant::now() + timeouts.whole;
        let mut first = Bytes::new();
        let mut gathered = BytesMut::new();
        loop {
            let deadline = whole.min(Instant::now() + timeouts.idle);
            let frame = match timeout_at(deadline, incoming.frame()).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(error))) => return Err(broken(&error)),
                Ok(None) => break,
                Err(_elapsed) => {
                    self.incoming = None; // too slow to be worth draining
                    return Err(Refusal::invalid("The body did not arrive in time."));
                }
            };
            let Ok(data) = frame.into_data() else { continue }; // trailers
            if first.len() + gathered.len() + data.len() > MAX_BODY_BYTES {
                return Err(Refusal::payload_too_large());
            }
            // Most bodies come in one piece, which is then used as it is.
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

/// What a body that breaks off means: the caller has gone, or it does not keep to its own framing.
fn broken(error: &hyper::Error) -> Refusal {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
    match cause.map(std::io::Error::kind) {
        Some(ErrorKind::InvalidInput | ErrorKind::InvalidData) => {
            Refusal::invalid("The body is not framed as its headers say.")
        }
        _ => Refusal::hung_up(),
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let unread = self.incoming.take().filter(|incoming| !incoming.is_end_stream() && !self.waits_for_continue);
        if let (Some(incoming), Ok(runtime)) = (unread, tokio::runtime::Handle::try_current()) {
            runtime.spawn(drain(incoming));
        }
    }
}

async fn drain(mut incoming: Incoming) {
    let deadline = Instant::now() + DRAINED_FOR;
    let mut drained = 0;
    while let Ok(Some(Ok(frame))) = timeout_at(deadline, incoming.frame()).await {
        drained += frame.data_ref().map_or(0, Bytes::len);
        if drained > DRAINED_BYTES {
            return;
        }
    }
}

/// Refuses what is not plain JSON by its headers.
pub(crate) fn accept_type(headers: &HeaderMap) -> Result<(), Refusal> {
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let essence = |value: &http::HeaderValue| {
        let essence = value.to_str().ok()?.split(';').next()?.trim();
        Some(essence.eq_ignore_ascii_case("application/json"))
    };
    match (types.next().map(essence), types.next()) {
        (Some(Some(true)), None) => {}
        (None, _) => return Err(Refusal::invalid("The header `Content-Type: application/json` is required.")),
        _ => return Err(Refusal::invalid("`Content-Type` must be `application/json`.")),
    }
    let encodings = headers.get_all(header::CONTENT_ENCODING);
    if encodings.iter().any(|encoding| !encoding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity")) {
        return Err(Refusal::invalid("`Content-Encoding` other than `identity` is not accepted."));
    }
    Ok(())
}
