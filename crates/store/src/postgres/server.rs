//! Connects to the server. One thread drives all connections, so that none depends on the thread that opened it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_postgres::{Client, Config};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{PostgresSettings, tls};
use crate::StoreError;

/// Per address of the server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A server that acknowledges nothing for this long is gone.
const TCP_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(super) struct Server {
    config: Config,
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
        Ok(Self { config, tls, driver: Arc::new(Driver::start()?), timeout: settings.timeout })
    }

    /// Limit for a statement.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Connects to a server that accepts writes.
    pub(super) async fn connect(&self) -> Result<Client, StoreError> {
        let Self { config, tls, timeout, .. } = self.clone();
        let connecting = self.driver.handle.spawn(async move {
            let connected = tokio::time::timeout(timeout, async {
                let (client, connection) = config.connect(tls).await?;
                tokio::spawn(async move {
                    if let Err(error) = connection.await {
                        tracing::debug!(cause = super::error_chain(&error), "a database connection was closed");
                    }
                });
                client.batch_execute(&session_settings(timeout)).await?;
                Ok(client)
            });
            connected.await.unwrap_or(Err(StoreError::TimedOut))
        });
        connecting.await.unwrap_or(Err(StoreError::TimedOut))
    }

    /// Blocks this thread, which must not be one that serves requests.
    pub(super) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.driver.handle.block_on(future)
    }
}

/// Settings of every connection. Nothing waits forever, above all not with locks that other replicas need. A commit is
/// durable when it returns, whatever the server's default is.
fn session_settings(timeout: Duration) -> String {
    let millis = timeout.as_millis();
    format!(
        "SET statement_timeout = {millis}; SET lock_timeout = {millis};
         SET idle_in_transaction_session_timeout = {millis}; SET client_min_messages = warning;
         SELECT set_config('synchronous_commit', 'on', false)
         WHERE current_setting('synchronous_commit') IN ('off', 'local')"
    )
}
