//! Connections to the server. One thread drives all of them, so that none depends on the thread that opened it.

use std::collections::HashMap;
use std::convert::Infallible;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::StoreError;
use crate::database::postgres::{PostgresSettings, tls};

/// Limit per address of the server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The peer of a connection is considered gone if it acknowledges nothing for this long.
const TCP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a statement whose caller is gone may continue. Most end sooner, which costs less than cancelling them.
pub(crate) const ABANDONED_TIMEOUT: Duration = Duration::from_millis(100);
/// How often the server checks, during a statement, whether its client is still connected.
const CLIENT_CHECK_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(crate) struct Server {
    config: Arc<Config>,
    tls: MakeRustlsConnect,
    driver: Arc<Driver>,
    timeout: Duration,
}

/// A thread that drives connections until this is dropped.
struct Driver {
    handle: Handle,
    _until_dropped: oneshot::Sender<Infallible>,
}

impl Driver {
    fn start() -> Result<Self, StoreError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(StoreError::Thread)?;
        let handle = runtime.handle().clone();
        let (until_dropped, dropped) = oneshot::channel();
        let run = move || drop(runtime.block_on(dropped));
        std::thread::Builder::new().name("database".into()).spawn(run).map_err(StoreError::Thread)?;
        Ok(Self { handle, _until_dropped: until_dropped })
    }
}

impl Server {
    pub(crate) fn new(settings: &PostgresSettings) -> Result<Self, StoreError> {
        let mut config = Config::clone(&settings.url.config);
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        config.tcp_user_timeout(TCP_TIMEOUT).keepalives_idle(TCP_TIMEOUT);
        let tls = tls::connector(&settings.url)?;
        Ok(Self { config: Arc::new(config), tls, driver: Arc::new(Driver::start()?), timeout: settings.timeout })
    }

    /// Limit of a statement.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Connects to a server that accepts writes.
    pub(crate) async fn connect(&self) -> Result<Session, StoreError> {
        let server = self.clone();
        let connecting = self.driver.handle.spawn(async move {
            let timeout = server.timeout;
            let connected = tokio::time::timeout(timeout, async {
                let (client, connection) = server.config.connect(server.tls.clone()).await?;
                let has_warned = Arc::new(AtomicBool::new(false));
                let driven = tokio::spawn(drive(connection, has_warned.clone()));
                let open = Some((client, driven));
                let (server, prepared) = (server.clone(), Box::default());
                let session = Session { open, server, prepared, is_committing: false, has_warned };
                session.batch_execute(&session_settings(timeout)).await?;
                Ok(session)
            });
            connected.await.unwrap_or(Err(StoreError::TimedOut))
        });
        connecting.await.unwrap_or(Err(StoreError::TimedOut))
    }

    /// Connects for a few statements that are repeated. Each is planned once: planning a look-up takes four times as long
    /// as running it.
    pub(crate) async fn connect_for_prepared(&self) -> Result<Session, StoreError> {
        let session = self.connect().await?;
        let set = session.batch_execute("SET plan_cache_mode = force_generic_plan");
        tokio::time::timeout(self.timeout, set).await.map_err(|_elapsed| StoreError::TimedOut)??;
        Ok(session)
    }

    /// Runs `run` on the kept connection, after connecting if there is none. After any failure the connection is closed,
    /// and the server rolls back.
    pub(crate) async fn with<T>(
        &self,
        kept: &mut Option<Session>,
        run: impl AsyncFnOnce(&mut Session) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let limited = tokio::time::timeout(self.timeout, async {
            let session = match kept.take() {
                Some(session) if !session.is_closed() => session,
                _ => self.connect().await?,
            };
            run(kept.insert(session)).await
        });
        let result = limited.await.unwrap_or(Err(StoreError::TimedOut));
        if result.is_err() {
            *kept = None;
        }
        result
    }

    /// Runs a future on the driver's thread, to its end even if the caller is dropped.
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        let driver = self.driver.clone(); // must outlive the future
        self.driver.handle.spawn(async move {
            future.await;
            drop(driver);
        })
    }

    /// Blocks this thread, which must not serve requests.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.driver.handle.block_on(future)
    }
}

