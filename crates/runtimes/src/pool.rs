//! The pool itself: choose a member, ask it, ask one other if nothing of an answer came, and watch everyone's health.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use breaker::Verdict;
use chat::{ChatRequest, Completion};
use wire::runtime::ContextOverflow;

use crate::balance::{Affinity, Balance};
use crate::member::{Attribution, Failure, Idle, Member, Reply};
use crate::url::RuntimeUrl;

/// How often a working member is looked at, and how often a broken one.
const CHECK_EVERY: Duration = Duration::from_secs(5);
const CHECK_BROKEN_EVERY: Duration = Duration::from_millis(500);

/// What one may set about the pool.
#[derive(Debug, Clone)]
pub struct PoolSettings {
    /// The runtimes' base URLs.
    pub urls: Vec<RuntimeUrl>,
    /// How long a completion may take, a retry included.
    pub timeout: Duration,
}

/// All runtimes. Shared by every thread; each thread asks through a `Lane` of its own.
pub struct Pool {
    members: Vec<Member>,
    balance: Mutex<Balance>,
    timeout: Duration,
    epoch: Instant,
    availability: AtomicU8,
}

/// Whether there is anybody to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Availability {
    /// Yes; whether they answer is another question.
    Available,
    /// The embedded runtime is being started.
    Starting,
    /// There is no model to start it with.
    Unconfigured,
}

/// What is to be said about one member.
#[derive(Debug, Clone)]
pub struct MemberStatus {
    /// Its base URL.
    pub url: String,
    /// Whether it counts as working.
    pub working: bool,
    /// Whether a request would be sent to it: it works, or one may try whether it does again.
    pub askable: bool,
    /// Requests under way.
    pub outstanding: usize,
    /// The name of its model, if it said one.
    pub model: Option<String>,
}

/// Why there is no completion.
#[derive(Debug, thiserror::Error)]
pub enum InferenceError {
    /// The prompt does not fit the model's context.
    #[error("the prompt does not fit the model's context")]
    PromptTooLong(ContextOverflow),
    /// No member has room now; nothing was done.
    #[error("no runtime has room")]
    NoRoom,
    /// No member gave a proper answer; the last one's failure.
    #[error("{member}: {failure}")]
    Failed {
        /// The member that failed last.
        member: String,
        /// How.
        failure: Failure,
    },
}

impl Pool {
    /// A pool of at least one member.
    pub fn new(settings: PoolSettings) -> Arc<Self> {
        Arc::new(Self {
            balance: Mutex::new(Balance::new(settings.urls.iter().map(RuntimeUrl::to_string))),
            members: settings.urls.into_iter().map(Member::new).collect(),
            timeout: settings.timeout,
            epoch: Instant::now(),
            availability: AtomicU8::new(Availability::Available as u8),
        })
    }

    /// Whether there is anybody to ask.
    pub fn availability(&self) -> Availability {
        match self.availability.load(Ordering::Relaxed) {
            available if available == Availability::Available as u8 => Availability::Available,
            starting if starting == Availability::Starting as u8 => Availability::Starting,
            _ => Availability::Unconfigured,
        }
    }

    pub(crate) fn set_availability(&self, availability: Availability) {
        self.availability.store(availability as u8, Ordering::Relaxed);
    }

    /// All members have shown that they complete requests: from now on they get as many as come.
    pub(crate) fn open(&self) {
        let mut balance = self.balance();
        (0..self.members.len()).for_each(|at| balance.proven(at));
        drop(balance);
        self.set_availability(Availability::Available);
    }

    /// Looks at every member once; `Err` says what is wrong with it.
    pub async fn check(self: &Arc<Self>) -> Vec<(String, Result<(), Failure>)> {
        let checks = (0..self.members.len()).map(|at| {
            let pool = self.clone();
            tokio::spawn(async move { pool.check_member(at, &Idle::default()).await })
        });
        let mut results = Vec::new();
        for (check, member) in checks.collect::<Vec<_>>().into_iter().zip(&self.members) {
            results.push((member.url.to_string(), check.await.unwrap_or(Err(Failure::TimedOut))));
        }
        results
    }

    /// Looks at every member again and again; never ends by itself.
    pub async fn watch(self: Arc<Self>) {
        let mut watchers = tokio::task::JoinSet::new();
        for at in 0..self.members.len() {
            let pool = self.clone();
            watchers.spawn(async move { pool.watch_member(at).await });
        }
        while watchers.join_next().await.is_some() {}
    }

    /// How every member is.
    pub fn status(&self) -> Vec<MemberStatus> {
        let (now, balance) = (self.now(), self.balance());
        let members = self.members.iter().zip(balance.members());
        members
            .map(|(member, load)| MemberStatus {
                url: member.url.to_string(),
                working: load.is_working(),
                askable: load.is_askable(now),
                outstanding: load.outstanding(),
                model: member.model().map(|model| model.name),
            })
            .collect()
    }

