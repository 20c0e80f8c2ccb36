//! Connects to the server. One thread drives all connections, so that none depends on the thread that opened it.

use std::convert::Infallible;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Config};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{PostgresSettings, tls};
use crate::StoreError;

/// Per address of the server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A server, or a replica, that acknowledges nothing for this long is gone.
const TCP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a statement whose caller is gone may go on. A usual one ends sooner by itself, which costs less than
/// cancelling it.
pub(super) const ABANDONED_TIMEOUT: Duration = Duration::from_millis(100);
/// How often the server looks, in the middle of a statement, whether its client is still there.
const CLIENT_CHECK_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(super) struct Server {
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
    pub(super) fn new(settings: &PostgresSettings) -> Result<Self, StoreError> {
        let mut config = Config::clone(&settings.url.config);
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        config.tcp_user_timeout(TCP_TIMEOUT).keepalives_idle(TCP_TIMEOUT);
        let tls = tls::connector(&settings.url)?;
        Ok(Self { config: Arc::new(config), tls, driver: Arc::new(Driver::start()?), timeout: settings.timeout })
    }

    /// Limit for a statement.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Connects to a server that accepts writes.
    pub(super) async fn connect(&self) -> Result<Session, StoreError> {
        let server = self.clone();
        let connecting = self.driver.handle.spawn(async move {
            let timeout = server.timeout;
            let connected = tokio::time::timeout(timeout, async {
                let (client, connection) = server.config.connect(server.tls.clone()).await?;
                let driven = tokio::spawn(async move {
                    if let Err(error) = connection.await {
                        tracing::debug!(cause = super::error_chain(&error), "a database connection was closed");
                    }
                });
                let session = Session { open: Some((client, driven)), server: server.clone(), is_committing: false };
                session.batch_execute(&session_settings(timeout)).await?;
                Ok(session)
            });
            connected.await.unwrap_or(Err(StoreError::TimedOut))
        });
        connecting.await.unwrap_or(Err(StoreError::TimedOut))
    }

    /// Runs something on the driver's thread, whatever becomes of the caller.
    pub(super) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        let driver = self.driver.clone(); // which must not end before
        self.driver.handle.spawn(async move {
            future.await;
            drop(driver);
        })
    }

    /// Blocks this thread, which must not be one that serves requests.
    pub(super) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.driver.handle.block_on(future)
    }
}

/// An open connection. When it is dropped, however and whenever, the server ends at once what it was doing, rolls back
/// and gives up all locks.
pub(super) struct Session {
    /// The task ends when the connection is closed. `None` once this was closed.
    open: Option<(Client, JoinHandle<()>)>,
    server: Server,
    is_committing: bool,
}

impl Session {
    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// To be called before COMMIT is sent: from then on nothing is cancelled. A commit that waits for a standby would
    /// otherwise be visible without being safe.
    pub(super) fn set_committing(&mut self, is_committing: bool) {
        self.is_committing = is_committing;
    }

    /// Closes the connection. The task ends when it is closed.
    pub(super) fn close(&mut self) -> Option<JoinHandle<()>> {
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
        &self.open.as_ref().expect("nobody uses a session that was closed").0
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.open.as_mut().expect("nobody uses a session that was closed").0
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.close()); // the task goes on
    }
}

/// Settings of every connection. Nothing waits forever, above all not with locks that other replicas need: neither a
/// replica that is frozen, nor one that is gone without a word. A commit is durable when it returns, whatever the
/// server's default is.
fn session_settings(timeout: Duration) -> String {
    let (millis, tcp, check) = (timeout.as_millis(), TCP_TIMEOUT.as_millis(), CLIENT_CHECK_INTERVAL.as_millis());
    format!(
        "SET statement_timeout = {millis}; SET lock_timeout = {millis};
         SET idle_in_transaction_session_timeout = {millis}; SET client_min_messages = warning;
         SELECT set_config('synchronous_commit', 'on', false)
         WHERE current_setting('synchronous_commit') IN ('off', 'local');
         SELECT set_config(name, value, false) FROM pg_settings
         JOIN (VALUES ('tcp_user_timeout', '{tcp}'), ('client_connection_check_interval', '{check}'))
             AS wanted (name, value) USING (name)
         WHERE version() LIKE '%linux%'" // elsewhere a server refuses them; before version 14 it knows only the first
    )
}
