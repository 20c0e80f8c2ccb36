//! One thread's access to the pool: sends a request to a member, and retries with one other if no part of a completion
//! arrived.
//!
//! A waiting request checks periodically whether it should be moved to another member. It is then cancelled at its
//! member, so that no two members ever work for it, and at most one completes it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use breaker::Verdict;
use chat::{ChatRequest, Completion};
use parking_lot::Mutex;
use tokio::time::Instant;
use wire::runtime::ContextOverflow;

use crate::balance::{Affinity, Lease, MoveReason, Observation, WaitingRequest};
use crate::counters::Event;
use crate::guard;
use crate::idle::{Connections, IdleConnections};
use crate::member::{Attribution, Member, MemberError, observation};
use crate::pool::{Availability, Pool};

/// How often a waiting request checks whether it should be moved. Most are completed earlier.
const MOVE_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Holds this thread's connections to every member.
pub struct PoolClient {
    pool: Arc<Pool>,
    idle: Mutex<Vec<(Arc<Member>, Arc<IdleConnections>)>>,
}

/// Why there is no completion.
#[derive(Debug, thiserror::Error)]
pub enum InferenceError {
    #[error("the prompt does not fit the model's context")]
    PromptTooLong(ContextOverflow),
    /// No member has capacity now; nothing was computed.
    #[error("no runtime has capacity")]
    NoCapacity { retry_after_seconds: u64 },
    #[error("{runtime}: {error}")]
    Failed {
        runtime: Arc<str>,
        error: MemberError,
        /// Set if the failed members only lacked capacity.
        retry_after_seconds: Option<u64>,
    },
    #[error("no runtime is available")]
    NoneAvailable,
}

impl PoolClient {
    pub fn new(pool: Arc<Pool>) -> Self {
        Self { pool, idle: Mutex::default() }
    }

    pub fn availability(&self) -> Availability {
        self.pool.availability()
    }

    /// The largest context of all members, in tokens, if each reports one.
    pub fn largest_context(&self) -> Option<usize> {
        self.pool.largest_context()
    }

    /// The smallest context of all members that report one, in tokens.
    pub fn context(&self) -> Option<usize> {
        self.pool.context()
    }

    /// Runs a completion. `begins` gets the name of each member before it gets the request. Dropping the future cancels it:
    /// the connection is closed, and the runtime stops.
    pub async fn complete(
        &self,
        request: &ChatRequest,
        attribution: Attribution<'_>,
        mut begins: impl FnMut(Arc<str>),
    ) -> Result<Completion, InferenceError> {
        let call = Call {
            request,
            attribution,
            affinity: Affinity::from_request(request),
            deadline: Instant::now() + self.pool.timeout(),
        };
        let mut lease = LeaseGuard::acquire(&self.pool, &call, &[]).ok_or(InferenceError::NoneAvailable)?;
        // The attempt that failed before this one, and the index of the member that the request was moved away from.
        let (mut earlier, mut moved_from): (Option<FailedAttempt>, Option<usize>) = (None, None);
        loop {
            begins(lease.member.shared_name());
            // Repeats the index if there was no earlier attempt: an array needs no allocation.
            let failed_before = earlier.as_ref().map_or(lease.index, |earlier| earlier.index);
            let excluded = [lease.index, failed_before, moved_from.unwrap_or(lease.index)];
            let idle = self.idle(&lease.member);
            let connections = if earlier.is_none() { Connections::Any(&idle) } else { Connections::New(&idle) };
            let result = match self.wait(&call, &lease, connections, &excluded, moved_from.is_none()).await {
                Waited::Ended(result) => result,
                Waited::Moved(next, reason) => {
                    lease.observation = Observation::moved(reason);
                    lease.member.counters().count(Event::Moved);
                    lease.log_move(reason);
                    moved_from = Some(lease.index);
                    lease = next;
                    continue;
                }
            };
            lease.observation = observed(&result, earlier.as_ref(), moved_from.is_some());
            lease.member.counters().record(&result);
            let error = match result {
                Ok(completion) => {
                    self.pool.record_decode();
                    if let Some(earlier) = earlier.as_ref().filter(|earlier| earlier.error.is_ambiguous()) {
                        self.pool.judge(earlier.index, &earlier.member, Verdict::Bad);
                    }
                    return Ok(completion);
                }
                Err(error) => error,
            };
            let failed = FailedAttempt { index: lease.index, member: lease.member.clone(), error };
            if let Some(earlier) = earlier {
                if earlier.error.is_ambiguous() && failed.error.is_ambiguous() {
                    self.pool.doubt([earlier.index, failed.index]);
                }
                return Err(failed.after(&earlier));
            }
            drop(lease); // releases the member before another one is chosen
            if !failed.error.is_retryable() {
                return Err(failed.into());
            }
            let Some(other) = LeaseGuard::acquire(&self.pool, &call, &excluded) else {
                failed.judge_alone(&self.pool);
                return Err(failed.into());
            };
            failed.member.counters().count(Event::Retried);
            let (request_id, runtime) = (attribution.id, failed.member.name());
            tracing::warn!(%request_id, runtime, cause = %failed.error, "a runtime failed; retrying with another");
            (lease, earlier) = (other, Some(failed));
        }
    }

    /// This thread's connections to a member. Closes those to members that have left.
    fn idle(&self, member: &Arc<Member>) -> Arc<IdleConnections> {
        let mut idle = self.idle.lock();
        idle.retain(|(member, _)| !member.has_left());
        if let Some((_, known)) = idle.iter().find(|(known, _)| Arc::ptr_eq(known, member)) {
            return known.clone();
        }
        let new = Arc::<IdleConnections>::default();
        idle.push((member.clone(), new.clone()));
        new
    }
}

