//! The pool itself: who belongs to it, and how everyone is. `client` asks them.
//!
//! Members may come and go while requests are under way. A newcomer is looked at before it takes its place and has to complete
//! a request before it gets many; one that leaves finishes what it has. The place of a member is its number in the balance,
//! and nobody else gets that while anything is under way there.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use tokio::task::JoinSet;

use crate::balance::{Affinity, Balance, Ending, Lease};
use crate::counters::MemberCounters;
use crate::endpoints::{Endpoint, Resolver};
use crate::key::RuntimeKey;
use crate::member::{Idle, Member, MemberError};
use crate::status::MemberStatus;
use crate::url::RuntimeUrl;

/// How often a working member is looked at, and how often a broken one.
const CHECK_EVERY: Duration = Duration::from_secs(5);
const CHECK_BROKEN_EVERY: Duration = Duration::from_millis(500);
/// How often names are looked up.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(5);
/// Members whose counters are kept, the departed included.
const MAX_MEMBER_COUNTERS: usize = 4_096;

/// What one may set about the pool.
#[derive(Debug, Clone)]
pub struct PoolSettings {
    /// The runtimes' base URLs.
    pub urls: Vec<RuntimeUrl>,
    /// The key for those that have none of their own.
    pub key: Option<RuntimeKey>,
    /// How long a completion may take, a retry included.
    pub timeout: Duration,
}

/// All runtimes. Shared by every thread; each thread asks through a `PoolClient` of its own.
pub struct Pool {
    membership: Mutex<Membership>,
    /// Held by whoever changes the membership.
    desired: tokio::sync::Mutex<DesiredMembers>,
    /// Counts the changes of the membership.
    version: tokio::sync::watch::Sender<u64>,
    timeout: AtomicU64,
    epoch: Instant,
    availability: AtomicU8,
    /// When a member was last seen to decode, in milliseconds since `epoch`, plus one; 0 for never.
    pub(crate) decoded: AtomicU64,
}

/// Who sits where.
struct Membership {
    balance: Balance,
    /// By their places in the balance. Where a place is vacant, the one who had it.
    members: Vec<Arc<Member>>,
    counters: HashMap<String, Arc<MemberCounters>>,
}

