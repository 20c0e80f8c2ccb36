//! The log: text for a terminal, JSON otherwise; never message text, never a key.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Starts the log at a level. What llama.cpp has to say below an error is for those who ask for everything.
pub(crate) fn start(level: &str) {
    let filter = match level {
        "trace" => EnvFilter::new(level),
        _ => EnvFilter::new(format!("{level},llama-cpp-2=error")),
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A log that cannot be written must not end in a panic about it.
    let log = log.log_internal_errors(false);
    if std::io::stderr().is_terminal() {
        log.compact().init();
    } else {
        log.json().flatten_event(true).init();
    }
}
