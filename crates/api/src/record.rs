//! The state of one request, from its arrival to its end.
//!
//! Every request ends once: in the ledger (if its caller is known), the counters, the log and the trace. If a record is
//! dropped before it is closed, the client has disconnected, or the service has aborted the request. Once its row is
//! handed to the ledger, a disconnect changes nothing: row, counters, log and trace keep the row's outcome.
//! A record holds ids, figures and names; never text, never a key.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chat::{FinishReason, RequestId, TokenUsage};
use http::HeaderMap;
use store::{Caller, Entry, GroundingRecord, InferenceRecord, Outcome, Permit, Receipt, RecordError, Timings};
use transport::Response;

use crate::authentication::{Authorized, authenticate, authenticate_again, authorize};
use crate::error::{ABORTED, ApiError, CLIENT_CLOSED, COMPLETED};
use crate::inference::GroundedCompletion;
use crate::request_log::{Field, RequestLog};
use crate::response;
use crate::trace::RequestTrace;
use crate::worker::Worker;

pub(crate) struct RequestRecord<'w> {
    pub(crate) worker: &'w Worker,
    pub(crate) id: RequestId,
    pub(crate) arrived: Instant,
    pub(crate) trace: RequestTrace<'w>,
    /// Once the caller is known, a row must be recorded.
    pub(crate) caller: Option<Caller>,
    /// The reservation of the caller's limits, until the row is committed.
    pub(crate) permit: Option<Permit>,
    pub(crate) timings: Timings,
    /// When the first attempt at a runtime began.
    pub(crate) inference_began: Option<Instant>,
    pub(crate) grounding: Option<GroundingRecord>,
    /// The runtime of the last attempt.
    pub(crate) runtime: Option<Arc<str>>,
    usage: TokenUsage,
    finish_reason: Option<FinishReason>,
    /// The time until the row was durable.
    persist: Option<Duration>,
    /// The row's outcome, once it was handed to the ledger.
    row_outcome: Option<Outcome>,
    is_closed: bool,
}

impl<'w> RequestRecord<'w> {
    /// Opens the record of a request that has just arrived, with its headers if it came over the network.
    pub(crate) fn open(worker: &'w Worker, headers: Option<&HeaderMap>) -> Self {
        Self {
            worker,
            id: RequestId::arrived_at(worker.ledger.now_micros()),
            arrived: Instant::now(),
            trace: RequestTrace::begin(worker.api.tracer.as_ref(), headers),
            caller: None,
            permit: None,
            timings: Timings::default(),
            inference_began: None,
            grounding: None,
            runtime: None,
            usage: TokenUsage::default(),
            finish_reason: None,
            persist: None,
            row_outcome: None,
            is_closed: false,
        }
    }

    pub(crate) async fn authenticate(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let (began, span) = (Instant::now(), self.trace.span("authenticate"));
        let caller = authenticate(&self.worker.api.store, headers).await;
        span.end(caller.is_ok(), began.elapsed());
        caller
    }

    /// From here on the request belongs to a key: with any outcome, a row is handed to the ledger.
    pub(crate) fn authorize(&mut self, caller: Caller) -> Result<Authorized, ApiError> {
        authorize(self.caller.insert(caller))
    }

    pub(crate) fn authorized(&self) -> Result<Authorized, ApiError> {
        self.caller.as_ref().ok_or_else(|| ApiError::internal("no caller")).and_then(authorize)
    }

    /// Repeats the authentication. A request whose key is no longer accepted has no caller.
    pub(crate) async fn authorize_again(&mut self) -> Result<Authorized, ApiError> {
        let caller = self.caller.take().ok_or_else(|| ApiError::internal("no caller"))?;
        match authenticate_again(&self.worker.api.store, &caller).await {
            Ok(caller) => self.authorize(caller),
            Err(error) => {
                self.caller = Some(caller).filter(|_| !error.is_unauthenticated());
                Err(error)
            }
        }
    }

    /// Records a completion. The response is made from the ledger's receipt.
    pub(crate) async fn persist(&mut self, grounded: &GroundedCompletion) -> Result<Response, ApiError> {
        self.usage = grounded.completion.usage;
        self.finish_reason = Some(grounded.completion.finish_reason);
        let row = self.row(COMPLETED, grounded.completion.usage).ok_or_else(|| ApiError::internal("no caller"))?;
        let receipt = self.commit(row).await.map_err(ApiError::unrecorded)?;
        Ok(response::completed(&receipt, grounded))
    }

