//! Admission of a request that can start. It requires a runtime, a healthy ledger, a key that is still accepted, a free
//! slot, and every limit of the caller. The key is checked again unless the body had arrived with the head, because the
//! first check may be a minute old.

use admission::Permit;
use chat::ChatRequest;
use grounding::Assessment;
use store::{Client, Refusal, ReserveError};

use crate::error::ApiError;
use crate::inference::Runtimes;
use crate::record::RequestRecord;

/// The tokens that a chat template may add: a default system message, and marks around each message.
const TEMPLATE_TOKENS: usize = 256;
const TEMPLATE_TOKENS_PER_MESSAGE: usize = 16;
/// The bytes that split a control token in a message for a remote runtime.
const GUARD_BYTES: usize = 3;

/// A request that may use a runtime. It holds its slot until it is dropped. Its reservation of limits belongs to its
/// record, and ends with the commit of its row.
pub(crate) struct Admitted<'w> {
    pub(crate) runtimes: &'w Runtimes,
    pub(crate) assessment: Option<Assessment>,
    _slot: Permit<Client>,
}

impl<'w> RequestRecord<'w> {
    /// `is_fresh` if the whole request had arrived when its caller was looked up.
    pub(crate) async fn admit(&mut self, chat: &ChatRequest, is_fresh: bool) -> Result<Admitted<'w>, ApiError> {
        let worker = self.worker;
        let runtimes = worker.runtimes.as_ref().ok_or_else(ApiError::unconfigured)?;
        ApiError::require_available(runtimes.availability())?;
        if !worker.ledger.is_healthy() {
            return Err(ApiError::unavailable("Usage cannot be recorded now, so no completions are run."));
        }
        let authorized = if is_fresh { self.authorized() } else { self.authorize_again().await }?; // 401, 403
        let client = authorized.client();
        let slot = worker.api.admission.enter(client).ok_or_else(ApiError::at_capacity)?;
        let assessment = self.assess(chat);
        let tokens = most_tokens(chat, self.max_source_bytes(assessment), runtimes.largest_context());
        self.reserve(tokens).await?; // 403, 503
        Ok(Admitted { runtimes, assessment, _slot: slot })
    }

    async fn reserve(&mut self, tokens: usize) -> Result<(), ApiError> {
        let caller = self.caller.as_ref().ok_or_else(|| ApiError::internal("no caller"))?;
        let reserved = self.worker.api.store.limits().reserve(caller, self.id, tokens as u64).await;
        self.permit = reserved.map_err(|error| match error {
            ReserveError::Refused(Refusal::Budget(refusal)) => ApiError::over_budget(&refusal),
            ReserveError::Refused(Refusal::Limit(reached)) => ApiError::limit_reached(&reached),
            ReserveError::Store(error) => {
                ApiError::unavailable("The service cannot check limits now.").caused_by(error)
            }
        })?;
        Ok(())
    }
}

/// An upper bound of the tokens of a request. A token of the prompt has at least one byte, and the total never exceeds the
/// context.
fn most_tokens(chat: &ChatRequest, source_bytes: usize, context: Option<usize>) -> usize {
    let messages = chat.messages().iter().map(|message| {
        let guarded = message.content().bytes().filter(|byte| matches!(byte, b'<' | b'[' | b']')).count();
        message.content().len() + guarded * GUARD_BYTES + TEMPLATE_TOKENS_PER_MESSAGE
    });
    let prompt = messages.sum::<usize>() + source_bytes + TEMPLATE_TOKENS;
    (prompt + usize::from(chat.max_tokens().get())).min(context.unwrap_or(usize::MAX))
}
