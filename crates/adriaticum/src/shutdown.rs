//! Graceful shutdown: its signals and its steps.

use std::io::IsTerminal;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use transport::Lifecycle;

use crate::error::CliError;

pub(crate) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    /// Whether the service was started from a terminal.
    has_terminal: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopSignal {
    /// Ctrl-C, or a closed terminal.
    Interrupt,
    /// From a service manager.
    Terminate,
}

impl StopSignals {
    pub(crate) fn listen() -> Result<Self, CliError> {
        Ok(Self {
            interrupt: catch(SignalKind::interrupt())?,
            terminate: catch(SignalKind::terminate())?,
            hangup: catch(SignalKind::hangup())?,
            has_terminal: (std::io::stdout().is_terminal() || std::io::stderr().is_terminal()) && !terminal_is_gone(),
        })
    }

    /// Waits for the second signal.
    pub(crate) async fn wait_for_second(mut self) {
        self.next().await;
        self.next().await;
    }

    /// Waits for the first signal, then publishes each step. SIGTERM starts with draining, so that proxies
    /// notice the stop.
    pub(crate) async fn run(mut self, drain: Duration, lifecycle: watch::Sender<Lifecycle>) {
        if self.next().await == StopSignal::Terminate && !drain.is_zero() {
            tracing::info!(?drain, "draining: requests are still served, but should be sent elsewhere");
            lifecycle.send_replace(Lifecycle::Draining);
            tokio::time::sleep(drain).await;
        }
        tracing::info!("stopping: requests in flight are finished first; a second signal stops immediately");
        lifecycle.send_replace(Lifecycle::Stopping);
    }

    async fn next(&mut self) -> StopSignal {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => return StopSignal::Interrupt,
                _ = self.terminate.recv() => return StopSignal::Terminate,
                // SIGHUP also reloads the configuration. It requests a stop only if the terminal was closed.
                _ = self.hangup.recv() => if self.has_terminal && terminal_is_gone() { return StopSignal::Interrupt },
            }
        }
    }
}

/// Whether there is no controlling terminal, or it was closed.
fn terminal_is_gone() -> bool {
    std::fs::File::open("/dev/tty").is_err()
}

/// Handles a signal, which then no longer ends the process.
pub(crate) fn catch(kind: SignalKind) -> Result<Signal, CliError> {
    signal(kind).map_err(|error| CliError::new(format!("signals cannot be handled: {error}")))
}
