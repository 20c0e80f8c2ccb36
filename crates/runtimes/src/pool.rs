//! The pool: its members, and their health. Requests go through a `PoolClient`.
//!
//! Members may join and leave while requests are in flight. A new member is checked before it joins, and must complete a
//! request before it gets more. A member that leaves finishes its requests. A member's index is its slot in the balance,
//! which no other member gets while requests are in flight there.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use breaker::Verdict;
use parking_lot::{Mutex, MutexGuard, RwLock};
use tokio::task::JoinSet;

use crate::balance::{Affinity, Balance, Lease, MemberState, MoveReason, Observation, WaitingRequest};
use crate::counters::MemberCounters;
use crate::endpoints::{Endpoint, Resolver};
use crate::idle::IdleConnections;
use crate::key::RuntimeKey;
use crate::member::{Member, MemberError};
use crate::status::MemberStatus;
use crate::url::RuntimeUrl;

const HEALTH_CHECK_INTERVAL: Duration = Duration::from_secs(5);
const UNHEALTHY_CHECK_INTERVAL: Duration = Duration::from_millis(500);
const RESOLVE_INTERVAL: Duration = Duration::from_secs(5);
/// Counters are kept for members that have left, up to this number.
const MAX_MEMBER_COUNTERS: usize = 4_096;

#[derive(Debug, Clone)]
pub struct PoolSettings {
    pub urls: Vec<RuntimeUrl>,
    /// For members that have no key in their URL.
    pub key: Option<RuntimeKey>,
    /// For a completion, including a retry.
    pub timeout: Duration,
    /// Whether control tokens in messages are broken for runtimes that are not our own engine.
    pub guard: bool,
}

/// Shared by all threads. Each thread has a separate `PoolClient`.
pub struct Pool {
    membership: Mutex<Membership>,
    /// Locked while the membership changes.
    desired: tokio::sync::Mutex<DesiredMembers>,
    /// Incremented with every change of the membership.
    version: tokio::sync::watch::Sender<u64>,
    /// In milliseconds.
    timeout: AtomicU64,
    guard: AtomicBool,
    epoch: Instant,
    availability: RwLock<Availability>,
    /// When a member was last known to decode a token, in milliseconds since `epoch`, plus one; 0 for never.
    pub(crate) last_decode: AtomicU64,
}

struct Membership {
    balance: Balance,
    /// Indexed by slot of the balance. A vacant slot still holds its last member.
    members: Vec<Arc<Member>>,
    /// By the member's name.
    counters: HashMap<String, Arc<MemberCounters>>,
}

struct DesiredMembers {
    urls: Vec<RuntimeUrl>,
    key: Option<RuntimeKey>,
    resolver: Resolver,
}

/// Whether there is a runtime at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Availability {
    /// There are members; they may be unhealthy.
    Available,
    /// The embedded runtime is starting.
    Starting,
    /// The embedded runtime is suspended or hung. It is restarted if it does not recover.
    Unresponsive,
    /// The embedded runtime cannot load its model.
    Unloadable,
    /// There is no model for the embedded runtime.
    Unconfigured,
}

