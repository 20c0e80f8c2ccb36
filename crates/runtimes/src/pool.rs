//! The pool itself: who belongs to it, and how everyone is. `lane` asks them.
//!
//! Members may come and go while requests are under way. A newcomer is looked at before it takes its place and has to complete
//! a request before it gets many; one that leaves finishes what it has. The place of a member is its number in the balance,
//! and nobody else gets that while anything is under way there.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::balance::{Affinity, Balance, Ending, Turn};
use crate::key::RuntimeKey;
use crate::member::{Failure, Idle, Member};
use crate::names::{Names, Spot};
use crate::status::MemberStatus;
use crate::tally::Tally;
use crate::url::RuntimeUrl;

/// How often a working member is looked at, and how often a broken one.
const CHECK_EVERY: Duration = Duration::from_secs(5);
const CHECK_BROKEN_EVERY: Duration = Duration::from_millis(500);
/// How often names are looked up.
const LOOK_UP_EVERY: Duration = Duration::from_secs(5);
/// Members whose counters are kept, the departed included.
const MOST_TALLIES: usize = 4_096;

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

/// All runtimes. Shared by every thread; each thread asks through a `Lane` of its own.
pub struct Pool {
    seats: Mutex<Seats>,
    /// Held by whoever changes the membership.
    plan: tokio::sync::Mutex<Plan>,
    /// Counts the changes of the membership.
    membership: tokio::sync::watch::Sender<u64>,
    timeout: AtomicU64,
    epoch: Instant,
    availability: AtomicU8,
    /// When a member was last seen to decode, in milliseconds since `epoch`, plus one; 0 for never.
    pub(crate) decoded: AtomicU64,
}

/// Who sits where.
struct Seats {
    balance: Balance,
    /// By their places in the balance. Where a place is vacant, the one who had it.
    members: Vec<Arc<Member>>,
    tallies: HashMap<String, Arc<Tally>>,
}

/// Who is to belong to the pool.
struct Plan {
    urls: Vec<RuntimeUrl>,
    key: Option<RuntimeKey>,
    names: Names,
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
    /// A pool of at least one member. Names with several addresses are looked up by `look_up_names`.
    pub fn new(settings: PoolSettings) -> Arc<Self> {
        let PoolSettings { urls, key, timeout } = settings;
        let plan = Plan { urls, key, names: Names::default() };
        let mut tallies = HashMap::new();
        let members: Vec<_> =
            plan.spots().into_iter().map(|spot| new_member(spot, plan.key.as_ref(), &mut tallies)).collect();
        let balance = Balance::new(members.iter().map(|member| member.name()));
        Arc::new(Self {
            seats: Mutex::new(Seats { balance, members, tallies }),
            plan: tokio::sync::Mutex::new(plan),
            membership: tokio::sync::watch::Sender::new(0),
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
        let mut seats = self.seats();
        (0..seats.members.len()).for_each(|at| seats.balance.proven(at));
        drop(seats);
        self.set_availability(Availability::Available);
    }

    /// Other members, another key, another timeout. Who stays keeps its state and connections. Returns when the newcomers have
    /// been looked at and everyone is in place.
    pub async fn reconfigure(&self, settings: PoolSettings) {
        let mut plan = self.plan.lock().await;
        plan.urls = settings.urls;
        plan.key = settings.key;
        self.timeout.store(millis(settings.timeout), Ordering::Relaxed);
        self.seat(&mut plan).await;
    }

    /// Looks up the names in the URLs; if one has other addresses than before, members come and go.
    pub async fn look_up_names(&self) {
        self.seat(&mut *self.plan.lock().await).await;
    }

    /// Looks at every member once; `Err` says what is wrong with it.
    pub async fn check(self: &Arc<Self>) -> Vec<(String, Result<(), Failure>)> {
        let checks = self.present().into_iter().map(|(at, member)| {
            let pool = self.clone();
            let name = member.name().to_owned();
            (name, tokio::spawn(async move { pool.check_member(at, &member, &Idle::default()).await }))
        });
        let mut results = Vec::new();
        for (name, check) in checks.collect::<Vec<_>>() {
            results.push((name, check.await.unwrap_or(Err(Failure::TimedOut))));
        }
        results
    }

    /// Looks at every member and looks up every name again and again; never ends by itself.
    pub async fn watch(self: Arc<Self>) {
        let mut membership = self.membership.subscribe();
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
                _ = membership.changed() => {}
                _ = watchers.join_next() => {}
            }
        }
    }