/// Who is to belong to the pool.
struct DesiredMembers {
    urls: Vec<RuntimeUrl>,
    key: Option<RuntimeKey>,
    resolver: Resolver,
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

impl Pool {
    /// A pool of at least one member. Names with several addresses are looked up by `resolve_names`.
    pub fn new(settings: PoolSettings) -> Arc<Self> {
        let PoolSettings { urls, key, timeout } = settings;
        let desired = DesiredMembers { urls, key, resolver: Resolver::default() };
        let mut counters = HashMap::new();
        let members: Vec<_> = desired
            .endpoints()
            .into_iter()
            .map(|endpoint| new_member(endpoint, desired.key.as_ref(), &mut counters))
            .collect();
        let balance = Balance::new(members.iter().map(|member| member.name()));
        Arc::new(Self {
            membership: Mutex::new(Membership { balance, members, counters }),
            desired: tokio::sync::Mutex::new(desired),
            version: tokio::sync::watch::Sender::new(0),
            timeout: AtomicU64::new(millis(timeout)),
            epoch: Instant::now(),
            availability: AtomicU8::new(Availability::Available as u8),
            decoded: AtomicU64::new(0),
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
        let mut membership = self.membership();
        (0..membership.members.len()).for_each(|at| membership.balance.proven(at));
        drop(membership);
        self.set_availability(Availability::Available);
    }

    /// Other members, another key, another timeout. Who stays keeps its state and connections. Returns when the newcomers have
    /// been looked at and everyone is in place.
    pub async fn reconfigure(&self, settings: PoolSettings) {
        let mut desired = self.desired.lock().await;
        desired.urls = settings.urls;
        desired.key = settings.key;
        self.timeout.store(millis(settings.timeout), Ordering::Relaxed);
        self.seat(&mut desired).await;
    }

    /// Looks up the names in the URLs; if one has other addresses than before, members come and go.
    pub async fn resolve_names(&self) {
        self.seat(&mut *self.desired.lock().await).await;
    }

    /// Looks at every member once; `Err` says what is wrong with it.
    pub async fn check(self: &Arc<Self>) -> Vec<(String, Result<(), MemberError>)> {
        let checks = self.present().into_iter().map(|(at, member)| {
            let pool = self.clone();
            let name = member.name().to_owned();
            (name, tokio::spawn(async move { pool.check_member(at, &member, &Idle::default()).await }))
        });
        let mut results = Vec::new();
        for (name, check) in checks.collect::<Vec<_>>() {
            results.push((name, check.await.unwrap_or(Err(MemberError::TimedOut))));
        }
        results
    }

    /// Looks at every member and looks up every name again and again; never ends by itself.
    pub async fn watch(self: Arc<Self>) {
        let mut version = self.version.subscribe();
        let mut watchers = JoinSet::new();
        let pool = self.clone();
        watchers.spawn(async move { pool.follow_names().await });
        let mut watched: Vec<Arc<Member>> = Vec::new();
        loop {
            watched.retain(|member| !member.has_left());
            for (at, member) in self.present() {
                if !watched.iter().any(|known| Arc::ptr_eq(known, &member)) {
                    watched.push(member.clone());
                    let pool = self.clone();
                    watchers.spawn(async move { pool.watch_member(at, &member).await });
                }
            }
            tokio::select! {
                _ = version.changed() => {}
                _ = watchers.join_next() => {}
            }
        }
    }

    /// How every member is.
    pub fn status(&self) -> Vec<MemberStatus> {
        let now = self.now();
        let membership = self.membership();
        let seated = membership.members.iter().zip(membership.balance.members()).filter(|(_, load)| !load.is_vacant());
        seated.map(|(member, load)| MemberStatus::of(member, load, now)).collect()
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout.load(Ordering::Relaxed))
    }

    /// Counts the changes of the membership.
    pub(crate) fn membership_version(&self) -> u64 {
        *self.version.borrow()
    }

    /// The names of those that belong to the pool.
    pub(crate) fn names(&self) -> HashSet<String> {
        self.present().into_iter().map(|(_, member)| member.name().to_owned()).collect()
    }

    /// Tokens that the context of every member holds, as far as they say.
    pub(crate) fn context(&self) -> Option<usize> {
        let membership = self.membership();
        membership.members.iter().filter(|member| !member.has_left()).filter_map(|member| member.model()?.context).min()
    }

    pub(crate) fn choose(&self, affinity: Affinity, excluded: Option<usize>) -> Option<(Lease, Arc<Member>)> {
        let now = self.now();
        let mut membership = self.membership();
        let lease = membership.balance.choose(affinity, excluded, now)?;
        let member = membership.members[lease.member()].clone();
        Some((lease, member))
    }

    pub(crate) fn release(&self, lease: Lease, ending: Ending) {
        let now = self.now();
        self.membership().balance.release(lease, ending, now);
    }

    /// Makes the membership what is desired.
    async fn seat(&self, desired: &mut DesiredMembers) {
        desired.resolver.resolve(&desired.urls).await;
        let wanted = desired.endpoints();
        let newcomers = self.membership().newcomers(&wanted, desired.key.as_ref());
        let mut looks = JoinSet::new();
        for member in newcomers {
            looks.spawn(async move {
                let alive = member.check(&Idle::default()).await.is_ok();
                (member, alive)
            });
        }
        let newcomers = looks.join_all().await;
        if self.membership().change(&wanted, newcomers, desired.key.as_ref()) {
            self.version.send_modify(|count| *count += 1);
        }
    }

    async fn follow_names(&self) {
        loop {
            tokio::time::sleep(RESOLVE_INTERVAL).await;
            let mut desired = self.desired.lock().await;
            if desired.urls.iter().any(|url| url.host_name().is_some()) {
                self.seat(&mut desired).await;
            }
        }
    }

    async fn watch_member(&self, at: usize, member: &Arc<Member>) {
        let idle = Idle::default();
        while !member.has_left() {
            let was_healthy = self.is_healthy(at);
            tokio::time::sleep(if was_healthy { CHECK_EVERY } else { CHECK_BROKEN_EVERY }).await;
            let result = self.check_member(at, member, &idle).await;
            if let (Err(failure), true, false) = (&result, was_healthy, self.is_healthy(at)) {
                tracing::warn!(runtime = member.name(), cause = %failure, "a runtime does not answer");
            }
        }
    }

    fn is_healthy(&self, at: usize) -> bool {
        self.membership().balance.members()[at].is_healthy()
    }

    async fn check_member(&self, at: usize, member: &Arc<Member>, idle: &Idle) -> Result<(), MemberError> {
        let result = member.check(idle).await;
        if result.is_ok() && member.is_ours() {
            self.decoded();
        }
        let now = self.now();
        let mut membership = self.membership();
        // Its place may have become somebody else's meanwhile.
        if Arc::ptr_eq(&membership.members[at], member) {
            membership.balance.checked(at, result.is_ok(), now);
        }
        result
    }

    /// Those that belong to the pool, with their places.
    pub(crate) fn present(&self) -> Vec<(usize, Arc<Member>)> {
        let membership = self.membership();
        membership.members.iter().cloned().enumerate().filter(|(_, member)| !member.has_left()).collect()
    }

    /// Those to whom a request would be sent, the least busy first.
    pub(crate) fn available(&self) -> Vec<Arc<Member>> {
        let now = self.now();
        let membership = self.membership();
        let loads = membership.members.iter().zip(membership.balance.members());
        let mut available: Vec<_> = loads
            .filter(|(member, load)| !member.has_left() && load.is_available(now))
            .map(|(member, load)| (load.in_flight(), member.clone()))
            .collect();
        available.sort_by_key(|(in_flight, _)| *in_flight);
        available.into_iter().map(|(_, member)| member).collect()
    }

    fn membership(&self) -> MutexGuard<'_, Membership> {
        self.membership.lock()
    }

