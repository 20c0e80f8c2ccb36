//! Shares requests per minute and in flight out to replicas. One task of each replica asks for all of its requests, in one
//! transaction that locks the rows of the scopes in question: what one takes, the next one sees. It takes more than one
//! request needs where a limit is high, and gives back what was not needed for a while.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use chat::Timestamp;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_postgres::Statement;

use super::server::{Server, Session};
use super::{count, signed};
use crate::StoreError;
use crate::clock::StoreClock;
use crate::quota::{Ask, Grant, Hold, QuotaLimits, RateWindow, Replica, SharedQuota};
use crate::quotas::{QuotaQuestion, ScopeQuota};

const MAX_QUESTIONS: usize = 1_024;
/// How often it looks for what can be given back.
const RENEWAL_INTERVAL: Duration = Duration::from_millis(50);

pub(super) struct QuotaTask {
    server: Server,
    clock: Arc<StoreClock>,
    replica: Replica,
    connection: Option<QuotaConnection>,
    /// Of which this replica holds something.
    held: HashMap<String, Held>,
}

struct Held {
    quota: Arc<ScopeQuota>,
    limits: QuotaLimits,
    renewed_at: Timestamp,
}

/// What to ask for one scope, and who waits for it.
struct Errand {
    quota: Arc<ScopeQuota>,
    limits: QuotaLimits,
    ask: Ask,
    replies: Vec<oneshot::Sender<Result<Grant, StoreError>>>,
}

impl QuotaTask {
    pub(super) fn new(server: Server, clock: Arc<StoreClock>) -> Self {
        let replica = signed(getrandom::u64().unwrap_or_else(|_| clock.now_micros()) >> 1);
        Self { server, clock, replica, connection: None, held: HashMap::new() }
    }

    pub(super) async fn run(mut self, mut questions: UnboundedReceiver<QuotaQuestion>) {
        let mut received = Vec::new();
        let mut ticks = interval(RENEWAL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let errands = tokio::select! {
                count = questions.recv_many(&mut received, MAX_QUESTIONS) => match count {
                    0 => return,
                    _ => errands(received.drain(..), self.clock.now()),
                },
                _ = ticks.tick(), if !self.held.is_empty() => self.renewals(),
            };
            if !errands.is_empty() {
                self.run_errands(errands).await;
            }
        }
    }

    fn renewals(&mut self) -> BTreeMap<String, Errand> {
        let now = self.clock.now();
        self.held.retain(|_, held| !held.quota.local.lock().is_idle());
        let renew = |(scope, held): (&String, &Held)| {
            let ask = held.quota.local.lock().renew(now, held.renewed_at, RENEWAL_INTERVAL)?;
            let errand = Errand { quota: held.quota.clone(), limits: held.limits, ask, replies: Vec::new() };
            Some((scope.clone(), errand))
        };
        self.held.iter().filter_map(renew).collect()
    }

    async fn run_errands(&mut self, errands: BTreeMap<String, Errand>) {
        let limit = self.server.timeout();
        let granted = timeout(limit, self.transact(&errands)).await.unwrap_or(Err(StoreError::TimedOut));
        let now = self.clock.now();
        if let Err(error) = &granted {
            self.connection = None; // the server rolls back
            tracing::warn!(cause = %error, "limits could not be shared with other replicas");
        }
        for (at, (scope, errand)) in errands.into_iter().enumerate() {
            let grant = granted.as_ref().map(|grants| grants[at]).map_err(|error| error.to_string());
            if let Ok(grant) = &grant {
                errand.quota.local.lock().receive(now, grant);
                if errand.limits.in_flight.is_some() {
                    self.held.insert(scope, Held { quota: errand.quota, limits: errand.limits, renewed_at: now });
                }
            }
            for reply in errand.replies {
                let _ = reply.send(grant.clone().map_err(StoreError::Unreachable)); // it may have gone
            }
        }
    }

