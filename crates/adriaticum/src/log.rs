//! The log: text for a terminal, JSON otherwise; never message text, never a key.
//!
//! What is rare is written at once. The line that every request has is put with others, which a thread of its own writes
//! with one call: so neither threads that serve requests wait for each other here, nor for whoever reads the log. If that
//! one stands still, lines are lost rather than requests held up, and the log says how many.

use std::cell::RefCell;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use api::{Field, RequestLog};
use tracing_subscriber::EnvFilter;

/// Where the lines about requests come from, as one sees there.
const TARGET: &str = "requests";
/// Bytes that may wait to be written.
const MOST_WAITING: usize = 4 << 20;
/// How long lines are gathered before they are written. To be woken for each would cost more than to write it.
const GATHERING: Duration = Duration::from_millis(5);
/// How long the last ones may take at the end.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Starts the log at a level. What llama.cpp has to say below an error is for those who ask for everything.
pub(crate) fn start(level: &str) {
    let filter = match level {
        "trace" => EnvFilter::new(level),
        _ => EnvFilter::new(format!("{level},llama-cpp-2=error")),
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // A log that cannot be written must not end in a panic about it.
    let log = log.log_internal_errors(false);
    if io::stderr().is_terminal() {
        log.compact().with_target(false).init();
    } else {
        log.json().flatten_event(true).init();
    }
}

/// The lines about requests on their way to standard error.
#[derive(Debug)]
pub(crate) struct RequestLines {
    form: Form,
    waiting: Mutex<Waiting>,
    /// There is something to write.
    some: Condvar,
    /// All is written.
    none: Condvar,
}

#[derive(Debug, Clone, Copy)]
enum Form {
    Text,
    Json,
}

#[derive(Debug, Default)]
struct Waiting {
    text: Vec<u8>,
    lost: u64,
    being_written: bool,
}

impl RequestLines {
    /// Starts the thread that writes them; none if they are not wanted, or the log's level is above theirs.
    pub(crate) fn start(wanted: bool) -> Option<Arc<Self>> {
        if !wanted || !tracing::enabled!(target: TARGET, tracing::Level::INFO) {
            return None;
        }
        let lines = Arc::new(Self {
            form: if io::stderr().is_terminal() { Form::Text } else { Form::Json },
            waiting: Mutex::default(),
            some: Condvar::new(),
            none: Condvar::new(),
        });
        let writer = lines.clone();
        let thread = std::thread::Builder::new().name("log".into()).spawn(move || writer.write_out());
        thread.is_ok().then_some(lines)
    }

    /// Waits for a moment until what was told is written.
    pub(crate) fn finish(&self) {
        let unwritten = |waiting: &mut Waiting| waiting.being_written || !waiting.text.is_empty();
        // A reader that stands still is not waited for.
        let _ = self.none.wait_timeout_while(self.waiting(), LAST_LINES, unwritten);
    }

    fn write_out(&self) {
        let mut batch = Vec::new();
        loop {
            let nothing = |waiting: &mut Waiting| waiting.text.is_empty();
            drop(self.some.wait_while(self.waiting(), nothing).unwrap_or_else(PoisonError::into_inner));
            std::thread::sleep(GATHERING);
            let lost = {
                let mut waiting = self.waiting();
                std::mem::swap(&mut batch, &mut waiting.text);
                waiting.being_written = true;
                std::mem::take(&mut waiting.lost)
            };
            let _ = io::stderr().write_all(&batch); // nobody could be told
            batch.clear();
            if lost > 0 {
                tracing::warn!(lines = lost, "the log could not keep up: lines about requests were lost");
            }
            self.waiting().being_written = false;
            self.none.notify_all();
        }
    }

    fn put(&self, line: &[u8]) {
        let mut waiting = self.waiting();
        if waiting.text.len() + line.len() > MOST_WAITING {
            waiting.lost += 1;
            return;
        }
        let is_first = waiting.text.is_empty();
        waiting.text.extend_from_slice(line);
        drop(waiting);
        if is_first {
            self.some.notify_one();
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RequestLog for RequestLines {
    fn tell(&self, fields: &[(&'static str, Option<Field<'_>>)]) {
        thread_local!(static LINE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
        LINE.with_borrow_mut(|line| {
            line.clear();
            let fields = fields.iter().filter_map(|(name, field)| Some((*name, (*field)?)));
            if self.form.write(line, SystemTime::now(), fields).is_ok() {
                self.put(line); // memory takes everything
            }
        });
    }
}

impl Form {
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
        let line = |form: Form| {
            let mut line = Vec::new();
            form.write(&mut line, UNIX_EPOCH, fields.into_iter()).unwrap();
            String::from_utf8(line).unwrap()
        };
        let expected = serde_json::json!({
            "timestamp": "1970-01-01T00:00:00.000000Z", "level": "INFO", "message": "request",
            "runtime": "a \"b\"\n", "status": 200, "target": TARGET,
        });
        let json = line(Form::Json);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap(), expected);
        assert!(json.ends_with("}\n") && json.lines().count() == 1);
        assert!(line(Form::Text).starts_with("1970-01-01T00:00:00.000000Z  INFO request runtime="));
    }
}