    pub(crate) fn now(&self) -> u64 {
        millis(self.epoch.elapsed())
    }
}

impl DesiredMembers {
    fn endpoints(&self) -> Vec<Endpoint> {
        self.resolver.endpoints(&self.urls)
    }
}

impl Membership {
    /// Members for those wanted that are not there yet.
    fn newcomers(&mut self, wanted: &[Endpoint], key: Option<&RuntimeKey>) -> Vec<Arc<Member>> {
        let present: HashSet<_> = self.members.iter().filter(|member| !member.has_left()).map(|m| m.name()).collect();
        let missing: Vec<_> =
            wanted.iter().filter(|endpoint| !present.contains(&*endpoint.to_string())).cloned().collect();
        drop(present);
        if self.counters.len() + missing.len() > MAX_MEMBER_COUNTERS {
            let members = &self.members;
            self.counters.retain(|name, _| members.iter().any(|member| member.name() == name));
        }
        missing.into_iter().map(|endpoint| new_member(endpoint, key, &mut self.counters)).collect()
    }

    /// Lets those go that are not wanted, and the newcomers in; says whether anything changed.
    fn change(&mut self, wanted: &[Endpoint], newcomers: Vec<(Arc<Member>, bool)>, key: Option<&RuntimeKey>) -> bool {
        let mut changed = !newcomers.is_empty();
        let wanted: HashMap<String, &Endpoint> =
            wanted.iter().map(|endpoint| (endpoint.to_string(), endpoint)).collect();
        for (at, member) in self.members.iter().enumerate().filter(|(_, member)| !member.has_left()) {
            match wanted.get(member.name()) {
                Some(endpoint) => member.set_key(endpoint.url.key().or(key)),
                None => {
                    member.leave();
                    self.balance.retire(at);
                    changed = true;
                    tracing::info!(runtime = member.name(), "a runtime leaves the pool");
                }
            }
        }
        for (member, alive) in newcomers {
            tracing::info!(runtime = member.name(), alive, "a runtime joins the pool");
            match self.balance.add(member.name(), alive) {
                at if at == self.members.len() => self.members.push(member),
                at => self.members[at] = member,
            }
        }
        changed
    }
}

fn new_member(
    endpoint: Endpoint,
    key: Option<&RuntimeKey>,
    counters: &mut HashMap<String, Arc<MemberCounters>>,
) -> Arc<Member> {
    let counters = counters.entry(endpoint.to_string()).or_default().clone();
    Arc::new(Member::new(endpoint, key, counters))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
