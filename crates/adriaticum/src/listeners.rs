//! The listeners of API, console and ops server, and serving the first two.

use std::net::SocketAddr;
use std::sync::Arc;

use api::Api;
use console::{Console, ConsoleSettings, SignInCounters};
use store::Store;
use tokio::net::TcpListener;
use tokio::sync::watch;
use transport::{BaseUrl, Lifecycle, ListenerSettings, Timeouts, Tls};

use crate::error::CliError;
use crate::host_router::HostRouter;
use crate::identity_provider;
use crate::settings::{Settings, environment_name};

/// The console has few concurrent users.
const CONSOLE_MAX_CONNECTIONS: usize = 256;
const CONSOLE_THREADS: usize = 2;
/// Open files kept for the database, threads, refusals, health checks and monitoring.
const RESERVED_FILES: u64 = 56;

pub(crate) struct Listeners {
    pub(crate) api: Listener,
    pub(crate) console: ConsoleListener,
    /// None if `ops.listen` is none.
    pub(crate) ops: Option<Listener>,
}

pub(crate) struct Listener {
    pub(crate) socket: TcpListener,
    pub(crate) address: SocketAddr,
}

pub(crate) enum ConsoleListener {
    /// `console.listen` is none.
    Disabled,
    /// The API's listener; requests are routed by host.
    Shared,
    Separate(Listener),
}

impl Listeners {
    pub(crate) async fn bind(settings: &Settings) -> Result<Self, CliError> {
        let api = Listener::bind(settings.api.listen, "api.listen").await?;
        let console = match settings.console.listen {
            None => ConsoleListener::Disabled,
            Some(address) if address == settings.api.listen && address.port() != 0 => ConsoleListener::Shared,
            Some(address) => ConsoleListener::Separate(Listener::bind(address, "console.listen").await?),
        };
        let ops = match settings.ops.listen {
            None => None,
            Some(address) => Some(Listener::bind(address, "ops.listen").await?),
        };
        Ok(Self { api, console, ops })
    }

    /// The addresses of all listeners.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        let console = match &self.console {
            ConsoleListener::Separate(listener) => Some(listener),
            ConsoleListener::Disabled | ConsoleListener::Shared => None,
        };
        [Some(&self.api), console, self.ops.as_ref()].into_iter().flatten().map(|listener| listener.address).collect()
    }

    /// `api.base_url`, with the port that was bound.
    pub(crate) fn api_base_url(&self, settings: &Settings) -> String {
        self.api.public_url(&settings.api.base_url)
    }

    /// `console.base_url`, with the port that was bound.
    pub(crate) fn console_origin(&self, settings: &Settings) -> String {
        match &self.console {
            ConsoleListener::Separate(listener) => listener.public_url(&settings.console.base_url),
            ConsoleListener::Disabled | ConsoleListener::Shared => settings.console.base_url.to_string(),
        }
    }

    pub(crate) fn console(
        &self,
        settings: &Settings,
        api: &Arc<Api>,
        store: Arc<Store>,
        sign_ins: Arc<SignInCounters>,
    ) -> Result<Arc<Console>, CliError> {
        let (origin, api_base_url) = (self.console_origin(settings), self.api_base_url(settings));
        let console = ConsoleSettings {
            host: settings.console.base_url.host.clone(),
            identity_provider: identity_provider::from_settings(settings, &origin)?,
            origin,
            api_description: wire::openapi::document(&api_base_url).to_string(),
            api_base_url,
            passwords: settings.console.passwords,
            keys_per_person: settings.console.keys_per_person,
            webhook: settings.webhook.url.is_some(),
        };
        Ok(Console::new(console, store, api.clone(), sign_ins))
    }

    /// Serves until the stop. Returns the number of connections that were cut off at its deadline.
    pub(crate) async fn serve(
        self,
        settings: &Settings,
        tls: Option<Tls>,
        api: Arc<Api>,
        console: Arc<Console>,
        lifecycle: watch::Receiver<Lifecycle>,
    ) -> std::io::Result<usize> {
        let connections = ListenerSettings {
            max_connections: max_connections(raise_file_limit(), settings.api.max_connections),
            threads: settings.api.threads,
            timeouts: Timeouts { head: settings.api.head_timeout, idle: settings.api.idle_timeout },
            stop_timeout: settings.api.stop_timeout,
            proxies: settings.trusted_proxies.clone(),
            tls,
        };
        match self.console {
            ConsoleListener::Disabled => transport::serve(self.api.socket, api, connections, lifecycle).await,
            ConsoleListener::Shared => {
                let both = HostRouter::start(api, console, CONSOLE_THREADS)?;
                transport::serve(self.api.socket, Arc::new(both), connections, lifecycle).await
            }
            ConsoleListener::Separate(listener) => {
                let console_settings = ListenerSettings {
                    max_connections: CONSOLE_MAX_CONNECTIONS.min(connections.max_connections),
                    threads: CONSOLE_THREADS,
                    ..connections.clone()
                };
                let (api, console) = tokio::join!(
                    transport::serve(self.api.socket, api, connections, lifecycle.clone()),
                    transport::serve(listener.socket, console, console_settings, lifecycle),
                );
                Ok(api? + console?)
            }
        }
    }
}

impl Listener {
    async fn bind(address: SocketAddr, setting: &str) -> Result<Self, CliError> {
        let socket = TcpListener::bind(address).await;
        let bound = socket.and_then(|socket| Ok(Self { address: socket.local_addr()?, socket }));
        bound.map_err(|error| listen_error(address, setting, &error))
    }

    /// The base URL, with port 0 replaced by the port that the system has chosen.
    fn public_url(&self, base_url: &BaseUrl) -> String {
        match base_url.origin.strip_suffix(":0") {
            Some(origin) => format!("{origin}:{}{}", self.address.port(), base_url.path),
            None => base_url.to_string(),
        }
    }
}

pub(crate) fn listen_error(address: SocketAddr, setting: &str, error: &std::io::Error) -> CliError {
    let remedy = match error.kind() {
        std::io::ErrorKind::AddrInUse => "Stop the program that listens there",
        std::io::ErrorKind::PermissionDenied => "Ports below 1024 need a privilege: grant it",
        _ => "It must be an address of this machine: correct it",
    };
    let variable = environment_name(setting);
    CliError::new(format!(
        "cannot listen on {address}: {error}. {remedy}, or set `{setting}` ({variable}) to another address."
    ))
}

/// Raises the limit of open files as far as the system allows, and returns it.
fn raise_file_limit() -> u64 {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    let before = limit.current;
    limit.current = limit.maximum;
    match setrlimit(Resource::Nofile, limit) {
        Ok(()) => limit.current.unwrap_or(u64::MAX),
        Err(_) => before.unwrap_or(u64::MAX),
    }
}

/// The connections that this number of files allows: each may need a second one to a runtime.
fn max_connections(files: u64, wanted: usize) -> usize {
    let possible = usize::try_from(files.saturating_sub(RESERVED_FILES) / 2).unwrap_or(usize::MAX).max(1);
    if possible < wanted {
        tracing::warn!(
            files,
            connections = possible,
            "fewer connections than configured: the limit of open files is low"
        );
    }
    wanted.min(possible)
}