    async fn watch_member(&self, at: usize) {
        let idle = Idle::default();
        loop {
            let was_working = self.is_working(at);
            tokio::time::sleep(if was_working { CHECK_EVERY } else { CHECK_BROKEN_EVERY }).await;
            let result = self.check_member(at, &idle).await;
            if let (Err(failure), true, false) = (&result, was_working, self.is_working(at)) {
                tracing::warn!(runtime = %self.members[at].url, cause = %failure, "a runtime does not answer");
            }
        }
    }

    fn is_working(&self, at: usize) -> bool {
        self.balance().members()[at].is_working()
    }

    async fn check_member(&self, at: usize, idle: &Idle) -> Result<(), Failure> {
        let result = self.members[at].check(idle).await;
        self.balance().checked(at, result.is_ok(), self.now());
        result
    }

    fn balance(&self) -> MutexGuard<'_, Balance> {
        self.balance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.epoch.elapsed().as_millis() as u64
    }
}

/// One thread's way into the pool: its own connections to every member.
pub struct Lane {
    pool: Arc<Pool>,
    idle: Vec<Idle>,
}

impl Lane {
    /// A lane into a pool.
    pub fn new(pool: Arc<Pool>) -> Self {
        let idle = pool.members.iter().map(|_| Idle::default()).collect();
        Self { pool, idle }
    }

    /// Whether there is anybody to ask.
    pub fn availability(&self) -> Availability {
        self.pool.availability()
    }

    /// Tokens that the context of every member holds, as far as they say.
    pub fn context(&self) -> Option<usize> {
        self.pool.members.iter().filter_map(|member| member.model()?.context).min()
    }

    /// Runs a completion. Dropping the future cancels it: the connection is closed, and the runtime stops.
    pub async fn complete(
        &self,
        request: &ChatRequest,
        attribution: Attribution,
    ) -> Result<Completion, InferenceError> {
        let asking = Asking {
            request,
            attribution,
            affinity: Affinity::of(request),
            deadline: tokio::time::Instant::now() + self.pool.timeout,
        };
        let (member, first) = self.ask_one(&asking, None).await;
        let (member, reply) = match first {
            Err(failure) if failure.may_be_retried() => match self.ask_one(&asking, member).await {
                // There was no other to ask: the first failure is the one to tell of.
                (_, Err(Failure::NobodyLeft)) => (member, Err(failure)),
                second => {
                    let member = self.name(member);
                    tracing::warn!(request_id = %attribution.id, %member, cause = %failure, "a runtime failed; another was asked");
                    second
                }
            },
            other => (member, other),
        };
        match reply {
            Ok(Reply::Completion(completion)) => Ok(completion),
            Ok(Reply::TooLong(overflow)) => Err(InferenceError::PromptTooLong(overflow)),
            Err(Failure::NoRoom) => Err(InferenceError::NoRoom),
            Err(failure) => Err(InferenceError::Failed { member: self.name(member), failure }),
        }
    }

    /// Asks the best member other than one that failed before, and says which it was.
    async fn ask_one(&self, asking: &Asking<'_>, failed: Option<usize>) -> (Option<usize>, Result<Reply, Failure>) {
        let Some(mut turn) = Turn::take(&self.pool, asking.affinity, failed) else {
            return (None, Err(Failure::NobodyLeft));
        };
        let at = turn.member;
        let reply = self.pool.members[at].complete(&self.idle[at], asking.request, asking.attribution);
        let reply = tokio::time::timeout_at(asking.deadline, reply).await.unwrap_or(Err(Failure::TimedOut));
        turn.verdict = reply.as_ref().map_or_else(Failure::verdict, |_| Verdict::Good);
        (Some(at), reply)
    }

    fn name(&self, member: Option<usize>) -> String {
        member.map_or_else(|| "the pool".into(), |at| self.pool.members[at].url.to_string())
    }
}

/// One request's way through the pool.
struct Asking<'a> {
    request: &'a ChatRequest,
    attribution: Attribution,
    affinity: Affinity,
    deadline: tokio::time::Instant,
}

/// A request under way at a member; counted until it is dropped, however that comes about.
struct Turn<'a> {
    pool: &'a Pool,
    member: usize,
    verdict: Verdict,
}

impl<'a> Turn<'a> {
    fn take(pool: &'a Pool, affinity: Affinity, excluded: Option<usize>) -> Option<Self> {
        let member = pool.balance().choose(affinity, excluded, pool.now())?;
        Some(Self { pool, member, verdict: Verdict::Unclear })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.pool.balance().release(self.member, self.verdict, self.pool.now());
    }
}