    /// How every member is.
    pub fn status(&self) -> Vec<MemberStatus> {
        let now = self.now();
        let seats = self.seats();
        let seated = seats.members.iter().zip(seats.balance.members()).filter(|(_, load)| !load.is_vacant());
        seated.map(|(member, load)| MemberStatus::of(member, load, now)).collect()
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout.load(Ordering::Relaxed))
    }

    /// Counts the changes of the membership.
    pub(crate) fn membership(&self) -> u64 {
        *self.membership.borrow()
    }

    /// The names of those that belong to the pool.
    pub(crate) fn names(&self) -> HashSet<String> {
        self.present().into_iter().map(|(_, member)| member.name().to_owned()).collect()
    }

    /// Tokens that the context of every member holds, as far as they say.
    pub(crate) fn context(&self) -> Option<usize> {
        let seats = self.seats();
        seats.members.iter().filter(|member| !member.has_left()).filter_map(|member| member.model()?.context).min()
    }

    pub(crate) fn choose(&self, affinity: Affinity, excluded: Option<usize>) -> Option<(Turn, Arc<Member>)> {
        let now = self.now();
        let mut seats = self.seats();
        let turn = seats.balance.choose(affinity, excluded, now)?;
        let member = seats.members[turn.member()].clone();
        Some((turn, member))
    }

    pub(crate) fn release(&self, turn: Turn, ending: Ending) {
        let now = self.now();
        self.seats().balance.release(turn, ending, now);
    }

    /// Makes the membership what the plan says.
    async fn seat(&self, plan: &mut Plan) {
        plan.names.look_up(&plan.urls).await;
        let wanted = plan.spots();
        let newcomers = self.seats().newcomers(&wanted, plan.key.as_ref());
        let mut looks = JoinSet::new();
        for member in newcomers {
            looks.spawn(async move {
                let alive = member.check(&Idle::default()).await.is_ok();
                (member, alive)
            });
        }
        let newcomers = looks.join_all().await;
        if self.seats().change(&wanted, newcomers, plan.key.as_ref()) {
            self.membership.send_modify(|count| *count += 1);
        }
    }

    async fn follow_names(&self) {
        loop {
            tokio::time::sleep(LOOK_UP_EVERY).await;
            let mut plan = self.plan.lock().await;
            if plan.urls.iter().any(|url| url.host_name().is_some()) {
                self.seat(&mut plan).await;
            }
        }
    }

    async fn watch_member(&self, at: usize, member: &Arc<Member>) {
        let idle = Idle::default();
        while !member.has_left() {
            let was_working = self.is_working(at);
            tokio::time::sleep(if was_working { CHECK_EVERY } else { CHECK_BROKEN_EVERY }).await;
            let result = self.check_member(at, member, &idle).await;
            if let (Err(failure), true, false) = (&result, was_working, self.is_working(at)) {
                tracing::warn!(runtime = member.name(), cause = %failure, "a runtime does not answer");
            }
        }
    }

    fn is_working(&self, at: usize) -> bool {
        self.seats().balance.members()[at].is_working()
    }

    async fn check_member(&self, at: usize, member: &Arc<Member>, idle: &Idle) -> Result<(), Failure> {
        let result = member.check(idle).await;
        if result.is_ok() && member.is_ours() {
            self.decoded();
        }
        let now = self.now();
        let mut seats = self.seats();
        // Its place may have become somebody else's meanwhile.
        if Arc::ptr_eq(&seats.members[at], member) {
            seats.balance.checked(at, result.is_ok(), now);
        }
        result
    }

    /// Those that belong to the pool, with their places.
    pub(crate) fn present(&self) -> Vec<(usize, Arc<Member>)> {
        let seats = self.seats();
        seats.members.iter().cloned().enumerate().filter(|(_, member)| !member.has_left()).collect()
    }

    /// Those to whom a request would be sent, the least busy first.
    pub(crate) fn askable(&self) -> Vec<Arc<Member>> {
        let now = self.now();
        let seats = self.seats();
        let loads = seats.members.iter().zip(seats.balance.members());
        let mut askable: Vec<_> = loads
            .filter(|(member, load)| !member.has_left() && load.is_askable(now))
            .map(|(member, load)| (load.outstanding(), member.clone()))
            .collect();
        askable.sort_by_key(|(outstanding, _)| *outstanding);
        askable.into_iter().map(|(_, member)| member).collect()
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> u64 {
        millis(self.epoch.elapsed())
    }
}

impl Plan {
    fn spots(&self) -> Vec<Spot> {
        self.names.spots(&self.urls)
    }
}

impl Seats {
    /// Members for those wanted that are not there yet.
    fn newcomers(&mut self, wanted: &[Spot], key: Option<&RuntimeKey>) -> Vec<Arc<Member>> {
        let present: HashSet<_> = self.members.iter().filter(|member| !member.has_left()).map(|m| m.name()).collect();
        let missing: Vec<_> = wanted.iter().filter(|spot| !present.contains(&*spot.to_string())).cloned().collect();
        drop(present);
        if self.tallies.len() + missing.len() > MOST_TALLIES {
            let members = &self.members;
            self.tallies.retain(|name, _| members.iter().any(|member| member.name() == name));
        }
        missing.into_iter().map(|spot| new_member(spot, key, &mut self.tallies)).collect()
    }

    /// Lets those go that are not wanted, and the newcomers in; says whether anything changed.
    fn change(&mut self, wanted: &[Spot], newcomers: Vec<(Arc<Member>, bool)>, key: Option<&RuntimeKey>) -> bool {
        let mut changed = !newcomers.is_empty();
        let wanted: HashMap<String, &Spot> = wanted.iter().map(|spot| (spot.to_string(), spot)).collect();
        for (at, member) in self.members.iter().enumerate().filter(|(_, member)| !member.has_left()) {
            match wanted.get(member.name()) {
                Some(spot) => member.set_key(spot.url.key().or(key)),
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

fn new_member(spot: Spot, key: Option<&RuntimeKey>, tallies: &mut HashMap<String, Arc<Tally>>) -> Arc<Member> {
    let tally = tallies.entry(spot.to_string()).or_default().clone();
    Arc::new(Member::new(spot, key, tally))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
