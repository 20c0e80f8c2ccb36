//! PostgreSQL's part of limits. One task per replica reserves for all of the replica's requests, in a transaction that
//! locks the rows of their limits: each replica sees the reservations of all others. The statement that commits a
//! request's row counts its spending and ends its reservation.
//!
//! Reservations are in unlogged tables: after a crash of the server or a failover, replicas store theirs again when they
//! reconnect. Reservations of a stopped replica expire.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use chat::{RequestId, Timestamp};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};
use uuid::Uuid;

use crate::StoreError;
use crate::database::clock::StoreClock;
use crate::database::postgres::server::{Server, Session};
use crate::database::postgres::{signed, typed};
use crate::database::sql::{self, params};
use crate::limits::permit::{Keeper, Permit, Question, Release, Reserve, ReserveError};
use crate::limits::rate::Rate;
use crate::limits::spending::{Spending, SpentInPeriods, period_starts};
use crate::limits::state::{Reservation, ScopeState, Share, State};
use crate::limits::table::CallerLimits;
use crate::values::{BudgetPeriod, Scope};

/// Requests decided per transaction.
const MAX_BATCH: usize = 1_024;
/// Reservations expire if their replica does not renew them for this long.
const RESERVED_FOR: Duration = Duration::from_secs(10);
const RENEWAL_INTERVAL: Duration = Duration::from_secs(3);
/// Replicas count in different slots, so that their commits do not wait for each other. Two replicas in the same slot wait
/// for each other, but still count correctly.
const SLOTS: u64 = 64;

/// The slot of a replica, for as long as it runs. Slot 0 has the spending from before there was a budget.
pub(crate) fn choose_slot() -> i64 {
    signed(1 + getrandom::u64().unwrap_or(0) % SLOTS)
}

/// The task of this replica, which ends when this is dropped.
pub(crate) struct PostgresReservations(UnboundedSender<Reserve>);

impl PostgresReservations {
    pub(super) fn start(server: &Server, clock: Arc<StoreClock>) -> Self {
        let (sender, received) = unbounded_channel();
        let task = LimitTask {
            server: server.clone(),
            clock,
            session: None,
            held: HashMap::new(),
            ended: Vec::new(),
            is_in_use: false,
        };
        drop(server.spawn(task.run(received)));
        Self(sender)
    }

    pub(super) async fn reserve(&self, reservation: Reservation, limits: CallerLimits) -> Result<Permit, ReserveError> {
        let (reply, decided) = oneshot::channel();
        let gone = || StoreError::Unreachable("the task for limits has ended".into());
        let permit = Permit::new(reservation, Keeper::Database(self.0.clone()));
        self.0.send(Reserve::Take(Question { permit, limits, reply })).map_err(|_| gone())?;
        decided.await.unwrap_or_else(|_| Err(gone().into()))
    }
}

struct LimitTask {
    server: Server,
    clock: Arc<StoreClock>,
    session: Option<Session>,
    /// Reservations of this replica.
    held: HashMap<RequestId, Held>,
    /// Ended reservations that are still in the table.
    ended: Vec<Uuid>,
    /// Whether there was a decision since the last renewal.
    is_in_use: bool,
}

struct Held {
    reservation: Reservation,
    /// Whether it was stored again, possibly after the commit that ended it.
    is_renewed: bool,
}

