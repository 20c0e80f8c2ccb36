//! A metered request: from the moment its key is accepted until its row is handed to the ledger.
//!
//! Only an authenticated caller opens a meter, only a meter reaches a runtime, and only a recorded meter becomes an
//! answer. A meter that is dropped before it was settled means that the caller hung up (or that we panicked or were
//! stopped): that, too, is written down.

use std::sync::Arc;
use std::time::Instant;

use chat::{ChatRequest, Completion, KeyId, RequestId, TokenUsage};
use grounding::weave::{self, Source};
use grounding::{Grounder, Passage};
use runtimes::{Attribution, Availability, InferenceError, Lane};
use store::{AccountId, Caller, Entry, GroundingRecord, Outcome, Receipt, Timings};
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

/// What Search found for a request; `None` if it was not asked.
pub(crate) struct Facts(Option<Vec<Passage>>);

/// A completion and what it may cite.
pub(crate) struct Cited {
    pub(crate) completion: Completion,
    pub(crate) sources: Vec<Source>,
}

pub(crate) struct Meter {
    api: Arc<Api>,
    arrival: Arrival,
    key: KeyId,
    owner: Option<AccountId>,
    timings: Timings,
    grounding: Option<GroundingRecord>,
    settled: bool,
}

impl Meter {
    pub(crate) fn open(api: &Arc<Api>, arrival: Arrival, caller: &Caller) -> Self {
        let (key, owner) = (caller.key(), caller.owner());
        Self { api: api.clone(), arrival, key, owner, timings: Timings::default(), grounding: None, settled: false }
    }

    /// Finds the facts that a request needs, and notes how much it seemed to need them and how long the search took.
    /// Without them, if Search is down, there is no completion.
    pub(crate) async fn find_facts(&mut self, request: &ChatRequest) -> Result<Facts, Refusal> {
        let api = self.api.clone();
        let Some(grounder) = &api.grounder else { return Ok(Facts(None)) };
        let Some(assessed) = grounder.assess(request.messages()) else { return Ok(Facts(None)) };
        self.grounding = Some(GroundingRecord { score: assessed.score, scorer: assessed.scorer, sources: None });
        if !assessed.is_grounded {
            return Ok(Facts(None));
        }
        let began = Instant::now();
        self.timings.queue = Some(began - self.arrival.at);
        let found = grounder.find(request.messages()).await;
        self.timings.search = Some(began.elapsed());
        match found {
            Ok(passages) => Ok(Facts(Some(passages))),
            Err(error) => Err(Refusal::search_unavailable(format!("Search at {}: {error}", grounder.place()))),
        }
    }

    /// Runs a completion, with the facts woven in, and notes how long it waited and how long it took.
    pub(crate) async fn complete(
        &mut self,
        lane: &MeteredLane,
        request: &ChatRequest,
        facts: &Facts,
    ) -> Result<Cited, Refusal> {
        let began = Instant::now();
        self.timings.queue.get_or_insert(began - self.arrival.at);
        let result = match (facts, &self.api.clone().grounder) {
            (Facts(Some(passages)), Some(grounder)) => self.complete_grounded(lane, request, grounder, passages).await,
            _ => self.ask(lane, request).await.map(|completion| Cited { completion, sources: Vec::new() }),
        };
        self.timings.inference = Some(began.elapsed());
        result.map_err(|error| match error {
            InferenceError::PromptTooLong(overflow) => Refusal::invalid(too_long(overflow)),
            InferenceError::NoRoom { retry_after } => Refusal::no_room_for(retry_after),
            InferenceError::Failed { retry_after, .. } => Refusal::inference_error(error, retry_after),
        })
    }

    /// Facts get the room that the conversation and its completion leave. Where the runtime counts more tokens than we
    /// thought, they get less, and none at last.
    async fn complete_grounded(
        &mut self,
        lane: &MeteredLane,
        request: &ChatRequest,
        grounder: &Grounder,
        passages: &[Passage],
    ) -> Result<Cited, InferenceError> {
        let mut tokens = grounder.room(request, lane.0.context());
        loop {
            let woven = Grounder::weave(passages, tokens);
            self.note_sources(woven.sources.len());
            match self.ask(lane, &request.with_instructions(&woven.text)).await {
                Err(InferenceError::PromptTooLong(_)) if !woven.sources.is_empty() => tokens /= 3,
                Err(error) => return Err(error),
                Ok(completion) => {
                    let text = weave::without_dangling(&completion.text, woven.sources.len());
                    return Ok(Cited { completion: Completion { text, ..completion }, sources: woven.sources });
                }
            }
        }
    }

    async fn ask(&self, lane: &MeteredLane, request: &ChatRequest) -> Result<Completion, InferenceError> {
        lane.0.complete(request, Attribution { id: self.arrival.id, tag: Some(self.key) }).await
    }

    fn note_sources(&mut self, count: usize) {
        if let Some(grounding) = &mut self.grounding {
            grounding.sources = u16::try_from(count).ok();
        }
    }

    /// Records a success; the receipt is what an answer is made of.
    pub(crate) async fn succeed(mut self, completion: &Completion) -> Result<Receipt, Refusal> {
        let entry = self.settle(Outcome { status: 200, code: None }, completion.usage);
        self.api.ledger.record(entry).await.map_err(Refusal::unrecorded)
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
        Entry {
            request_id: self.arrival.id,
            key: self.key,
            owner: self.owner,
            outcome,
            usage,
            timings: self.timings,
            grounding: self.grounding,
        }
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
