//! A metered request: from the moment its key is accepted until its row is handed to the ledger.
//!
//! Only an authenticated caller opens a meter, only a meter reaches a runtime, and only a recorded meter becomes an
//! answer. A meter that is dropped before it was settled means that the caller hung up (or that we panicked or were
//! stopped): that, too, is written down.

use std::time::Instant;

use chat::{ChatRequest, Completion, KeyId, TokenUsage, Trace};
use grounding::augment::{self, Source};
use grounding::{Grounder, Passage};
use runtimes::{Attribution, Availability, InferenceError, MemberError, PoolClient};
use store::{AccountId, Caller, Entry, GroundingRecord, NotRecorded, Outcome, Receipt};
use wire::runtime::ContextOverflow;

use crate::counters::Searched;
use crate::error::{ApiError, CLIENT_CLOSED, COMPLETED, FAILED};
use crate::report::{Arrival, Report};

/// A client of the pool that only meters can use.
pub(crate) struct MeteredPoolClient(PoolClient);

impl MeteredPoolClient {
    pub(crate) fn new(pool_client: PoolClient) -> Self {
        Self(pool_client)
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

pub(crate) struct Meter<'m, 'd> {
    report: &'m mut Report<'d>,
    key: KeyId,
    owner: Option<AccountId>,
    grounding: Option<GroundingRecord>,
    settled: bool,
}

impl<'m, 'd> Meter<'m, 'd> {
    pub(crate) fn open(report: &'m mut Report<'d>, caller: &Caller) -> Self {
        let (key, owner) = (caller.key(), caller.owner());
        report.key = Some(key);
        Self { report, key, owner, grounding: None, settled: false }
    }

    /// Finds the facts that a request needs, and notes how much it seemed to need them and how long the search took.
    /// Without them, if Search is down, there is no completion.
    pub(crate) async fn find_facts(&mut self, request: &ChatRequest) -> Result<Facts, ApiError> {
        let worker = self.report.worker;
        let Some(grounder) = &worker.api.grounder else { return Ok(Facts(None)) };
        let Some(assessed) = grounder.assess(request.messages()) else { return Ok(Facts(None)) };
        self.grounding = Some(GroundingRecord { score: assessed.score, scorer: assessed.scorer, sources: None });
        if !assessed.is_grounded {
            return Ok(Facts(None));
        }
        let began = Instant::now();
        self.report.timings.queue = Some(began - self.report.arrival.at);
        let phase = self.report.trail.errand("search");
        let found = grounder.search(request.messages(), phase.trace()).await;
        self.report.timings.search = Some(began.elapsed());
        phase.end(found.is_ok());
        worker.counts.searched(match &found {
            Ok(passages) if passages.is_empty() => Searched::Nothing,
            Ok(_) => Searched::Found,
            Err(_) => Searched::Failed,
        });
        match found {
            Ok(passages) => Ok(Facts(Some(passages))),
            Err(error) => {
                Err(ApiError::search_unavailable(format!("Search at {}: {error}", grounder.search_location())))
            }
        }
    }

    /// Runs a completion, augmented with the facts, and notes how long it waited and how long it took.
    pub(crate) async fn complete(
        &mut self,
        pool_client: &MeteredPoolClient,
        request: &ChatRequest,
        facts: &Facts,
    ) -> Result<Cited, ApiError> {
        let began = Instant::now();
        self.report.timings.queue.get_or_insert(began - self.report.arrival.at);
        let mut phase = self.report.trail.errand("inference");
        let asking = Asking { pool_client, request, trace: phase.trace() };
        let result = match (facts, &self.report.worker.api.grounder) {
            (Facts(Some(passages)), Some(grounder)) => self.complete_grounded(asking, grounder, passages).await,
            _ => self.ask(asking).await.map(|completion| Cited { completion, sources: Vec::new() }),
        };
        self.report.timings.inference = Some(began.elapsed());
        phase.asked(self.report.runtime.as_deref().unwrap_or_default());
        phase.end(result.is_ok());
        result.map_err(|error| match error {
            InferenceError::PromptTooLong { overflow, .. } => ApiError::invalid(too_long(overflow)),
            InferenceError::NoCapacity { retry_after_seconds, .. } => ApiError::no_room_for(retry_after_seconds),
            InferenceError::Failed { error: MemberError::Refused(_), .. } => ApiError::refused_by_runtime(error),
            InferenceError::Failed { retry_after_seconds, .. } => ApiError::inference_error(error, retry_after_seconds),
            InferenceError::NoneAvailable => ApiError::inference_error(error, None),
        })
    }

    /// Facts get the room that the conversation and its completion leave. Where the runtime counts more tokens than we
    /// thought, they get less, and none at last.
    async fn complete_grounded(
        &mut self,
        asking: Asking<'_>,
        grounder: &Grounder,
        passages: &[Passage],
    ) -> Result<Cited, InferenceError> {
        let mut tokens = grounder.source_budget(asking.request, asking.pool_client.0.context());
        loop {
            let augmentation = Grounder::augment(passages, tokens);
            self.note_sources(augmentation.sources.len());
            match self.ask(Asking { request: &asking.request.with_instructions(&augmentation.text), ..asking }).await {
                Err(InferenceError::PromptTooLong { .. }) if !augmentation.sources.is_empty() => tokens /= 3,
                Err(error) => return Err(error),
                Ok(completion) => {
                    let text = augment::strip_dangling_citations(&completion.text, augmentation.sources.len());
                    return Ok(Cited { completion: Completion { text, ..completion }, sources: augmentation.sources });
                }
            }
        }
    }

    async fn ask(&mut self, asking: Asking<'_>) -> Result<Completion, InferenceError> {
        let attribution = Attribution { id: self.report.arrival.id, tag: Some(self.key), trace: asking.trace };
        let result = asking.pool_client.0.complete(asking.request, attribution).await;
        self.report.runtime = match &result {
            Ok(routed) => Some(routed.runtime.clone()),
            Err(error) => error.runtime().cloned(),
        };
        result.map(|routed| routed.completion)
    }

    fn note_sources(&mut self, count: usize) {
        if let Some(grounding) = &mut self.grounding {
            grounding.sources = u16::try_from(count).ok();
        }
    }

    /// Records a success; the receipt is what an answer is made of.
    pub(crate) async fn succeed(mut self, completion: &Completion) -> Result<Receipt, ApiError> {
        self.report.usage = completion.usage;
        let entry = self.settle(COMPLETED, completion.usage);
        self.record(entry).await.map_err(ApiError::unrecorded)
    }

    /// Records a failure. If that fails, too, it is logged, and the caller's answer stands.
    pub(crate) async fn fail(mut self, refusal: &ApiError) {
        let entry = self.settle(refusal.outcome(), TokenUsage::default());
        let ledger = &self.report.worker.api.ledger;
        // A ledger that fails already would only keep the caller waiting.
        let recorded = if ledger.is_healthy() { self.record(entry).await.map(drop) } else { ledger.note(entry) };
        if let Err(reason) = recorded {
            tracing::error!(request_id = %self.report.arrival.id, %reason, "a failed request was not recorded");
        }
    }

    async fn record(&mut self, entry: Entry) -> Result<Receipt, NotRecorded> {
        let began = Instant::now();
        let phase = self.report.trail.phase("persist");
        let recorded = self.report.worker.api.ledger.record(entry).await;
        self.report.persist = Some(began.elapsed());
        phase.end(recorded.is_ok());
        recorded
    }

    fn settle(&mut self, outcome: Outcome, usage: TokenUsage) -> Entry {
        self.settled = true;
        let Arrival { id, at } = self.report.arrival;
        self.report.timings.total = at.elapsed();
        Entry {
            request_id: id,
            key: self.key,
            owner: self.owner,
            outcome,
            usage,
            timings: self.report.timings,
            grounding: self.grounding,
        }
    }
}

/// What a runtime is asked, and from which place in a trace.
#[derive(Clone, Copy)]
struct Asking<'a> {
    pool_client: &'a MeteredPoolClient,
    request: &'a ChatRequest,
    trace: Option<&'a Trace>,
}

impl Drop for Meter<'_, '_> {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        let worker = self.report.worker;
        let ours = std::thread::panicking() || worker.api.is_cut_off();
        let entry = self.settle(if ours { FAILED } else { CLIENT_CLOSED }, TokenUsage::default());
        let id = entry.request_id;
        if let Err(reason) = worker.api.ledger.note(entry) {
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