impl LimitTask {
    async fn run(mut self, mut received: UnboundedReceiver<Reserve>) {
        let mut batch = Vec::new();
        let mut ticks = interval(RENEWAL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                count = received.recv_many(&mut batch, MAX_BATCH) => if count == 0 { return },
                _ = ticks.tick() => self.renew().await,
            }
            let mut questions = Vec::new();
            for message in batch.drain(..) {
                match message {
                    // The caller has hung up: nothing is reserved.
                    Reserve::Take(question) if question.reply.is_closed() => {}
                    Reserve::Take(question) => questions.push(question),
                    Reserve::Release(release) => self.end(release),
                }
            }
            if !questions.is_empty() {
                self.decide(questions).await;
            }
            if !self.ended.is_empty() {
                self.delete_ended().await;
            }
        }
    }

    fn end(&mut self, Release { request, is_settled }: Release) {
        if self.held.remove(&request).is_some_and(|held| held.is_renewed || !is_settled) {
            self.ended.push(id(request));
        }
    }

    async fn decide(&mut self, questions: Vec<Question>) {
        self.is_in_use = true;
        let decided = match timeout(self.server.timeout(), self.transact(&questions)).await {
            Ok(decided) => decided,
            Err(_elapsed) => Err(StoreError::TimedOut),
        };
        if let Err(error) = &decided {
            self.session = None; // the server rolls back
            tracing::warn!(cause = %error, "limits could not be shared with other replicas");
        }
        let mut decided = decided.map(Vec::into_iter);
        for Question { permit, reply, .. } in questions {
            let reservation = *permit.reservation();
            let result = match &mut decided {
                Ok(decided) => decided.next().unwrap_or(Err(StoreError::Corrupt("decision").into())),
                Err(error) => {
                    self.ended.push(id(reservation.request)); // it may have been committed nevertheless
                    Err(StoreError::Unreachable(error.to_string()).into())
                }
            };
            if result.is_ok() {
                self.held.insert(reservation.request, Held { reservation, is_renewed: false });
            }
            let _ = reply.send(result.map(|()| permit)); // a permit that is not received is dropped, which releases it
        }
    }

    /// Decides all questions in their order, and stores the granted reservations.
    async fn transact(&mut self, questions: &[Question]) -> Result<Vec<Result<(), ReserveError>>, StoreError> {
        self.connect().await?;
        let Some(session) = &self.session else { return Err(StoreError::TimedOut) };
        let scopes: BTreeSet<Scope> =
            questions.iter().flat_map(|question| question.limits.iter().map(|(scope, _)| scope)).collect();
        let names: Vec<String> = scopes.iter().chain([&Scope::EachPerson]).map(Scope::to_string).collect();
        let starts: Vec<[Timestamp; 2]> =
            questions.iter().map(|question| period_starts(question.permit.reservation().request.timestamp())).collect();
        let times: BTreeSet<i64> = starts.iter().flatten().map(|start| signed(start.as_millis())).collect();
        let times: Vec<i64> = times.into_iter().collect();
        let now = self.clock.now();
        let millis = signed(now.as_millis());
        let (of_scopes, at): ([&Value; 1], [&Value; 1]) = ([&names], [&millis]);
        let (active, in_periods): ([&Value; 2], [&Value; 2]) = ([&names, &millis], [&names, &times]);
        // Statements are prepared before BEGIN: one that is prepared later would follow those that are sent meanwhile.
        let (lock, reserved, shares, spending, insert, set_shares) = tokio::try_join!(
            session.prepared(LOCK),
            session.prepared(RESERVED),
            session.prepared(SHARES),
            session.prepared(SPENDING),
            session.prepared(INSERT),
            session.prepared(STORE_SHARES),
        )?;
        // Pipelined; the server runs them one after the other, each with a separate snapshot. So the reads after the lock
        // see everything that its previous holder has committed. Reservations are read before spending: a row that is
        // committed between the two counts twice for a moment, and is never missed.
        let (_, _, reserved, shares, spending) = tokio::try_join!(
            biased;
            session.batch_execute("BEGIN"),
            session.execute(&lock, &of_scopes),
            session.query(&reserved, &at),
            session.query(&shares, &active),
            session.query(&spending, &in_periods),
        )?;
        let mut state = read_state(&reserved, &shares)?;
        let spending = read_spending(&spending)?;
        let mut decided = Vec::new();
        for (Question { permit, limits, .. }, [day, month]) in questions.iter().zip(starts) {
            let spent = limits.iter().map(|(scope, _)| {
                let of = |period, start| spending.get(&(scope, period, start)).copied().unwrap_or_default();
                (scope, SpentInPeriods { day: of(BudgetPeriod::Day, day), month: of(BudgetPeriod::Month, month) })
            });
            let result = state.reserve(limits, permit.reservation(), &spent.collect(), now);
            decided.push(result.map_err(ReserveError::Refused));
        }
        let granted = questions.iter().zip(&decided).filter(|(_, result)| result.is_ok());
        let granted: Vec<_> = granted.map(|(question, _)| *question.permit.reservation()).collect();
        let shares = changed_shares(&state, questions);
        tokio::try_join!(biased; store(session, &insert, &granted, now), store_shares(session, &set_shares, shares), async {
            Ok(session.batch_execute("COMMIT").await?)
        },)?;
        Ok(decided)
    }

    /// Renews all reservations of this replica, and deletes expired ones of any replica.
    async fn renew(&mut self) {
        let held: Vec<_> = self.held.values().map(|held| held.reservation).collect();
        if held.is_empty() && !std::mem::take(&mut self.is_in_use) {
            return;
        }
        self.held.values_mut().for_each(|held| held.is_renewed = true);
        let now = self.clock.now();
        let renewed = async {
            self.connect().await?;
            let Some(session) = &self.session else { return Err(StoreError::TimedOut) };
            store(session, &session.prepared(INSERT).await?, &held, now).await?;
            session.execute_typed(DELETE_LAPSED_RESERVATIONS, &typed(params![now])).await?;
            session.execute_typed(DELETE_UNUSED_SHARES, &typed(params![now])).await?;
            Ok(())
        };
        if !matches!(timeout(RESERVED_FOR, renewed).await, Ok(Ok(()))) {
            self.session = None;
        }
    }

    /// Reservations that cannot be deleted now will expire.
    async fn delete_ended(&mut self) {
        let ended = std::mem::take(&mut self.ended);
        let Some(session) = &self.session else { return };
        let delete = async { session.execute(&session.prepared(DELETE).await?, &[&ended]).await };
        if !matches!(timeout(self.server.timeout(), delete).await, Ok(Ok(_))) {
            self.session = None;
        }
    }

    /// Stores the reservations again after reconnecting, because the server may have lost them.
    async fn connect(&mut self) -> Result<(), StoreError> {
        if self.session.as_ref().is_some_and(|session| !session.is_closed()) {
            return Ok(());
        }
        let session = self.server.connect_for_prepared().await?;
        let held: Vec<_> = self.held.values().map(|held| held.reservation).collect();
        self.held.values_mut().for_each(|held| held.is_renewed = true);
        store(&session, &session.prepared(INSERT).await?, &held, self.clock.now()).await?;
        self.session = Some(session);
        Ok(())
    }
}

