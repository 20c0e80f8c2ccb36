//! One thread's way into the pool: asks a member, and one other if nothing of an answer came.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use breaker::Verdict;
use chat::{ChatRequest, Completion};
use wire::runtime::ContextOverflow;

use crate::balance::{Affinity, Ending, Lease};
use crate::member::{Attribution, Idle, Member, MemberError, Reply};
use crate::pool::{Availability, Pool};

/// One thread's own connections to every member.
pub struct PoolClient {
    pool: Arc<Pool>,
    /// By the member's name.
    idle: Mutex<HashMap<String, Arc<Idle>>>,
    /// The membership that the connections are for.
    followed: AtomicU64,
}

/// Why there is no completion.
#[derive(Debug, thiserror::Error)]
pub enum InferenceError {
    /// The prompt does not fit the model's context.
    #[error("the prompt does not fit the model's context")]
    PromptTooLong(ContextOverflow),
    /// No member has room now; nothing was done.
    #[error("no runtime has room")]
    NoCapacity {
        /// Seconds after which there may be some.
        retry_after: u64,
    },
    /// No member gave a proper answer; the last one's failure.
    #[error("{member}: {failure}")]
    Failed {
        /// The member that failed last.
        member: String,
        /// How.
        failure: MemberError,
        /// Seconds after which there may be room, if everyone who was asked merely lacked it.
        retry_after: Option<u64>,
    },
}

impl PoolClient {
    /// A lane into a pool.
    pub fn new(pool: Arc<Pool>) -> Self {
        Self { pool, idle: Mutex::default(), followed: AtomicU64::new(0) }
    }

    /// Whether there is anybody to ask.
    pub fn availability(&self) -> Availability {
        self.pool.availability()
    }

    /// Tokens that the context of every member holds, as far as they say.
    pub fn context(&self) -> Option<usize> {
        self.pool.context()
    }

    /// Runs a completion. Dropping the future cancels it: the connection is closed, and the runtime stops.
    /// `asked` is the member that was asked last, whatever comes of it.
    pub async fn complete(
        &self,
        request: &ChatRequest,
        attribution: Attribution<'_>,
        asked: &mut Option<Arc<str>>,
    ) -> Result<Completion, InferenceError> {
        let asking = Asking {
            request,
            attribution,
            affinity: Affinity::of(request),
            deadline: tokio::time::Instant::now() + self.pool.timeout(),
        };
        let failed = match self.ask_one(&asking, None, asked).await {
            Ok(reply) => return finish(reply),
            Err(failed) if !failed.failure.may_be_retried() => return Err(failed.into()),
            Err(failed) => failed,
        };
        let again = self.ask_one(&asking, failed.at, asked).await;
        // Where there was no other to ask, the first failure is the one to tell of.
        if let Err(Failed { failure: MemberError::NoneAvailable, .. }) = &again {
            return Err(failed.into());
        }
        if let Some(member) = &failed.member {
            member.counters().retry();
        }
        let member = failed.name();
        tracing::warn!(request_id = %attribution.id, %member, cause = %failed.failure, "a runtime failed; another was asked");
        again.map_or_else(|again| Err(again.after(&failed)), finish)
    }

    /// Asks the best member other than one that failed before.
    async fn ask_one(
        &self,
        asking: &Asking<'_>,
        failed: Option<usize>,
        asked: &mut Option<Arc<str>>,
    ) -> Result<Reply, Failed> {
        let Some((mut guard, member)) = UnderWay::begin(&self.pool, asking.affinity, failed) else {
            return Err(Failed { at: None, member: None, failure: MemberError::NoneAvailable });
        };
        *asked = Some(member.shared_name());
        let idle = self.idle(&member);
        let reply = member.complete(&idle, asking.request, asking.attribution);
        let reply = tokio::time::timeout_at(asking.deadline, reply).await.unwrap_or(Err(MemberError::TimedOut));
        guard.ending = reply.as_ref().map_or_else(MemberError::ending, Reply::ending);
        match reply {
            Ok(reply) => {
                member.counters().complete();
                if let Reply::Completion(_) = reply {
                    self.pool.decoded();
                }
                Ok(reply)
            }
            Err(failure) => {
                member.counters().fail(&failure);
                Err(Failed { at: guard.at(), member: Some(member), failure })
            }
        }
    }

    /// This thread's connections to a member. Those to members that have left are closed on the way.
    fn idle(&self, member: &Member) -> Arc<Idle> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let version = self.pool.membership_version();
        if self.followed.swap(version, Ordering::Relaxed) != version {
            let names = self.pool.names();
            idle.retain(|name, _| names.contains(name));
        }
        if let Some(known) = idle.get(member.name()) {
            return known.clone();
        }
        idle.entry(member.name().to_owned()).or_default().clone()
    }
}

fn finish(reply: Reply) -> Result<Completion, InferenceError> {
    match reply {
        Reply::Completion(completion) => Ok(completion),
        Reply::TooLong(overflow) => Err(InferenceError::PromptTooLong(overflow)),
    }
}

/// One request's way through the pool.
struct Asking<'a> {
    request: &'a ChatRequest,
    attribution: Attribution<'a>,
    affinity: Affinity,
    deadline: tokio::time::Instant,
}

/// A failure, and whose.
struct Failed {
    at: Option<usize>,
    member: Option<Arc<Member>>,
    failure: MemberError,
}

impl Failed {
    fn name(&self) -> String {
        self.member.as_ref().map_or_else(|| "the pool".into(), |member| member.name().to_owned())
    }

    /// What the caller is to know of it, after an earlier failure: only if both lacked nothing but room is it worth waiting.
    fn after(self, earlier: &Self) -> InferenceError {
        let both = self.failure.retry_after().zip(earlier.failure.retry_after());
        let soonest = both.map(|(one, other)| one.min(other));
        let is_ours = |failed: &Self| matches!(failed.failure, MemberError::NoCapacity { .. });
        match (soonest, &self.failure) {
            (Some(retry_after), _) if is_ours(earlier) || is_ours(&self) => InferenceError::NoCapacity { retry_after },
            (None, MemberError::NoCapacity { retry_after }) => InferenceError::NoCapacity { retry_after: *retry_after },
            (retry_after, _) => InferenceError::Failed { member: self.name(), failure: self.failure, retry_after },
        }
    }
}

impl From<Failed> for InferenceError {
    fn from(failed: Failed) -> Self {
        let retry_after = failed.failure.retry_after();
        match failed.failure {
            MemberError::NoCapacity { retry_after } => Self::NoCapacity { retry_after },
            _ => Self::Failed { member: failed.name(), failure: failed.failure, retry_after },
        }
    }
}

/// A request under way at a member; counted until it is dropped, however that comes about.
struct UnderWay<'a> {
    pool: &'a Pool,
    lease: Option<Lease>,
    ending: Ending,
}

impl<'a> UnderWay<'a> {
    fn begin(pool: &'a Pool, affinity: Affinity, excluded: Option<usize>) -> Option<(Self, Arc<Member>)> {
        let (lease, member) = pool.choose(affinity, excluded)?;
        Some((Self { pool, lease: Some(lease), ending: Ending::silent(Verdict::Unclear) }, member))
    }

    fn at(&self) -> Option<usize> {
        self.lease.as_ref().map(Lease::member)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.pool.release(lease, self.ending);
        }
    }
}
