//! Grounding and inference of one request, noted in its record.
//!
//! Only a request with a record reaches a runtime (`Runtimes` is opaque elsewhere), and only after grounding: a completion
//! takes `Facts`, which only `ground` makes.

use std::time::Instant;

use chat::{ChatRequest, Completion};
use grounding::augment::{self, Source};
use grounding::{Assessment, Grounder, Need, Passage};
use http::HeaderMap;
use runtimes::{Attribution, Availability, InferenceError, MemberError, PoolClient};
use store::{AccountId, Caller, GroundingRecord};
use wire::runtime::ContextOverflow;

use crate::admit::Admitted;
use crate::counters::SearchOutcome;
use crate::error::ApiError;
use crate::record::RequestRecord;

/// When the runtime counts more tokens than estimated, sources get this fraction of the tokens at the next attempt.
const FEWER_SOURCE_TOKENS: usize = 3;

/// This worker's client of the pool, which only records can use.
pub(crate) struct Runtimes(PoolClient);

impl Runtimes {
    pub(crate) fn new(client: PoolClient) -> Self {
        Self(client)
    }

    pub(crate) fn availability(&self) -> Availability {
        self.0.availability()
    }

    /// In tokens, if all runtimes report their context.
    pub(crate) fn largest_context(&self) -> Option<usize> {
        self.0.largest_context()
    }
}

/// The passages that Search found for a request; `None` if there was no search.
pub(crate) struct Facts(Option<Vec<Passage>>);

/// A completion and the sources that it may cite.
pub(crate) struct GroundedCompletion {
    pub(crate) completion: Completion,
    pub(crate) sources: Vec<Source>,
}