/// Stores reservations, or renews existing ones.
async fn store(
    session: &Session,
    insert: &Statement,
    reservations: &[Reservation],
    now: Timestamp,
) -> Result<(), StoreError> {
    if reservations.is_empty() {
        return Ok(());
    }
    let requests: Vec<Uuid> = reservations.iter().map(|reservation| id(reservation.request)).collect();
    let keys: Vec<String> = reservations.iter().map(|reservation| reservation.key.to_string()).collect();
    let owners: Vec<Option<String>> =
        reservations.iter().map(|reservation| reservation.owner.map(|owner| owner.to_string())).collect();
    let tokens: Vec<i64> = reservations.iter().map(|reservation| signed(reservation.tokens)).collect();
    let until = signed((now + RESERVED_FOR).as_millis());
    session.execute(insert, &[&requests, &keys, &owners, &tokens, &until]).await?;
    Ok(())
}

fn id(request: RequestId) -> Uuid {
    Uuid::from_bytes(request.to_bytes())
}

fn read_state(reserved: &[Row], shares: &[Row]) -> Result<State, StoreError> {
    let mut state = State::default();
    for row in reserved.iter().map(sql::Row::Postgres) {
        for scope in Scope::all_of(row.get(0)?, row.get_optional(1)?) {
            let state = state.scopes.entry(scope).or_default();
            state.requests += row.get::<u64>(2)?;
            state.tokens += row.get::<u64>(3)?;
        }
    }
    for row in shares.iter().map(sql::Row::Postgres) {
        let state = state.scopes.entry(row.get::<String>(0)?.parse()?).or_default();
        let rate = Rate::from_column(row.get(2)?);
        match row.get_optional::<String>(1)? {
            None => state.rate = rate,
            Some(party) => {
                let share = Share { rate, started_at: row.get(3)?, active_until: row.get(4)? };
                state.parties.insert(party.parse()?, share);
            }
        }
    }
    Ok(state)
}

fn read_spending(rows: &[Row]) -> Result<HashMap<(Scope, BudgetPeriod, Timestamp), Spending>, StoreError> {
    let read = |row: sql::Row<'_>| {
        let period: String = row.get(1)?;
        let period = BudgetPeriod::ALL.into_iter().find(|known| known.as_str() == period);
        let period = period.ok_or(StoreError::Corrupt("period"))?;
        let spent = Spending { requests: row.get(3)?, tokens: row.get(4)?, unmeasured: 0 };
        Ok(((row.get::<String>(0)?.parse()?, period, row.get(2)?), spent))
    };
    rows.iter().map(sql::Row::Postgres).map(read).collect()
}