    /// Ends the request. A failure is recorded first.
    pub(crate) async fn close(mut self, result: Result<Response, ApiError>) -> Response {
        match result {
            Ok(response) => {
                self.finish(COMPLETED);
                response
            }
            // The completion was run and its row may be durable: clients must not retry automatically.
            Err(error) if self.row_outcome.is_some() => self.fail(error.without_retry()),
            Err(error) => {
                Box::pin(self.persist_failure(error.outcome())).await;
                self.fail(error)
            }
        }
    }

    /// Ends a request without recording a row.
    pub(crate) fn fail(mut self, error: ApiError) -> Response {
        self.finish(error.outcome());
        error.into_response(self.id)
    }

    /// If a failure cannot be recorded, that is logged, and the caller's response stays the same.
    async fn persist_failure(&mut self, outcome: Outcome) {
        let Some(row) = self.row(outcome, TokenUsage::default()) else { return };
        let api = &self.worker.api;
        // Neither a failing ledger nor an aborted request should keep the caller waiting for the commit.
        let recorded = match self.worker.ledger.is_healthy() && !api.is_aborting() {
            true => self.commit(row).await.map(drop),
            false => self.worker.ledger.enqueue(row, self.permit.take()),
        };
        self.log_unrecorded(recorded);
    }

    async fn commit(&mut self, row: Entry) -> Result<Receipt, RecordError> {
        let began = Instant::now();
        let span = self.trace.span("persist");
        let recorded = self.worker.ledger.record(row, self.permit.take()).await;
        let took = recorded.as_ref().map_or_else(|_| began.elapsed(), Receipt::persist);
        self.persist = Some(took);
        span.end(recorded.is_ok(), took);
        recorded
    }

    /// The request's row, once: `None` if there was already one, or if the caller is unknown.
    fn row(&mut self, outcome: Outcome, usage: TokenUsage) -> Option<Entry> {
        let caller = self.caller.as_ref().filter(|_| self.row_outcome.is_none())?;
        self.row_outcome = Some(outcome);
        self.timings.total = self.arrived.elapsed();
        let inference = self.inference_began.map(|began| began.elapsed());
        self.timings.inference = self.timings.inference.or(inference);
        Some(Entry {
            request_id: self.id,
            key: caller.key(),
            owner: caller.owner(),
            project: caller.project().cloned(),
            outcome,
            usage,
            timings: self.timings,
            grounding: self.grounding,
            inference: InferenceRecord { runtime: self.runtime.clone(), finish_reason: self.finish_reason },
        })
    }

    /// Reports the outcome to counters, trace and log.
    fn finish(&mut self, outcome: Outcome) {
        self.is_closed = true;
        let elapsed = self.arrived.elapsed();
        self.worker.counters.end(outcome, elapsed, &self.timings, self.persist);
        self.worker.counters.tokens(&self.usage);
        self.trace.end(self.id, outcome, &self.usage);
        if let Some(log) = &self.worker.api.request_log {
            // The time in the row, if there is one, so that log and ledger agree.
            let total = self.row_outcome.map_or(elapsed, |_| self.timings.total);
            self.log(log.as_ref(), outcome, total);
        }
    }

    fn log(&self, log: &dyn RequestLog, outcome: Outcome, total: Duration) {
        let tokens = |count: u32| Field::Number(count.into());
        let micros = |time: Duration| Field::Number(time.as_micros() as u64);
        let (id, trace) = (self.id.to_string(), self.trace.id().map(|id| id.to_string()));
        let key = self.caller.as_ref().map(Caller::key);
        log.write(&[
            ("request_id", Some(Field::Text(&id))),
            ("key", key.as_ref().map(|key| Field::Text(key.as_str()))),
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

    fn log_unrecorded(&self, recorded: Result<(), RecordError>) {
        if let Err(reason) = recorded {
            tracing::error!(request_id = %self.id, %reason, "a failed request was not recorded");
        }
    }
}

impl Drop for RequestRecord<'_> {
    fn drop(&mut self) {
        if self.is_closed {
            return;
        }
        let is_aborted = std::thread::panicking() || self.worker.api.is_aborting();
        let outcome = self.row_outcome.unwrap_or(if is_aborted { ABORTED } else { CLIENT_CLOSED });
        if let Some(row) = self.row(outcome, TokenUsage::default()) {
            let permit = self.permit.take();
            self.log_unrecorded(self.worker.ledger.enqueue(row, permit));
        }
        self.finish(outcome);
    }
}