/// What the balance learns from the end of an attempt.
fn observed(result: &Result<Completion, MemberError>, earlier: Option<&FailedAttempt>, was_moved: bool) -> Observation {
    let is_undecided = earlier.is_some_and(|earlier| earlier.error.is_ambiguous());
    match result {
        // It had only the rest of the time, after another member.
        Err(MemberError::TimedOut) if was_moved || earlier.is_some() => Observation::no_response(Verdict::Unclear),
        // Another member's response will decide, or has shown that the request is at fault.
        Err(error) if error.is_ambiguous() && (is_undecided || earlier.is_none() && error.is_retryable()) => {
            Observation::responded(Verdict::Unclear)
        }
        result => observation(result),
    }
}

/// The end of the wait for a member.
enum Waited<'a> {
    Ended(Result<Completion, MemberError>),
    /// The request must be sent to another member.
    Moved(LeaseGuard<'a>, MoveReason),
}

impl PoolClient {
    async fn wait<'a>(
        &'a self,
        call: &Call<'_>,
        lease: &LeaseGuard<'a>,
        connections: Connections<'_>,
        excluded: &[usize],
        may_move: bool,
    ) -> Waited<'a> {
        let begun = AtomicBool::new(false);
        let guarded = self.pool.guards(&lease.member).then(|| guard::guard(call.request)).flatten();
        let request = guarded.as_ref().unwrap_or(call.request);
        let mut completion = pin!(lease.member.complete(connections, request, call.attribution, &begun));
        let next_check =
            || if may_move { call.deadline.min(Instant::now() + MOVE_CHECK_INTERVAL) } else { call.deadline };
        let mut check = pin!(tokio::time::sleep_until(next_check()));
        loop {
            tokio::select! {
                biased;
                result = &mut completion => {
                    return Waited::Ended(if guarded.is_some() { result.map(guard::restore) } else { result });
                }
                () = &mut check => {}
            }
            if Instant::now() >= call.deadline {
                return Waited::Ended(Err(MemberError::TimedOut));
            }
            // Once a response has begun, the request is no longer moved.
            if !begun.load(Ordering::Relaxed)
                && let Some((next, reason)) = lease.move_elsewhere(call, excluded)
            {
                return Waited::Moved(next, reason);
            }
            check.as_mut().reset(next_check());
        }
    }
}

/// The data that all attempts at one completion share.
struct Call<'a> {
    request: &'a ChatRequest,
    attribution: Attribution<'a>,
    affinity: Affinity,
    deadline: Instant,
}

struct FailedAttempt {
    /// The member's index in the balance.
    index: usize,
    member: Arc<Member>,
    error: MemberError,
}

impl FailedAttempt {
    /// Judges the only member. The status may be caused by the request: avoiding the member because of it would fail all
    /// other requests.
    fn judge_alone(&self, pool: &Pool) {
        match self.error {
            MemberError::Refused(_) => pool.judge(self.index, &self.member, Verdict::Good),
            MemberError::NoResponse { .. } => pool.judge(self.index, &self.member, Verdict::Bad),
            _ => {}
        }
    }

    /// The error to report after two attempts. It has a `Retry-After` only if both members merely lacked capacity.
    fn after(self, earlier: &Self) -> InferenceError {
        let both = self.error.retry_after().zip(earlier.error.retry_after());
        let soonest = both.map(|(one, other)| one.min(other));
        match (soonest, &earlier.error) {
            (Some(retry_after_seconds), MemberError::NoCapacity { .. }) => {
                InferenceError::NoCapacity { retry_after_seconds }
            }
            _ => self.into_error(soonest),
        }
    }

    fn into_error(self, retry_after: Option<u64>) -> InferenceError {
        let runtime = self.member.shared_name();
        match self.error {
            MemberError::PromptTooLong(overflow) => InferenceError::PromptTooLong(overflow),
            MemberError::NoCapacity { retry_after: own } => {
                InferenceError::NoCapacity { retry_after_seconds: retry_after.unwrap_or(own) }
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

/// Releases its lease when it is dropped, so that a cancelled request no longer counts as in flight.
struct LeaseGuard<'a> {
    pool: &'a Pool,
    member: Arc<Member>,
    index: usize,
    lease: Option<Lease>,
    observation: Observation,
}

impl<'a> LeaseGuard<'a> {
    fn acquire(pool: &'a Pool, call: &Call<'_>, excluded: &[usize]) -> Option<Self> {
        let (lease, member) = pool.choose(call.affinity, excluded)?;
        Some(Self::new(pool, lease, member))
    }

    fn new(pool: &'a Pool, lease: Lease, member: Arc<Member>) -> Self {
        let observation = Observation::no_response(Verdict::Unclear);
        Self { pool, member, index: lease.member(), lease: Some(lease), observation }
    }

    /// A lease on another member, if the request has waited too long for this one.
    fn move_elsewhere(&self, call: &Call<'_>, excluded: &[usize]) -> Option<(Self, MoveReason)> {
        let max_tokens = u32::from(call.request.max_tokens().get());
        let request = WaitingRequest { lease: self.lease.as_ref()?, affinity: call.affinity, max_tokens, excluded };
        let (lease, member, reason) = self.pool.move_elsewhere(request)?;
        Some((Self::new(self.pool, lease, member), reason))
    }

    fn log_move(&self, reason: MoveReason) {
        let now = self.pool.now();
        if let Some(lease) = &self.lease {
            self.member.log_move(reason, lease.waited(now), now);
        }
    }
}

impl Drop for LeaseGuard<'_> {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.pool.release(lease, self.observation);
        }
    }
}
