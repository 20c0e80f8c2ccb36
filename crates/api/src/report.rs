//! What is told about a request, of whatever kind it was: once, when it ends, to the counters, the log and the trace.
//!
//! A report that is dropped before it was closed means that the caller hung up, or that we were stopped. It holds ids, figures
//! and names; never text, never a key.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chat::{KeyId, RequestId, TokenUsage};
use http::HeaderMap;
use store::{Outcome, Timings};

use transport::Response;

use crate::api::Worker;
use crate::error::{ApiError, CLIENT_CLOSED, COMPLETED, FAILED};
use crate::request_log::{Field, RequestLog};
use crate::trace::Trail;

/// When and as what a request arrived.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) id: RequestId,
    pub(crate) at: Instant,
}

impl Arrival {
    pub(crate) fn now() -> Self {
        Self { id: RequestId::now(), at: Instant::now() }
    }
}

pub(crate) struct Report<'d> {
    pub(crate) worker: &'d Worker,
    pub(crate) arrival: Arrival,
    pub(crate) trail: Trail<'d>,
    /// Once it is known whose request it is.
    pub(crate) key: Option<KeyId>,
    pub(crate) timings: Timings,
    /// How long it took until its row was durable.
    pub(crate) persist: Option<Duration>,
    pub(crate) usage: TokenUsage,
    /// The runtime that was asked last.
    pub(crate) runtime: Option<Arc<str>>,
    closed: bool,
}

impl<'d> Report<'d> {
    /// Opens the report on a request that has just arrived, with those headers if it came over the network.
    pub(crate) fn open(worker: &'d Worker, headers: Option<&HeaderMap>) -> Self {
        Self {
            worker,
            arrival: Arrival::now(),
            trail: Trail::begin(worker.api.tracer.as_ref(), headers),
            key: None,
            timings: Timings::default(),
            persist: None,
            usage: TokenUsage::default(),
            runtime: None,
            closed: false,
        }
    }

    /// Tells how the request ended; the answer is what its caller gets.
    pub(crate) fn close(mut self, walked: Result<Response, ApiError>) -> Response {
        match walked {
            Ok(answer) => {
                self.tell(COMPLETED);
                answer
            }
            Err(refusal) => {
                self.tell(refusal.outcome());
                refusal.into_answer(self.arrival.id)
            }
        }
    }

    fn tell(&mut self, outcome: Outcome) {
        self.closed = true;
        let total = self.arrival.at.elapsed();
        self.worker.counts.end(outcome, total, &self.timings, self.persist);
        self.worker.counts.tokens(&self.usage);
        self.trail.end(self.arrival.id, outcome, &self.usage);
        if let Some(log) = &self.worker.api.request_log {
            self.log(log.as_ref(), outcome, total);
        }
    }

    fn log(&self, log: &dyn RequestLog, outcome: Outcome, total: Duration) {
        let (tokens, micros) =
            (|count: u32| Field::Number(count.into()), |time: Duration| Field::Number(time.as_micros() as u64));
        let (id, trace) = (self.arrival.id.to_text(), self.trail.id().map(|id| id.to_string()));
        log.tell(&[
            ("request_id", Some(Field::Text(id.as_str()))),
            ("key", self.key.as_ref().map(|key| Field::Text(key.as_str()))),
            ("status", Some(Field::Number(outcome.status.into()))),
            ("code", outcome.code.map(Field::Text)),
            ("runtime", self.runtime.as_deref().map(Field::Text)),
            ("prompt_tokens", self.usage.prompt.map(tokens)),
            ("completion_tokens", self.usage.completion.map(tokens)),
            ("queue_us", self.timings.queue.map(micros)),
            ("search_us", self.timings.search.map(micros)),
            ("inference_us", self.timings.inference.map(micros)),
            ("persist_us", self.persist.map(micros)),
            ("total_us", Some(micros(total))),
            ("trace_id", trace.as_deref().map(Field::Text)),
        ]);
    }
}

impl Drop for Report<'_> {
    fn drop(&mut self) {
        if !self.closed {
            self.tell(if self.worker.api.is_cut_off() { FAILED } else { CLIENT_CLOSED });
        }
    }
}
