//! A metered request: from the moment its key is accepted until its row is handed to the ledger.
//!
//! Only an authenticated caller opens a meter, only a meter reaches a runtime, and only a recorded meter becomes an
//! answer. A meter that is dropped before it was settled means that the caller hung up (or that we panicked or were
//! stopped): that, too, is written down.

use std::sync::Arc;
use std::time::Instant;

use chat::{ChatRequest, Completion, KeyId, RequestId, TokenUsage};
use runtimes::{Attribution, Availability, InferenceError, Lane};
use store::{AccountId, Caller, Entry, Outcome, Receipt, Timings};
use wire::runtime::ContextOverflow;

use crate::answer::{CLIENT_CLOSED, Refusal};
use crate::api::Api;

const FAILED: Outcome = Outcome { status: 503, code: Some("service_unavailable") };

/// When and as what a request arrived.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) id: RequestId,
    at: Instant,
}

impl Arrival {
    pub(crate) fn now() -> Self {
        Self { id: RequestId::now(), at: Instant::now() }
    }
}

/// A lane into the pool that only meters can use.
pub(crate) struct MeteredLane(Lane);

impl MeteredLane {
    pub(crate) fn new(lane: Lane) -> Self {
        Self(lane)
    }

    /// Whether there is anybody to ask.
    pub(crate) fn availability(&self) -> Availability {
        self.0.availability()
    }
}

pub(crate) struct Meter {
    api: Arc<Api>,
    arrival: Arrival,
    key: KeyId,
    owner: Option<AccountId>,
    timings: Timings,
    settled: bool,
}

impl Meter {
    pub(crate) fn open(api: &Arc<Api>, arrival: Arrival, caller: &Caller) -> Self {
        let (key, owner) = (caller.key(), caller.owner());
        Self { api: api.clone(), arrival, key, owner, timings: Timings::default(), settled: false }
    }

    /// Runs a completion and notes how long it waited and how long it took.
    pub(crate) async fn complete(&mut self, lane: &MeteredLane, request: &ChatRequest) -> Result<Completion, Refusal> {
        let began = Instant::now();
        self.timings.queue = Some(began - self.arrival.at);
        let attribution = Attribution { id: self.arrival.id, tag: Some(self.key) };
        let result = lane.0.complete(request, attribution).await;
        self.timings.inference = Some(began.elapsed());
        result.map_err(|error| match error {
            InferenceError::PromptTooLong(overflow) => Refusal::invalid(too_long(overflow)),
            InferenceError::NoRoom => Refusal::no_room(),
            failed @ InferenceError::Failed { .. } => Refusal::inference_error(failed),
        })
    }

    /// Records a success; the receipt is what an answer is made of.
    pub(crate) async fn succeed(mut self, completion: &Completion) -> Result<Receipt, Refusal> {
        let entry = self.settle(Outcome { status: 200, code: None }, completion.usage);
        let recorded = self.api.ledger.record(entry).await;
        recorded
            .map_err(|reason| Refusal::unavailable("The usage of this request could not be recorded.").because(reason))
    }

    /// Records a failure. If that fails, too, it is logged, and the caller's answer stands.
    pub(crate) async fn fail(mut self, refusal: &Refusal) {
        let entry = self.settle(refusal.outcome(), TokenUsage::default());
        // A ledger that fails already would only keep the caller waiting.
        let recorded = if self.api.ledger.is_healthy() {
            self.api.ledger.record(entry).await.map(drop)
        } else {
            self.api.ledger.note(entry)
        };
        if let Err(reason) = recorded {
            tracing::error!(request_id = %self.arrival.id, %reason, "a failed request was not recorded");
        }
    }

    fn settle(&mut self, outcome: Outcome, usage: TokenUsage) -> Entry {
        self.settled = true;
        self.timings.total = self.arrival.at.elapsed();
        Entry { request_id: self.arrival.id, key: self.key, owner: self.owner, outcome, usage, timings: self.timings }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        let ours = std::thread::panicking() || self.api.is_cut_off();
        let entry = self.settle(if ours { FAILED } else { CLIENT_CLOSED }, TokenUsage::default());
        let id = entry.request_id;
        if let Err(reason) = self.api.ledger.note(entry) {
            tracing::error!(request_id = %id, %reason, "a request that ended early was not recorded");
        }
    }
}

fn too_long(overflow: ContextOverflow) -> String {
    let tokens = |count: Option<u64>, unknown: &str| count.map_or_else(|| unknown.into(), |count| count.to_string());
    match overflow {
        ContextOverflow { prompt: None, context: None } => "The prompt does not fit the model's context.".into(),
        ContextOverflow { prompt, context } => format!(
            "The prompt does not fit the model's context: the prompt has {} tokens, the context holds {} tokens.",
            tokens(prompt, "more"),
            tokens(context, "fewer"),
        ),
    }
}