/// Drives a connection until it is closed. A warning is recorded before the result of its statement is delivered.
async fn drive<S, T>(mut connection: Connection<S, T>, has_warned: Arc<AtomicBool>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        match std::future::poll_fn(|context| connection.poll_message(context)).await {
            Some(Ok(AsyncMessage::Notice(notice))) => {
                has_warned.store(true, Ordering::Relaxed);
                tracing::debug!(warning = notice.message(), "the database sent a warning");
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                tracing::debug!(cause = super::error_chain(&error), "a database connection was closed");
                return;
            }
            None => return,
        }
    }
}

/// An open connection. When it is dropped in any state, the server soon ends its statement, rolls back and releases all
/// locks.
pub(crate) struct Session {
    /// The client, and the task that drives the connection until it is closed. `None` after `close`.
    open: Option<(Client, JoinHandle<()>)>,
    server: Server,
    /// Statements by their text.
    prepared: Box<Mutex<HashMap<String, Statement>>>,
    is_committing: bool,
    has_warned: Arc<AtomicBool>,
}

impl Session {
    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// A statement that is prepared once per connection.
    pub(crate) async fn prepared(&self, sql: &str) -> Result<Statement, tokio_postgres::Error> {
        let known = self.prepared.lock().get(sql).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement = self.prepare(sql).await?;
        self.prepared.lock().insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    /// Runs statements that end in a commit. From here on nothing is cancelled: a commit that waits for a standby would be
    /// visible without being safe. If another session cancels that wait, the server reports success with a warning, in the
    /// server's language and with the generic code of warnings. No other warning is expected here, so any counts.
    pub(crate) async fn commit<T, E>(&mut self, run: impl AsyncFnOnce(&Client) -> Result<T, E>) -> Result<T, StoreError>
    where
        StoreError: From<E>,
    {
        self.is_committing = true;
        self.has_warned.store(false, Ordering::Relaxed);
        let client: &Client = self;
        let result = run(client).await?;
        if self.has_warned.load(Ordering::Relaxed) {
            return Err(StoreError::Unconfirmed);
        }
        self.commit_ended();
        Ok(result)
    }

    /// From now on, statements may be cancelled again.
    pub(crate) fn commit_ended(&mut self) {
        self.is_committing = false;
    }

    /// Closes the connection; the returned task ends when it is closed.
    pub(crate) fn close(&mut self) -> Option<JoinHandle<()>> {
        let (client, mut driven) = self.open.take()?;
        let (cancel, tls, timeout) = (client.cancel_token(), self.server.tls.clone(), self.server.timeout);
        let is_committing = self.is_committing;
        drop(client); // the connection ends when its last statement has
        Some(self.server.spawn(async move {
            if tokio::time::timeout(ABANDONED_TIMEOUT, &mut driven).await.is_ok() {
                return;
            }
            let closed = tokio::time::timeout(timeout, async {
                if !is_committing && let Err(error) = cancel.cancel_query(tls).await {
                    tracing::debug!(cause = super::error_chain(&error), "a statement could not be cancelled");
                }
                let _ = (&mut driven).await;
            });
            if closed.await.is_err() {
                driven.abort(); // closes the socket
            }
        }))
    }
}

impl Deref for Session {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.open.as_ref().expect("a closed session is not used").0
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.open.as_mut().expect("a closed session is not used").0
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.close()); // the task continues
    }
}

/// Settings of every connection. A replica that hangs, or that disappears without closing its connections, must not hold
/// locks forever. A commit is durable when it returns, even if the server's default differs. Statements after a lock see
/// everything that was committed before they got it, so every transaction is READ COMMITTED unless it requests otherwise.
fn session_settings(timeout: Duration) -> String {
    let (millis, tcp, check) = (timeout.as_millis(), TCP_TIMEOUT.as_millis(), CLIENT_CHECK_INTERVAL.as_millis());
    format!(
        "SET statement_timeout = {millis}; SET lock_timeout = {millis};
         SET idle_in_transaction_session_timeout = {millis}; SET client_min_messages = warning;
         SET default_transaction_isolation = 'read committed';
         SELECT set_config('synchronous_commit', 'on', false)
         WHERE current_setting('synchronous_commit') IN ('off', 'local');
         SELECT set_config(name, value, false) FROM pg_settings
         JOIN (VALUES ('tcp_user_timeout', '{tcp}'), ('client_connection_check_interval', '{check}'))
             AS wanted (name, value) USING (name)
         WHERE version() LIKE '%linux%'" // other systems refuse them; versions before 14 have only the first
    )
}