impl RequestRecord<'_> {
    /// Whether a request needs facts; `None` if there is nothing to search.
    pub(crate) fn assess(&mut self, chat: &ChatRequest) -> Option<Assessment> {
        let assessment = self.worker.api.grounder.as_ref()?.assess(chat.messages())?;
        let (score, scorer) = (assessment.score.get(), assessment.scorer);
        self.grounding = Some(GroundingRecord { score, scorer, sources: None });
        Some(assessment)
    }

    /// The maximum of bytes that sources add to the prompt.
    pub(crate) fn max_source_bytes(&self, assessment: Option<Assessment>) -> usize {
        let may_have_sources = assessment.is_some_and(|assessment| assessment.need != Need::None);
        self.worker.api.grounder.as_ref().filter(|_| may_have_sources).map_or(0, Grounder::max_added_bytes)
    }

    /// Searches for helpful passages. If facts are needed and Search is down, there is no completion.
    pub(crate) async fn ground(&mut self, admitted: &Admitted<'_>, chat: &ChatRequest) -> Result<Facts, ApiError> {
        let assessment = admitted.assessment.filter(|assessment| assessment.need != Need::None);
        let (Some(assessment), Some(grounder)) = (assessment, &self.worker.api.grounder) else {
            return Ok(Facts(None));
        };
        let began = Instant::now();
        self.timings.queue = Some(began - self.arrived);
        let span = self.trace.client_span("search");
        let found = Box::pin(grounder.search(chat.messages(), assessment, span.headers())).await;
        let took = began.elapsed();
        self.timings.search = Some(took);
        span.end(found.is_ok(), took);
        self.worker.counters.search(match &found {
            Ok(passages) if passages.is_empty() => SearchOutcome::Nothing,
            Ok(_) => SearchOutcome::Found,
            Err(_) => SearchOutcome::Failed,
        });
        let passages = match found {
            Ok(passages) => Some(passages).filter(|passages| assessment.need == Need::Required || !passages.is_empty()),
            Err(error) if assessment.need == Need::Optional => {
                tracing::warn!(id = %self.id, %error, "answered without sources, because the search failed");
                None
            }
            Err(error) => {
                let location = grounder.search_location();
                return Err(ApiError::search_unavailable(format!("Search at {location}: {error}")));
            }
        };
        self.authorize_again().await?; // a search may take seconds
        Ok(Facts(passages))
    }

    /// Runs a completion, with the facts in its prompt.
    pub(crate) async fn complete(
        &mut self,
        admitted: &Admitted<'_>,
        chat: &ChatRequest,
        facts: &Facts,
    ) -> Result<GroundedCompletion, ApiError> {
        let began = Instant::now();
        self.timings.queue.get_or_insert(began - self.arrived);
        let mut span = self.trace.client_span("inference");
        let inference = Inference { client: &admitted.runtimes.0, chat, trace: span.headers() };
        let result = match (facts, &self.worker.api.grounder) {
            (Facts(Some(passages)), Some(grounder)) => {
                Box::pin(self.complete_grounded(inference, grounder, passages)).await
            }
            _ => self.run(inference).await.map(|completion| GroundedCompletion { completion, sources: Vec::new() }),
        };
        let took = began.elapsed();
        self.timings.inference = Some(took);
        span.set_runtime(self.runtime.as_deref().unwrap_or_default());
        span.end(result.is_ok(), took);
        result.map_err(|error| match error {
            InferenceError::PromptTooLong(overflow) => ApiError::invalid(too_long(overflow)),
            InferenceError::NoCapacity { retry_after_seconds } => ApiError::at_capacity_for(retry_after_seconds),
            InferenceError::Failed { error: MemberError::Refused(_), .. } => ApiError::refused_by_runtime(error),
            InferenceError::Failed { retry_after_seconds, .. } => ApiError::inference_error(error, retry_after_seconds),
            InferenceError::NoneAvailable => ApiError::inference_error(error, None),
        })
    }

    /// Sources get the tokens that the conversation and its completion leave. If the runtime counts more tokens than
    /// estimated, they get fewer, and finally none.
    async fn complete_grounded(
        &mut self,
        inference: Inference<'_>,
        grounder: &Grounder,
        passages: &[Passage],
    ) -> Result<GroundedCompletion, InferenceError> {
        let mut tokens = grounder.source_budget(inference.chat, inference.client.context());
        loop {
            let augmentation = Grounder::augment(passages, tokens);
            if let Some(grounding) = &mut self.grounding {
                grounding.sources = u16::try_from(augmentation.sources.len()).ok();
            }
            match self.run(Inference { chat: &augmentation.apply(inference.chat), ..inference }).await {
                Err(InferenceError::PromptTooLong(_)) if !augmentation.sources.is_empty() => {
                    tokens /= FEWER_SOURCE_TOKENS;
                }
                Err(error) => return Err(error),
                Ok(completion) => {
                    let text = augment::strip_dangling_citations(&completion.text, augmentation.sources.len());
                    let completion = Completion { text, ..completion };
                    return Ok(GroundedCompletion { completion, sources: augmentation.sources });
                }
            }
        }
    }

    async fn run(&mut self, inference: Inference<'_>) -> Result<Completion, InferenceError> {
        let client = self.caller.as_ref().map(Caller::client);
        let person = client.as_ref().and_then(|client| client.person.as_ref()).map(AccountId::as_str);
        let key = client.map(|client| client.key);
        let attribution = Attribution { id: self.id, key, person, trace: inference.trace };
        let begins = |runtime| {
            self.runtime = Some(runtime);
            self.inference_began.get_or_insert_with(Instant::now);
        };
        inference.client.complete(inference.chat, attribution, begins).await
    }
}

/// A request to a runtime.
#[derive(Clone, Copy)]
struct Inference<'a> {
    client: &'a PoolClient,
    chat: &'a ChatRequest,
    trace: &'a HeaderMap,
}

fn too_long(overflow: ContextOverflow) -> String {
    let tokens = |count: Option<u64>, unknown: &str| count.map_or_else(|| unknown.into(), |count| count.to_string());
    match overflow {
        ContextOverflow { prompt: None, context: None, .. } => "The prompt does not fit the model's context.".into(),
        ContextOverflow { prompt, is_exact, context } => format!(
            "The prompt does not fit the model's context: the prompt has {}{} tokens, the context holds {} tokens.",
            if is_exact || prompt.is_none() { "" } else { "at least " },
            tokens(prompt, "more"),
            tokens(context, "fewer"),
        ),
    }
}
