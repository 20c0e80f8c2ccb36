//! For readiness and metrics: whether a member decodes, and the status of our engines.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chat::{ChatRequest, LimitError, MaxTokens, Message, RequestId, Role, Temperature};
use http::HeaderMap;
use tokio::task::JoinSet;
use wire::engine::Status;

use crate::idle::{Connections, IdleConnections};
use crate::member::{Attribution, Member, MemberError};
use crate::pool::Pool;

/// How long a probe waits for a member before it also tries another one.
const NEXT_MEMBER_DELAY: Duration = Duration::from_secs(1);

impl Pool {
    /// The time since a member was last known to decode a token; `None` if never.
    pub fn last_decoded(&self) -> Option<Duration> {
        let at = self.last_decode.load(Ordering::Relaxed).checked_sub(1)?;
        Some(Duration::from_millis(self.now().saturating_sub(at)))
    }

    /// The status of members that are our engine, sorted by name. Requested concurrently.
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

    /// Makes a member decode a token. Does not count as a request, and does not affect balance or breakers. Tries further
    /// members if one fails or is slow, until one succeeds. Returns the last error. A saturated member counts as a success.
    pub async fn probe(&self) -> Result<(), String> {
        let request = Arc::new(minimal_request().map_err(|error| error.to_string())?);
        let mut last_error = "no runtime is available".to_owned();
        let (mut members, mut asked) = (self.available().into_iter(), JoinSet::new());
        loop {
            if let Some(member) = members.next() {
                asked.spawn(probe_member(member, request.clone()));
            }
            match tokio::time::timeout(NEXT_MEMBER_DELAY, asked.join_next()).await {
                Err(_elapsed) => {}
                Ok(None) => return Err(last_error),
                Ok(Some(Ok(Ok(has_decoded)))) => {
                    if has_decoded {
                        self.record_decode();
                    }
                    return Ok(());
                }
                Ok(Some(Ok(Err(error)))) => last_error = error,
                Ok(Some(Err(error))) => last_error = error.to_string(),
            }
        }
    }

    pub(crate) fn record_decode(&self) {
        self.last_decode.store(self.now() + 1, Ordering::Relaxed);
    }
}

/// Whether the member has decoded; false if it reported that it is busy.
async fn probe_member(member: Arc<Member>, request: Arc<ChatRequest>) -> Result<bool, String> {
    let trace = HeaderMap::new();
    let attribution = Attribution { id: RequestId::now(), key: None, person: None, trace: &trace };
    let (idle, begun) = (IdleConnections::default(), AtomicBool::default());
    match member.complete(Connections::New(&idle), &request, attribution, &begun).await {
        Ok(_) => Ok(true),
        Err(MemberError::PromptTooLong(_) | MemberError::Saturated { .. } | MemberError::NoCapacity { .. }) => {
            Ok(false)
        }
        Err(error) => Err(format!("{}: {error}", member.name())),
    }
}

fn minimal_request() -> Result<ChatRequest, LimitError> {
    ChatRequest::new(vec![Message::new(Role::User, "1".into())?], Temperature::default(), MaxTokens::new(1)?)
}
