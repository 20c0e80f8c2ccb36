//! The signals that ask the service to stop, and what follows from them, step by step.

use std::io::IsTerminal;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use transport::Lifecycle;

use crate::error::CliError;

/// The signals that ask the service to stop.
pub(crate) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    /// Whether somebody sits at the terminal that it was started from.
    watched: bool,
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopSignal {
    /// A person at the terminal, or one who has closed it.
    Interrupt,
    /// Whatever runs services.
    Terminate,
}

impl StopSignals {
    pub(crate) fn listen() -> Result<Self, CliError> {
        Ok(Self {
            interrupt: catch(SignalKind::interrupt())?,
            terminate: catch(SignalKind::terminate())?,
            hangup: catch(SignalKind::hangup())?,
            watched: (std::io::stdout().is_terminal() || std::io::stderr().is_terminal()) && !terminal_is_gone(),
        })
    }

    /// Waits for the second one.
    pub(crate) async fn second(mut self) {
        self.next().await;
        self.next().await;
    }

    /// Waits for the first one, and tells everyone how far the service has got. Before a stop that a machine has asked
    /// for, it is drained: proxies in front need that long to notice.
    pub(crate) async fn follow(mut self, drain: Duration, lifecycle: watch::Sender<Lifecycle>) {
        if self.next().await == StopSignal::Terminate && !drain.is_zero() {
            tracing::info!(?drain, "draining: requests are still answered, but better sent elsewhere");
            lifecycle.send_replace(Lifecycle::Draining);
            tokio::time::sleep(drain).await;
        }
        tracing::info!("stopping: what is under way is finished first; a second signal stops at once");
        lifecycle.send_replace(Lifecycle::Stopping);
    }

    async fn next(&mut self) -> StopSignal {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => return StopSignal::Interrupt,
                _ = self.terminate.recv() => return StopSignal::Terminate,
                // By itself it asks to read the configuration again.
                _ = self.hangup.recv() => if self.watched && terminal_is_gone() { return StopSignal::Interrupt },
            }
        }
    }
}

/// Is there no terminal that signals come from, or none any more?
fn terminal_is_gone() -> bool {
    std::fs::File::open("/dev/tty").is_err()
}

/// Keeps a signal from ending the process.
pub(crate) fn catch(kind: SignalKind) -> Result<Signal, CliError> {
    signal(kind).map_err(|error| CliError::new(format!("signals cannot be received: {error}")))
}
