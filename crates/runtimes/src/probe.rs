//! Whether anybody really decodes, and what our own engines tell of themselves: asked by operators' tools, apart from requests.

use std::sync::atomic::Ordering;
use std::time::Duration;

use chat::{ChatRequest, LimitError, MaxTokens, Message, RequestId, Role, Temperature};
use http::HeaderMap;
use tokio::task::JoinSet;
use wire::engine::Status;

use crate::member::{Attribution, Idle, MemberError};
use crate::pool::Pool;

impl Pool {
    /// How long ago a member was last seen to decode a token; `None` if that has never been seen.
    pub fn last_decoded(&self) -> Option<Duration> {
        let at = self.decoded.load(Ordering::Relaxed).checked_sub(1)?;
        Some(Duration::from_millis(self.now().saturating_sub(at)))
    }

    /// What those members tell of themselves that are our own engine, all asked at once.
    pub async fn engines(&self) -> Vec<(String, Status)> {
        let asked = self.present().into_iter().map(|(_, member)| async move {
            let status = member.engine_status().await?;
            Some((member.name().to_owned(), status))
        });
        let asked: JoinSet<_> = asked.collect();
        let mut told: Vec<_> = asked.join_all().await.into_iter().flatten().collect();
        told.sort_by(|(one, _), (other, _)| one.cmp(other));
        told
    }

    /// Has a member decode a token for nobody, apart from requests: nothing is counted, and no opinion is formed of it.
    /// One after the other is asked until one does; `Err` tells of the last that did not. That it is full shows life, too.
    pub async fn probe(&self) -> Result<(), String> {
        let question = question().map_err(|error| error.to_string())?;
        let mut failed = "nobody could be asked".to_owned();
        for member in self.available() {
            let trace = HeaderMap::new();
            let attribution = Attribution { id: RequestId::now(), tag: None, trace: &trace };
            match member.complete(&Idle::default(), &question, attribution).await {
                Ok(_)
                | Err(MemberError::PromptTooLong(_) | MemberError::Saturated { .. } | MemberError::NoCapacity { .. }) =>
                {
                    self.decoded();
                    return Ok(());
                }
                Err(failure) => failed = format!("{}: {failure}", member.name()),
            }
        }
        Err(failed)
    }

    /// A member has decoded a token.
    pub(crate) fn decoded(&self) {
        self.decoded.store(self.now() + 1, Ordering::Relaxed);
    }
}

/// The shortest question that there is.
fn question() -> Result<ChatRequest, LimitError> {
    ChatRequest::new(vec![Message::new(Role::User, "1".into())?], Temperature::default(), MaxTokens::new(1)?)
}