impl Pool {
    /// Needs at least one URL. A name with several addresses is one member until `resolve_names` is called.
    pub fn new(settings: PoolSettings) -> Arc<Self> {
        let PoolSettings { urls, key, timeout, guard } = settings;
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
            guard: AtomicBool::new(guard),
            epoch: Instant::now(),
            availability: RwLock::new(Availability::Available),
            last_decode: AtomicU64::new(0),
        })
    }

    pub fn availability(&self) -> Availability {
        *self.availability.read()
    }

    /// Whether control tokens in messages to this member must be broken.
    pub(crate) fn guards(&self, member: &Member) -> bool {
        self.guard.load(Ordering::Relaxed) && !member.is_engine()
    }

    pub(crate) fn set_availability(&self, availability: Availability) {
        *self.availability.write() = availability;
    }

    /// Marks all members as known to complete requests.
    pub(crate) fn mark_ready(&self) {
        let mut membership = self.membership();
        (0..membership.members.len()).for_each(|index| membership.balance.mark_healthy(index));
        drop(membership);
        self.set_availability(Availability::Available);
    }

    /// Members that stay keep their state and connections. Returns once new members have been checked and have joined.
    pub async fn reconfigure(&self, settings: PoolSettings) {
        let mut desired = self.desired.lock().await;
        desired.urls = settings.urls;
        desired.key = settings.key;
        self.timeout.store(millis(settings.timeout), Ordering::Relaxed);
        self.guard.store(settings.guard, Ordering::Relaxed);
        self.reconcile(&mut desired).await;
    }

    /// Resolves the host names in the URLs; members join or leave if addresses have changed.
    pub async fn resolve_names(&self) {
        self.reconcile(&mut *self.desired.lock().await).await;
    }

    /// Checks the health of every member once.
    pub async fn check(self: &Arc<Self>) -> Vec<(String, Result<(), MemberError>)> {
        let checks = self.active_members().into_iter().map(|(index, member)| {
            let pool = self.clone();
            let name = member.name().to_owned();
            (name, tokio::spawn(async move { pool.check_member(index, &member, &IdleConnections::default()).await }))
        });
        let mut results = Vec::new();
        for (name, check) in checks.collect::<Vec<_>>() {
            results.push((name, check.await.unwrap_or(Err(MemberError::TimedOut))));
        }
        results
    }

    /// Checks members and resolves names periodically. Never returns.
    pub async fn watch(self: Arc<Self>) {
        let mut version = self.version.subscribe();
        let mut watchers = JoinSet::new();
        let pool = self.clone();
        watchers.spawn(async move { pool.watch_names().await });
        let mut watched: Vec<Arc<Member>> = Vec::new();
        loop {
            watched.retain(|member| !member.has_left());
            for (index, member) in self.active_members() {
                if !watched.iter().any(|known| Arc::ptr_eq(known, &member)) {
                    watched.push(member.clone());
                    let pool = self.clone();
                    watchers.spawn(async move { pool.watch_member(index, &member).await });
                }
            }
            tokio::select! {
                _ = version.changed() => {}
                _ = watchers.join_next() => {}
            }
        }
    }

    pub fn status(&self) -> Vec<MemberStatus> {
        let now = self.now();
        let membership = self.membership();
        let active =
            membership.members.iter().zip(membership.balance.members()).filter(|(_, state)| !state.is_vacant());
        active.map(|(member, state)| MemberStatus::from_member(member, state, now)).collect()
    }

    /// Requests in flight at all members.
    pub(crate) fn in_flight(&self) -> usize {
        self.membership().balance.members().iter().map(MemberState::in_flight).sum()
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout.load(Ordering::Relaxed))
    }

    /// The smallest context of all members that report one, in tokens.
    pub(crate) fn context(&self) -> Option<usize> {
        let membership = self.membership();
        membership.members.iter().filter(|member| !member.has_left()).filter_map(|member| member.model()?.context).min()
    }

    /// The largest context of all members, in tokens, if each reports one.
    pub(crate) fn largest_context(&self) -> Option<usize> {
        let membership = self.membership();
        let mut members = membership.members.iter().filter(|member| !member.has_left());
        members
            .try_fold(0, |largest, member| Some(largest.max(member.model()?.context?)))
            .filter(|largest| *largest > 0)
    }

    pub(crate) fn choose(&self, affinity: Affinity, excluded: &[usize]) -> Option<(Lease, Arc<Member>)> {
        let now = self.now();
        let mut membership = self.membership();
        let lease = membership.balance.choose(affinity, excluded, now)?;
        let member = membership.members[lease.member()].clone();
        Some((lease, member))
    }

    /// A lease on another member, if the request should no longer wait at its member.
    pub(crate) fn move_elsewhere(&self, request: WaitingRequest<'_>) -> Option<(Lease, Arc<Member>, MoveReason)> {
        let now = self.now();
        let mut membership = self.membership();
        let (lease, reason) = membership.balance.move_elsewhere(request, now)?;
        let member = membership.members[lease.member()].clone();
        Some((lease, member, reason))
    }

    pub(crate) fn release(&self, lease: Lease, observation: Observation) {
        let now = self.now();
        self.membership().balance.release(lease, observation, now);
    }

    /// Records what another member's response has shown about this one.
    pub(crate) fn judge(&self, index: usize, member: &Arc<Member>, verdict: Verdict) {
        let now = self.now();
        let mut membership = self.membership();
        // Another member may have got the slot meanwhile.
        if Arc::ptr_eq(&membership.members[index], member) {
            membership.balance.judge(index, verdict, now);
        }
    }

    /// Records that these members failed at the same request.
    pub(crate) fn doubt(&self, members: [usize; 2]) {
        let now = self.now();
        let mut membership = self.membership();
        members.into_iter().for_each(|index| membership.balance.doubt(index, now));
    }

    /// Adds and removes members until they are the desired ones.
    async fn reconcile(&self, desired: &mut DesiredMembers) {
        desired.resolver.resolve(&desired.urls).await;
        let desired_endpoints = desired.endpoints();
        let new_members = self.membership().new_members(&desired_endpoints, desired.key.as_ref());
        let mut checks = JoinSet::new();
        for member in new_members {
            checks.spawn(async move {
                let healthy = member.check(&IdleConnections::default()).await.is_ok();
                (member, healthy)
            });
        }
        let new_members = checks.join_all().await;
        if self.membership().apply(&desired_endpoints, new_members, desired.key.as_ref()) {
            self.version.send_modify(|count| *count += 1);
        }
    }

    async fn watch_names(&self) {
        loop {
            tokio::time::sleep(RESOLVE_INTERVAL).await;
            let mut desired = self.desired.lock().await;
            if desired.urls.iter().any(|url| url.host_name().is_some()) {
                self.reconcile(&mut desired).await;
            }
        }
    }

    async fn watch_member(&self, index: usize, member: &Arc<Member>) {
        let idle = IdleConnections::default();
        let mut passed = true;
        while !member.has_left() {
            let was_healthy = self.is_healthy(index);
            let is_well = passed && was_healthy;
            tokio::time::sleep(if is_well { HEALTH_CHECK_INTERVAL } else { UNHEALTHY_CHECK_INTERVAL }).await;
            let result = self.check_member(index, member, &idle).await;
            passed = result.is_ok();
            if let (Err(error), true, false) = (&result, was_healthy, self.is_healthy(index)) {
                tracing::warn!(runtime = member.name(), cause = %error, "a runtime does not respond");
            }
        }
    }

    fn is_healthy(&self, index: usize) -> bool {
        self.membership().balance.members()[index].is_healthy()
    }

    async fn check_member(
        &self,
        index: usize,
        member: &Arc<Member>,
        idle: &IdleConnections,
    ) -> Result<(), MemberError> {
        let result = member.check(idle).await;
        if result.is_ok() && member.is_engine() {
            self.record_decode();
        }
        let now = self.now();
        let mut membership = self.membership();
        // Another member may have got the slot meanwhile.
        if Arc::ptr_eq(&membership.members[index], member) {
            membership.balance.record_health_check(index, result.is_ok(), now);
        }
        result
    }

    /// Members that have not left, with their indexes.
    pub(crate) fn active_members(&self) -> Vec<(usize, Arc<Member>)> {
        let membership = self.membership();
        membership.members.iter().cloned().enumerate().filter(|(_, member)| !member.has_left()).collect()
    }

    /// The members that may get requests, the least loaded first.
    pub(crate) fn available(&self) -> Vec<Arc<Member>> {
        let now = self.now();
        let membership = self.membership();
        let states = membership.members.iter().zip(membership.balance.members());
        let mut available: Vec<_> = states
            .filter(|(member, state)| !member.has_left() && state.is_available(now))
            .map(|(member, state)| (state.in_flight(), member.clone()))
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
    /// Creates the desired members that are missing. They have not joined yet.
    fn new_members(&mut self, desired_endpoints: &[Endpoint], key: Option<&RuntimeKey>) -> Vec<Arc<Member>> {
        let present: HashSet<_> = self.members.iter().filter(|member| !member.has_left()).map(|m| m.name()).collect();
        let missing: Vec<_> =
            desired_endpoints.iter().filter(|endpoint| !present.contains(&*endpoint.to_string())).cloned().collect();
        drop(present);
        if self.counters.len() + missing.len() > MAX_MEMBER_COUNTERS {
            let members = &self.members;
            self.counters.retain(|name, _| members.iter().any(|member| member.name() == name));
        }
        missing.into_iter().map(|endpoint| new_member(endpoint, key, &mut self.counters)).collect()
    }

    /// Removes members that are not desired and adds new ones. Returns whether anything changed.
    fn apply(
        &mut self,
        desired_endpoints: &[Endpoint],
        new_members: Vec<(Arc<Member>, bool)>,
        key: Option<&RuntimeKey>,
    ) -> bool {
        let mut changed = !new_members.is_empty();
        let desired_endpoints: HashMap<String, &Endpoint> =
            desired_endpoints.iter().map(|endpoint| (endpoint.to_string(), endpoint)).collect();
        for (index, member) in self.members.iter().enumerate().filter(|(_, member)| !member.has_left()) {
            match desired_endpoints.get(member.name()) {
                Some(endpoint) => member.set_key(endpoint.url.key().or(key)),
                None => {
                    member.leave();
                    self.balance.retire(index);
                    changed = true;
                    tracing::info!(runtime = member.name(), "a runtime leaves the pool");
                }
            }
        }
        for (member, healthy) in new_members {
            tracing::info!(runtime = member.name(), healthy, "a runtime joins the pool");
            match self.balance.add(member.name(), healthy) {
                index if index == self.members.len() => self.members.push(member),
                index => self.members[index] = member,
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