/// A row of `shares`: scope, party (empty for the scope itself), rate, and the times of `Share`.
type ShareRow = (String, String, i64, i64, i64);

/// The rates and shares that these questions can have changed, in the order in which replicas lock them.
fn changed_shares(state: &State, questions: &[Question]) -> Vec<ShareRow> {
    let asked: BTreeSet<(String, Scope)> = questions
        .iter()
        .flat_map(|question| question.limits.iter())
        .filter(|(_, limits)| limits.per_minute.is_some() || limits.in_flight.is_some())
        .map(|(scope, _)| (scope.to_string(), scope))
        .collect();
    let parties: BTreeSet<Scope> =
        questions.iter().flat_map(|question| question.permit.reservation().scopes()).collect();
    let row = |scope: &str, party: String, share: &Share| {
        let times = [share.started_at, share.active_until].map(|time| signed(time.as_millis()));
        (scope.to_owned(), party, signed(share.rate.column()), times[0], times[1])
    };
    let mut rows = Vec::new();
    for (name, scope) in asked {
        let Some(ScopeState { rate, parties: shares, .. }) = state.scopes.get(&scope) else { continue };
        rows.push(row(&name, String::new(), &Share { rate: *rate, ..Share::default() }));
        let known = parties.iter().filter_map(|party| Some((party, shares.get(party)?)));
        rows.extend(known.map(|(party, share)| row(&name, party.to_string(), share)));
    }
    rows
}

async fn store_shares(session: &Session, statement: &Statement, rows: Vec<ShareRow>) -> Result<(), StoreError> {
    if !rows.is_empty() {
        let (scopes, parties, rates, started, active): (Vec<_>, Vec<_>, Vec<_>, Vec<_>, Vec<_>) =
            rows.into_iter().collect();
        session.execute(statement, &[&scopes, &parties, &rates, &started, &active]).await?;
    }
    Ok(())
}

/// A statement's parameter.
type Value = dyn ToSql + Sync;

/// In a fixed order, to avoid deadlocks between replicas.
const LOCK: &str = "SELECT 1 FROM limits WHERE scope = ANY($1) ORDER BY scope, kind FOR UPDATE";
const RESERVED: &str = "SELECT key_id, account, count(*), sum(tokens)::bigint FROM reservations
    WHERE expires_at > $1 GROUP BY key_id, account";
const SHARES: &str = "SELECT scope, nullif(party, ''), empty_at, started_at, active_until FROM shares
    WHERE scope = ANY($1) AND (active_until > $2 OR empty_at > $2 * 1000000)";
const SPENDING: &str = "SELECT scope, period, start, sum(requests)::bigint, sum(tokens)::bigint FROM spending
    WHERE scope = ANY($1) AND period IN ('day', 'month') AND start = ANY($2) GROUP BY scope, period, start";
const INSERT: &str = "INSERT INTO reservations (request, key_id, account, tokens, expires_at)
    SELECT request, key_id, account, tokens, $5
    FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[]) AS new (request, key_id, account, tokens)
    ON CONFLICT (request) DO UPDATE SET expires_at = excluded.expires_at";
const STORE_SHARES: &str = "INSERT INTO shares (scope, party, empty_at, started_at, active_until)
    SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[])
    ON CONFLICT (scope, party) DO UPDATE SET empty_at = excluded.empty_at, started_at = excluded.started_at,
        active_until = excluded.active_until";
const DELETE: &str = "DELETE FROM reservations WHERE request = ANY($1)";
/// Skips rows that another replica is writing.
const DELETE_LAPSED_RESERVATIONS: &str = "DELETE FROM reservations WHERE request IN (
    SELECT request FROM reservations WHERE expires_at <= $1 FOR UPDATE SKIP LOCKED)";
const DELETE_UNUSED_SHARES: &str = "DELETE FROM shares WHERE (scope, party) IN (
    SELECT scope, party FROM shares WHERE active_until <= $1 AND empty_at <= $1 * 1000000 FOR UPDATE SKIP LOCKED)";
