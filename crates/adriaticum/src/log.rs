//! The log: text on a terminal, JSON otherwise. It never holds message text or keys.
//!
//! Rare events are written at once. The line of each request goes into a buffer that a thread of its own writes in
//! batches, so that workers wait neither for each other nor for whoever reads the log. When the reader stalls, lines
//! are dropped and counted; requests are not delayed.

use std::cell::RefCell;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use api::{Field, RequestLog};
use parking_lot::{Condvar, Mutex};
use tracing_subscriber::EnvFilter;

/// The `target` of request lines.
const TARGET: &str = "requests";
const MAX_BUFFERED_BYTES: usize = 4 << 20;
/// How long lines are collected before they are written. Waking the thread for each would cost more than writing it.
const BATCH_INTERVAL: Duration = Duration::from_millis(5);
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Starts the log at a level. Messages of llama.cpp below an error are shown only at `trace`.
pub(crate) fn start(level: &str) {
    let filter = match level {
        "trace" => EnvFilter::new(level),
        _ => EnvFilter::new(format!("{level},llama-cpp-2=error")),
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // A log that cannot be written must not cause a panic.
    let log = log.log_internal_errors(false);
    if io::stderr().is_terminal() {
        log.compact().with_target(false).init();
    } else {
        log.json().flatten_event(true).init();
    }
}

/// Writes the request log to standard error.
#[derive(Debug)]
pub(crate) struct RequestLogWriter {
    format: LogFormat,
    buffer: Mutex<Buffer>,
    not_empty: Condvar,
    flushed: Condvar,
}

#[derive(Debug, Clone, Copy)]
enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Default)]
struct Buffer {
    text: Vec<u8>,
    dropped: u64,
    is_writing: bool,
}

impl RequestLogWriter {
    /// Starts the thread that writes. None if request lines are off, or below the log's level.
    pub(crate) fn start(enabled: bool) -> Option<Arc<Self>> {
        if !enabled || !tracing::enabled!(target: TARGET, tracing::Level::INFO) {
            return None;
        }
        let lines = Arc::new(Self {
            format: if io::stderr().is_terminal() { LogFormat::Text } else { LogFormat::Json },
            buffer: Mutex::default(),
            not_empty: Condvar::new(),
            flushed: Condvar::new(),
        });
        let writer = lines.clone();
        let thread = std::thread::Builder::new().name("log".into()).spawn(move || writer.run());
        thread.is_ok().then_some(lines)
    }

    /// Waits until all lines are written, at most `FLUSH_TIMEOUT`.
    pub(crate) fn flush(&self) {
        let unwritten = |buffer: &mut Buffer| buffer.is_writing || !buffer.text.is_empty();
        self.flushed.wait_while_for(&mut self.buffer.lock(), unwritten, FLUSH_TIMEOUT);
    }

    fn run(&self) {
        let mut batch = Vec::new();
        loop {
            self.not_empty.wait_while(&mut self.buffer.lock(), |buffer| buffer.text.is_empty());
            std::thread::sleep(BATCH_INTERVAL);
            let dropped = {
                let mut buffer = self.buffer.lock();
                std::mem::swap(&mut batch, &mut buffer.text);
                buffer.is_writing = true;
                std::mem::take(&mut buffer.dropped)
            };
            let _ = io::stderr().write_all(&batch); // there is nowhere to report it
            batch.clear();
            if dropped > 0 {
                tracing::warn!(lines = dropped, "the log could not keep up: request lines were dropped");
            }
            self.buffer.lock().is_writing = false;
            self.flushed.notify_all();
        }
    }

    fn push(&self, line: &[u8]) {
        let mut buffer = self.buffer.lock();
        if buffer.text.len() + line.len() > MAX_BUFFERED_BYTES {
            buffer.dropped += 1;
            return;
        }
        let is_first = buffer.text.is_empty();
        buffer.text.extend_from_slice(line);
        drop(buffer);
        if is_first {
            self.not_empty.notify_one();
        }
    }
}

impl RequestLog for RequestLogWriter {
    fn write(&self, fields: &[(&'static str, Option<Field<'_>>)]) {
        thread_local!(static LINE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
        LINE.with_borrow_mut(|line| {
            line.clear();
            let fields = fields.iter().filter_map(|(name, field)| Some((*name, (*field)?)));
            if self.format.write(line, SystemTime::now(), fields).is_ok() {
                self.push(line); // writing to memory does not fail
            }
        });
    }
}

impl LogFormat {
    fn write<'a>(
        self,
        line: &mut Vec<u8>,
        now: SystemTime,
        fields: impl Iterator<Item = (&'static str, Field<'a>)>,
    ) -> io::Result<()> {
        let now = humantime::format_rfc3339_micros(now);
        match self {
            Self::Text => {
                write!(line, "{now}  INFO request")?;
                for (name, field) in fields {
                    match field {
                        Field::Text(text) => write!(line, " {name}={text}")?,
                        Field::Number(number) => write!(line, " {name}={number}")?,
                    }
                }
                writeln!(line)
            }
            Self::Json => {
                write!(line, r#"{{"timestamp":"{now}","level":"INFO","message":"request""#)?;
                for (name, field) in fields {
                    write!(line, r#","{name}":"#)?;
                    match field {
                        Field::Text(text) => serde_json::to_writer(&mut *line, text)?,
                        Field::Number(number) => write!(line, "{number}")?,
                    }
                }
                writeln!(line, r#","target":"{TARGET}"}}"#)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn a_line_is_text_or_json() {
        let fields = [("runtime", Field::Text("a \"b\"\n")), ("status", Field::Number(200))];
        let line = |format: LogFormat| {
            let mut line = Vec::new();
            format.write(&mut line, UNIX_EPOCH, fields.into_iter()).unwrap();
            String::from_utf8(line).unwrap()
        };
        let expected = serde_json::json!({
            "timestamp": "1970-01-01T00:00:00.000000Z", "level": "INFO", "message": "request",
            "runtime": "a \"b\"\n", "status": 200, "target": TARGET,
        });
        let json = line(LogFormat::Json);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap(), expected);
        assert!(json.ends_with("}\n") && json.lines().count() == 1);
        assert!(line(LogFormat::Text).starts_with("1970-01-01T00:00:00.000000Z  INFO request runtime="));
    }
}
