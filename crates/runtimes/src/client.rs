//! One thread's access to the pool: asks a member, and one other if nothing of a completion arrived.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use breaker::Verdict;
use chat::{ChatRequest, Completion, RequestId};
use wire::runtime::ContextOverflow;

use crate::balance::{Affinity, Ending, Lease};
use crate::member::{Attribution, Idle, Member, MemberError, ending};
use crate::pool::{Availability, Pool};

/// Keeps this thread's own connections to every member.
pub struct PoolClient {
    pool: Arc<Pool>,
    /// By the member's name.
    idle: Mutex<HashMap<String, Arc<Idle>>>,
    /// The version of the membership that `idle` was last cleaned up for.
    cleaned_up_for: AtomicU64,
}

/// A completion and the member that produced it.
#[derive(Debug)]
pub struct RoutedCompletion {
    pub completion: Completion,
    pub runtime: Arc<str>,
}

/// Why there is no completion. `runtime` is the member that was asked last.
#[derive(Debug, thiserror::Error)]
pub enum InferenceError {
    #[error("the prompt does not fit the model's context")]
    PromptTooLong { runtime: Arc<str>, overflow: ContextOverflow },
    /// No member has capacity now; nothing was computed.
    #[error("no runtime has capacity")]
    NoCapacity { runtime: Arc<str>, retry_after_seconds: u64 },
    #[error("{runtime}: {error}")]
    Failed {
        runtime: Arc<str>,
        error: MemberError,
        /// Set if the members that were asked were merely saturated.
        retry_after_seconds: Option<u64>,
    },
    #[error("no runtime is available")]
    NoneAvailable,
}

impl InferenceError {
    /// The member that was asked last.
    pub fn runtime(&self) -> Option<&Arc<str>> {
        match self {
            Self::PromptTooLong { runtime, .. } | Self::NoCapacity { runtime, .. } | Self::Failed { runtime, .. } => {
                Some(runtime)
            }
            Self::NoneAvailable => None,
        }
    }
}

impl PoolClient {
    pub fn new(pool: Arc<Pool>) -> Self {
        Self { pool, idle: Mutex::default(), cleaned_up_for: AtomicU64::new(0) }
    }

    pub fn availability(&self) -> Availability {
        self.pool.availability()
    }

    /// The smallest context of all members that report one, in tokens.
    pub fn context(&self) -> Option<usize> {
        self.pool.context()
    }

    /// Runs a completion. Dropping the future cancels it: the connection is closed, and the runtime stops.
    pub async fn complete(
        &self,
        request: &ChatRequest,
        attribution: Attribution<'_>,
    ) -> Result<RoutedCompletion, InferenceError> {
        let call = Call {
            request,
            attribution,
            affinity: Affinity::of(request),
            deadline: tokio::time::Instant::now() + self.pool.timeout(),
        };
        let first = match self.attempt(&call, None).await.ok_or(InferenceError::NoneAvailable)? {
            Ok(completion) => return Ok(completion),
            Err(failed) if !failed.error.is_retryable() => return Err(failed.into()),
            Err(failed) => failed,
        };
        // If there is no other member to ask, the first error stands.
        let Some(second) = self.attempt(&call, Some(first.index)).await else { return Err(first.into()) };
        first.member.counters().retry();
        let member = first.member.name();
        tracing::warn!(request_id = %attribution.id, member, cause = %first.error, "a runtime failed; another was asked");
        second.map_err(|second| second.after(&first))
    }

    /// Asks the best member other than the one that failed before. `None` if there is none.
    async fn attempt(
        &self,
        call: &Call<'_>,
        excluded: Option<usize>,
    ) -> Option<Result<RoutedCompletion, FailedAttempt>> {
        let mut guard = LeaseGuard::acquire(&self.pool, call, excluded)?;
        let idle = self.idle(&guard.member);
        let completion = guard.member.complete(&idle, call.request, call.attribution);
        let result = tokio::time::timeout_at(call.deadline, completion).await.unwrap_or(Err(MemberError::TimedOut));
        guard.ending = Some(ending(&result));
        guard.member.counters().record(&result);
        Some(match result {
            Ok(completion) => {
                self.pool.decoded();
                Ok(RoutedCompletion { completion, runtime: guard.member.shared_name() })
            }
            Err(error) => Err(FailedAttempt { index: guard.index, member: guard.member.clone(), error }),
        })
    }

    /// This thread's connections to a member. Closes those to members that have left.
    fn idle(&self, member: &Member) -> Arc<Idle> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let version = self.pool.membership_version();
        if self.cleaned_up_for.swap(version, Ordering::Relaxed) != version {
            let names = self.pool.names();
            idle.retain(|name, _| names.contains(name));
        }
        if let Some(known) = idle.get(member.name()) {
            return known.clone();
        }
        idle.entry(member.name().to_owned()).or_default().clone()
    }
}

/// What stays the same for every attempt at one completion.
struct Call<'a> {
    request: &'a ChatRequest,
    attribution: Attribution<'a>,
    affinity: Affinity,
    deadline: tokio::time::Instant,
}

struct FailedAttempt {
    /// The member's index in the balance.
    index: usize,
    member: Arc<Member>,
    error: MemberError,
}

impl FailedAttempt {
    /// The error to report after two attempts. Waiting helps only if both members lacked nothing but capacity.
    fn after(self, earlier: &Self) -> InferenceError {
        let both = self.error.retry_after().zip(earlier.error.retry_after());
        let soonest = both.map(|(one, other)| one.min(other));
        match (soonest, &earlier.error) {
            (Some(retry_after_seconds), MemberError::NoCapacity { .. }) => {
                InferenceError::NoCapacity { runtime: self.member.shared_name(), retry_after_seconds }
            }
            _ => self.into_error(soonest),
        }
    }

    fn into_error(self, retry_after: Option<u64>) -> InferenceError {
        let runtime = self.member.shared_name();
        match self.error {
            MemberError::PromptTooLong(overflow) => InferenceError::PromptTooLong { runtime, overflow },
            MemberError::NoCapacity { retry_after: own } => {
                InferenceError::NoCapacity { runtime, retry_after_seconds: retry_after.unwrap_or(own) }
            }
            error => InferenceError::Failed { runtime, error, retry_after_seconds: retry_after },
        }
    }
}

impl From<FailedAttempt> for InferenceError {
    fn from(failed: FailedAttempt) -> Self {
        let retry_after = failed.error.retry_after();
        failed.into_error(retry_after)
    }
}

/// A lease that is released when it is dropped, so that a cancelled request is no longer counted as in flight.
struct LeaseGuard<'a> {
    pool: &'a Pool,
    member: Arc<Member>,
    index: usize,
    lease: Option<Lease>,
    request_id: RequestId,
    /// `None` until the request has ended.
    ending: Option<Ending>,
}

impl<'a> LeaseGuard<'a> {
    fn acquire(pool: &'a Pool, call: &Call<'_>, excluded: Option<usize>) -> Option<Self> {
        let (lease, member) = pool.choose(call.affinity, excluded)?;
        let (index, request_id) = (lease.member(), call.attribution.id);
        Some(Self { pool, member, index, lease: Some(lease), request_id, ending: None })
    }
}

impl Drop for LeaseGuard<'_> {
    fn drop(&mut self) {
        let Some(lease) = self.lease.take() else { return };
        if self.ending.is_none() {
            tracing::debug!(request_id = %self.request_id, runtime = self.member.name(), "a completion was cancelled");
        }
        self.pool.release(lease, self.ending.unwrap_or(Ending::silent(Verdict::Unclear)));
    }
}
