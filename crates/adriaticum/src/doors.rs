//! Where the service listens, and who is served there.

use std::net::SocketAddr;
use std::sync::Arc;

use api::Api;
use console::{Console, ConsoleSettings};
use store::Store;
use tokio::net::TcpListener;
use tokio::sync::watch;
use transport::{Lifecycle, ListenerSettings, Timeouts, Tls};

use crate::error::CliError;
use crate::hosts::BothHosts;
use crate::settings::{Settings, environment_name};

/// The console has few visitors at a time.
const CONSOLE_CONNECTIONS: usize = 256;
const CONSOLE_THREADS: usize = 2;
/// Open files that are kept for the database, the threads, refusals, health checks and monitoring.
const KEPT_FILES: u64 = 56;

/// Where the service listens.
pub(crate) struct Doors {
    pub(crate) api: Door,
    pub(crate) console: ConsoleDoor,
    /// For health and metrics, if they are wanted.
    pub(crate) ops: Option<Door>,
}

/// One listener.
pub(crate) struct Door {
    pub(crate) listener: TcpListener,
    pub(crate) address: SocketAddr,
}

pub(crate) enum ConsoleDoor {
    /// The console is not wanted.
    None,
    /// The API's address.
    Shared,
    Own(Door),
}

impl Doors {
    pub(crate) async fn open(settings: &Settings) -> Result<Self, CliError> {
        let api = Door::open(settings.api_listen, "api.listen").await?;
        let console = match settings.console_listen {
            None => ConsoleDoor::None,
            Some(address) if address == settings.api_listen && address.port() != 0 => ConsoleDoor::Shared,
            Some(address) => ConsoleDoor::Own(Door::open(address, "console.listen").await?),
        };
        let ops = match settings.ops_listen {
            None => None,
            Some(address) => Some(Door::open(address, "ops.listen").await?),
        };
        Ok(Self { api, console, ops })
    }

    /// Where callers reach the API.
    pub(crate) fn api_base_url(&self, settings: &Settings) -> String {
        self.api.named_in(&settings.api_base_url)
    }

    /// Where people reach the console.
    pub(crate) fn console_origin(&self, settings: &Settings) -> String {
        match &self.console {
            ConsoleDoor::Own(door) => door.named_in(&settings.console_base_url),
            ConsoleDoor::None | ConsoleDoor::Shared => settings.console_base_url.clone(),
        }
    }

    /// Serves until the stop; says how many connections had to be cut off.
    pub(crate) async fn serve(
        self,
        settings: &Settings,
        tls: Option<Tls>,
        api: Arc<Api>,
        store: Arc<Store>,
        lifecycle: watch::Receiver<Lifecycle>,
    ) -> std::io::Result<usize> {
        let api_base_url = self.api_base_url(settings);
        let console = ConsoleSettings {
            host: settings.console_host.clone(),
            origin: self.console_origin(settings),
            api_description: wire::openapi::document(&api_base_url).to_string(),
            api_base_url,
        };
        let console = Console::new(console, store, api.clone());
        let connections = ListenerSettings {
            max_connections: connections_for(raise_file_limit(), settings.max_connections),
            threads: settings.api_threads,
            timeouts: Timeouts { head: settings.head_timeout, idle: settings.idle_timeout },
            stop_timeout: settings.stop_timeout,
            proxies: settings.trusted_proxies.clone(),
            tls,
        };
        match self.console {
            ConsoleDoor::None => transport::serve(self.api.listener, api, connections, lifecycle).await,
            ConsoleDoor::Shared => {
                transport::serve(self.api.listener, Arc::new(BothHosts { api, console }), connections, lifecycle).await
            }
            ConsoleDoor::Own(door) => {
                let few = ListenerSettings {
                    max_connections: CONSOLE_CONNECTIONS.min(connections.max_connections),
                    threads: CONSOLE_THREADS,
                    ..connections.clone()
                };
                let (api, console) = tokio::join!(
                    transport::serve(self.api.listener, api, connections, lifecycle.clone()),
                    transport::serve(door.listener, console, few, lifecycle),
                );
                Ok(api? + console?)
            }
        }
    }
}

impl Door {
    async fn open(address: SocketAddr, setting: &str) -> Result<Self, CliError> {
        let listener = TcpListener::bind(address).await;
        let opened = listener.and_then(|listener| Ok(Self { address: listener.local_addr()?, listener }));
        opened.map_err(|error| cannot_listen(address, setting, &error))
    }

    /// A base URL with port 0 is reached at the port that the system has chosen.
    fn named_in(&self, base_url: &str) -> String {
        let chosen = url::Url::parse(base_url).ok().filter(|url| url.port() == Some(0)).and_then(|mut url| {
            url.set_port(Some(self.address.port())).ok()?;
            Some(url.as_str().trim_end_matches('/').to_owned())
        });
        chosen.unwrap_or_else(|| base_url.to_owned())
    }
}

/// Why nobody can listen there, and what to do.
pub(crate) fn cannot_listen(address: SocketAddr, setting: &str, error: &std::io::Error) -> CliError {
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

/// Asks for as many open files as the system allows, and says how many that is.
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

/// How many connections those files are enough for: each may need another one to a runtime.
fn connections_for(files: u64, wanted: usize) -> usize {
    let possible = usize::try_from(files.saturating_sub(KEPT_FILES) / 2).unwrap_or(usize::MAX).max(1);
    if possible < wanted {
        tracing::warn!(
            files,
            connections = possible,
            "fewer connections than configured: the limit of open files is low"
        );
    }
    wanted.min(possible)
}