    /// What was granted to each, in their order.
    async fn transact(&mut self, errands: &BTreeMap<String, Errand>) -> Result<Vec<Grant>, StoreError> {
        let connection = match self.connection.take().filter(|connection| !connection.session.is_closed()) {
            Some(connection) => connection,
            None => QuotaConnection::open(&self.server).await?,
        };
        let QuotaConnection { session, create, lock, holds, store, store_holds, drop_holds } =
            self.connection.insert(connection);
        let scopes: Vec<&str> = errands.keys().map(String::as_str).collect();
        session.batch_execute("BEGIN").await?;
        let mut locked = session.query(&*lock, &[&scopes]).await?;
        if locked.len() < scopes.len() {
            session.execute(&*create, &[&scopes]).await?;
            locked = session.query(&*lock, &[&scopes]).await?;
        }
        let held = session.query(&*holds, &[&scopes]).await?; // after the lock, so it sees what the last one took
        let mut shared: HashMap<&str, SharedQuota> = HashMap::new();
        for row in &locked {
            let window = RateWindow { minute: count(row, 1)?, started: count(row, 2)?, started_before: count(row, 3)? };
            shared.insert(row.try_get(0)?, SharedQuota { window, ..SharedQuota::default() });
        }
        for row in &held {
            let hold = Hold { count: count(row, 2)?, until: Timestamp::from_millis(count(row, 3)?) };
            if let Some(shared) = shared.get_mut(row.try_get::<_, &str>(0)?) {
                shared.holds.insert(row.try_get(1)?, hold);
            }
        }
        let now = self.clock.now();
        let mut grants = Vec::new();
        let mut windows: [Vec<i64>; 3] = Default::default();
        let (mut holding, mut counts, mut expiries) = (Vec::new(), Vec::new(), Vec::new());
        for (scope, errand) in errands {
            let shared = shared.get_mut(scope.as_str()).ok_or(StoreError::Corrupt("quota"))?;
            grants.push(shared.grant(now, errand.limits, self.replica, errand.ask));
            let RateWindow { minute, started, started_before } = shared.window;
            let columns = windows.iter_mut().zip([minute, started, started_before]);
            columns.for_each(|(column, value)| column.push(signed(value)));
            if let Some(hold) = shared.holds.get(&self.replica) {
                holding.push(scope.as_str());
                counts.push(signed(hold.count));
                expiries.push(signed(hold.until.as_millis()));
            }
        }
        let [minutes, started, before] = &windows;
        session.execute(&*store, &[&scopes, minutes, started, before]).await?;
        if errands.values().any(|errand| errand.limits.in_flight.is_some()) {
            session.execute(&*drop_holds, &[&scopes, &self.replica, &signed(now.as_millis())]).await?;
            session.execute(&*store_holds, &[&holding, &self.replica, &counts, &expiries]).await?;
        }
        session.batch_execute("COMMIT").await?;
        Ok(grants)
    }
}

/// Sorted, so that replicas lock scopes in the same order.
fn errands(questions: impl Iterator<Item = QuotaQuestion>, now: Timestamp) -> BTreeMap<String, Errand> {
    let mut errands: BTreeMap<String, Errand> = BTreeMap::new();
    for QuotaQuestion { quota, limits, reply } in questions.filter(|question| !question.reply.is_closed()) {
        let new = || Errand { quota: quota.clone(), limits, ask: Ask::default(), replies: Vec::new() };
        errands.entry(quota.scope.to_string()).or_insert_with(new).replies.push(reply);
    }
    for errand in errands.values_mut() {
        errand.ask = errand.quota.local.lock().ask(now, errand.limits, errand.replies.len() as u64);
    }
    errands
}

struct QuotaConnection {
    session: Session,
    create: Statement,
    lock: Statement,
    holds: Statement,
    store: Statement,
    store_holds: Statement,
    drop_holds: Statement,
}

impl QuotaConnection {
    async fn open(server: &Server) -> Result<Self, StoreError> {
        let session = server.connect().await?;
        let (create, lock, holds, store, store_holds, drop_holds) = tokio::try_join!(
            session.prepare(CREATE),
            session.prepare(LOCK),
            session.prepare(HOLDS),
            session.prepare(STORE),
            session.prepare(STORE_HOLDS),
            session.prepare(DROP_HOLDS),
        )?;
        Ok(Self { session, create, lock, holds, store, store_holds, drop_holds })
    }
}

const CREATE: &str = "INSERT INTO quotas SELECT scope, 0, 0, 0 FROM unnest($1::text[]) AS new (scope)
    WHERE scope NOT IN (SELECT scope FROM quotas) ORDER BY scope COLLATE \"C\" ON CONFLICT DO NOTHING";
const LOCK: &str = "SELECT scope, minute, started, started_before FROM quotas WHERE scope = ANY($1)
    ORDER BY scope FOR UPDATE";
const HOLDS: &str = "SELECT scope, replica, count, expires_at FROM quota_holds WHERE scope = ANY($1)";
const STORE: &str = "UPDATE quotas SET minute = new.minute, started = new.started, started_before = new.started_before
    FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[]) AS new (scope, minute, started, started_before)
    WHERE quotas.scope = new.scope";
const STORE_HOLDS: &str = "INSERT INTO quota_holds (scope, replica, count, expires_at)
    SELECT scope, $2, count, expires_at FROM unnest($1::text[], $3::bigint[], $4::bigint[]) AS new (scope, count, expires_at)
    ON CONFLICT (scope, replica) DO UPDATE SET count = excluded.count, expires_at = excluded.expires_at";
const DROP_HOLDS: &str = "DELETE FROM quota_holds WHERE scope = ANY($1) AND (replica = $2 OR expires_at <= $3)";
