//! For readiness and metrics: whether a member decodes, and the status of our own engines.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chat::{ChatRequest, LimitError, MaxTokens, Message, RequestId, Role, Temperature};
use http::HeaderMap;
use tokio::task::JoinSet;
use wire::engine::Status;

use crate::member::{Attribution, IdleConnections, MemberError};
use crate::pool::Pool;

impl Pool {
    /// How long ago a member was last known to decode a token; `None` if never.
    pub fn last_decoded(&self) -> Option<Duration> {
        let at = self.last_decode.load(Ordering::Relaxed).checked_sub(1)?;
        Some(Duration::from_millis(self.now().saturating_sub(at)))
    }

    /// The status of members that are our own engine, by name. They are asked concurrently.
    pub async fn engines(&self) -> Vec<(String, Status)> {
        let requests = self.active_members().into_iter().map(|(_, member)| async move {
            let status = member.engine_status().await?;
            Some((member.name().to_owned(), status))
        });
        let requests: JoinSet<_> = requests.collect();
        let mut statuses: Vec<_> = requests.join_all().await.into_iter().flatten().collect();
        statuses.sort_by(|(one, _), (other, _)| one.cmp(other));
        statuses
    }

    /// Makes a member decode a token. Does not count as a request, and does not affect balance or breakers. Asks one
    /// member after the other until one succeeds; the error is the last one's. A saturated member counts as a success.
    pub async fn probe(&self) -> Result<(), String> {
        let minimal_request = minimal_request().map_err(|error| error.to_string())?;
        let mut last_error = "no runtime is available".to_owned();
        for member in self.available() {
            let trace = HeaderMap::new();
            let attribution = Attribution { id: RequestId::now(), tag: None, trace: &trace };
            let (idle, begun) = (IdleConnections::default(), AtomicBool::default());
            match member.complete(&idle, &minimal_request, attribution, &begun).await {
                Ok(_)
                | Err(MemberError::PromptTooLong(_) | MemberError::Saturated { .. } | MemberError::NoCapacity { .. }) =>
                {
                    self.record_decode();
                    return Ok(());
                }
                Err(error) => last_error = format!("{}: {error}", member.name()),
            }
        }
        Err(last_error)
    }

    pub(crate) fn record_decode(&self) {
        self.last_decode.store(self.now() + 1, Ordering::Relaxed);
    }
}

fn minimal_request() -> Result<ChatRequest, LimitError> {
    ChatRequest::new(vec![Message::new(Role::User, "1".into())?], Temperature::default(), MaxTokens::new(1)?)
}
