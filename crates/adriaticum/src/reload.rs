//! Reloads the configuration on SIGHUP: applies reloadable settings, and logs those that need a restart. A wrong
//! configuration changes nothing.

use std::convert::Infallible;
use std::sync::Arc;

use runtimes::{Pool, PoolSettings};
use tokio::signal::unix::Signal;
use transport::Certificates;

use crate::error::CliError;
use crate::settings::{Setting, Settings};

/// Reads the settings as at the start.
pub(crate) type LoadSettings<'a> = &'a dyn Fn() -> Result<Settings, CliError>;

pub(crate) fn pool_settings(settings: &Settings) -> PoolSettings {
    PoolSettings {
        urls: settings.runtime.urls.clone(),
        key: settings.runtime.key.clone(),
        timeout: settings.runtime.timeout,
        guard: settings.runtime.guard,
    }
}

/// Reloads on every signal; never returns.
pub(crate) async fn on_signal(
    mut signal: Signal,
    load: LoadSettings<'_>,
    at_start: &Settings,
    pool: Option<Arc<Pool>>,
    certificates: Option<Arc<Certificates>>,
) -> Infallible {
    let mut in_force = None;
    loop {
        if signal.recv().await.is_none() {
            return std::future::pending().await;
        }
        match load() {
            Ok(new) => {
                new.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
                let before = in_force.as_ref().unwrap_or(at_start);
                // Only a pool of remote runtimes can change: the embedded one is a process with its own settings.
                let is_remote = |settings: &Settings| !settings.runtime.urls.is_empty();
                let pool = pool.as_ref().filter(|_| is_remote(at_start) && is_remote(&new));
                let (applied, _) = partition_changes(before, &new, pool.is_some());
                let (_, left) = partition_changes(at_start, &new, pool.is_some());
                if let Some(pool) = pool {
                    // Even without changes: names may resolve to other addresses now.
                    pool.reconfigure(pool_settings(&new)).await;
                    in_force = Some(new);
                }
                if let Some(certificates) = &certificates {
                    certificates.reload();
                }
                tracing::info!(applied = applied.join(", "), "the configuration was reloaded");
                if !left.is_empty() {
                    tracing::warn!(settings = left.join(", "), "changed settings need a restart and were not applied");
                }
            }
            Err(error) => {
                tracing::error!(reason = %error, "the configuration was reloaded and is wrong; nothing changes");
            }
        }
    }
}

/// The settings that differ: those that are applied, and those that need a restart.
fn partition_changes(old: &Settings, new: &Settings, pool_changes: bool) -> (Vec<&'static str>, Vec<&'static str>) {
    let (applied, left): (Vec<_>, Vec<_>) = old.changes(new).partition(|setting| setting.is_reloadable && pool_changes);
    let names = |settings: Vec<&'static Setting>| {
        let mut names: Vec<_> = settings.into_iter().map(|setting| setting.name).collect();
        names.sort_unstable();
        names
    };
    (names(applied), names(left))
}
