//! The log: text on a terminal, JSON otherwise. It never holds message text or keys.
//!
//! Rare events are written immediately. The line of each request goes into a buffer that a separate thread writes in
//! batches, so that workers wait neither for each other nor for the log's reader. When the reader stalls, lines are
//! dropped and counted; requests are not delayed.
//!
//! Libraries log less than we do, and a limited number of lines a minute: their messages may depend on what a client sent.

use std::cell::RefCell;
use std::io::{self, BufRead, IsTerminal, Write};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use api::{Field, RequestLog};
use parking_lot::{Condvar, Mutex};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

use crate::error::CliError;

/// The `target` of request lines.
const TARGET: &str = "requests";
const MAX_BUFFERED_BYTES: usize = 4 << 20;
/// Lines are collected this long before they are written: waking the thread for each costs more than writing it.
const BATCH_INTERVAL: Duration = Duration::from_millis(5);
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The first part of our own lines' targets: our crates, and request lines.
const OUR_TARGETS: [&str; 17] = [
    TARGET, "admission", "adriaticum", "api", "breaker", "chat", "console", "engine", "format", "grounding",
    "histogram", "ops", "runtimes", "store", "transport", "unix_socket", "wire",
];
/// For all libraries together. More would hide our own lines and fill the disk.
const LIBRARY_LINES: u32 = 100;
const LIBRARY_INTERVAL: Duration = Duration::from_secs(60);

/// Starts the log at a level.
pub(crate) fn start(level: &str) {
    log_panics();
    // A log that cannot be written must not cause a panic.
    let lines = fmt::layer().with_writer(io::stderr).log_internal_errors(false);
    let log = tracing_subscriber::registry().with(EnvFilter::new(directives(level)));
    let log = log.with((level != "trace").then(LibraryLimit::new));
    if io::stderr().is_terminal() {
        log.with(lines.compact().with_target(false)).init();
    } else {
        log.with(lines.json().flatten_event(true)).init();
    }
}

/// Reports an error that ends a service, or a warning from before its log was started, in the log's format.
pub(crate) fn report(error: &CliError) {
    if io::stderr().is_terminal() {
        error.report();
    } else if !error.is_silent() {
        error.to_string().lines().for_each(|line| write_json("ERROR", line));
    }
}

pub(crate) fn warn_early(warning: &str) {
    match io::stderr().is_terminal() {
        true => drop(writeln!(io::stderr(), "adriaticum: {warning}")),
        false => write_json("WARN", warning),
    }
}

fn write_json(level: &str, message: &str) {
    let timestamp = humantime::format_rfc3339_micros(SystemTime::now()).to_string();
    let line = serde_json::json!({
        "timestamp": timestamp, "level": level, "message": message, "target": env!("CARGO_PKG_NAME"),
    });
    let _ = writeln!(io::stderr(), "{line}"); // there is nowhere to report it
}

/// A pipe for the standard error of a child process that logs like this one; the output of its libraries is put into the
/// log's format. `None` on a terminal, which the child may write to.
pub(crate) fn child_stderr() -> Option<Arc<io::PipeWriter>> {
    if io::stderr().is_terminal() {
        return None;
    }
    let (reader, writer) = io::pipe().ok()?;
    let relay = move || {
        for line in io::BufReader::new(reader).split(b'\n').map_while(Result::ok) {
            match serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&line) {
                Ok(_) => drop(io::stderr().write_all(&[&line[..], b"\n"].concat())),
                Err(_) if line.trim_ascii().is_empty() => {}
                Err(_) => tracing::warn!(target: "engine", "{}", String::from_utf8_lossy(&line).trim()),
            }
        }
    };
    std::thread::Builder::new().name("engine-log".into()).spawn(relay).ok()?;
    Some(Arc::new(writer))
}

/// Logs panics.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let location = panic.location().map(ToString::to_string);
        let message = panic.payload_as_str().unwrap_or("no message");
        tracing::error!(location, thread = thread.name(), "panicked: {message}");
    }));
}

/// Libraries log warnings and errors, and informational lines only at `debug`. llama.cpp and the parsers of documents,
/// which warn of everything, log errors. At `trace`, all targets log everything.
fn directives(level: &str) -> String {
    let libraries = match level {
        "trace" => return level.to_owned(),
        "debug" => "info",
        "error" => "error",
        _ => "warn",
    };
    let ours: String = OUR_TARGETS.iter().map(|target| format!(",{target}={level}")).collect();
    format!("{libraries}{ours},llama-cpp-2=error,html5ever=error,lopdf=error,pdf_extract=error")
}

/// Drops lines of libraries above the limit.
struct LibraryLimit {
    began: Instant,
    budget: Mutex<LineBudget>,
}

impl LibraryLimit {
    fn new() -> Self {
        Self { began: Instant::now(), budget: Mutex::new(LineBudget::default()) }
    }
}

impl<S: Subscriber> Layer<S> for LibraryLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        // Lines through the crate `log` have the target `log` here.
        let target = event.metadata().target();
        let name = target.split_once("::").map_or(target, |(name, _)| name);
        if OUR_TARGETS.contains(&name) {
            return true;
        }
        let (is_written, dropped) = self.budget.lock().take(self.began.elapsed());
        if dropped > 0 {
            tracing::warn!(lines = dropped, "libraries logged too much: some of their lines were dropped");
        }
        is_written
    }
}

/// `LIBRARY_LINES` in every interval.
#[derive(Debug, Default)]
struct LineBudget {
    interval: u64,
    taken: u32,
    dropped: u64,
}

impl LineBudget {
    /// Whether a line may be written, and how many were dropped in the last interval that had any.
    fn take(&mut self, now: Duration) -> (bool, u64) {
        let interval = now.as_secs() / LIBRARY_INTERVAL.as_secs();
        let mut dropped = 0;
        if interval != self.interval {
            dropped = self.dropped;
            *self = Self { interval, ..Self::default() };
        }
        self.taken = self.taken.saturating_add(1);
        let is_written = self.taken <= LIBRARY_LINES;
        self.dropped += u64::from(!is_written);
        (is_written, dropped)
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
    /// Like the lines of `tracing`.
    Text(Colours),
    Json,
}

/// Escape sequences before and after the parts of a line.
#[derive(Debug, Clone, Copy, Default)]
struct Colours {
    dim: &'static str,
    green: &'static str,
    italic: &'static str,
    end: &'static str,
}

impl Colours {
    const ANSI: Self = Self { dim: "\x1b[2m", green: "\x1b[32m", italic: "\x1b[3m", end: "\x1b[0m" };
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
            format: if io::stderr().is_terminal() { LogFormat::text() } else { LogFormat::Json },
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
    /// In colours, unless `NO_COLOR` is set: the rule that `tracing` follows.
    fn text() -> Self {
        let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self::Text(if is_plain { Colours::default() } else { Colours::ANSI })
    }

    fn write<'a>(
        self,
        line: &mut Vec<u8>,
        now: SystemTime,
        fields: impl Iterator<Item = (&'static str, Field<'a>)>,
    ) -> io::Result<()> {
        let now = humantime::format_rfc3339_micros(now);
        match self {
            Self::Text(Colours { dim, green, italic, end }) => {
                write!(line, "{dim}{now}{end} {green} INFO{end} request")?;
                for (name, field) in fields {
                    push(line, &[" ", italic, name, end, dim, "=", end]);
                    match field {
                        Field::Text(text) => push(line, &[text]),
                        Field::Number(number) => serde_json::to_writer(&mut *line, &number)?,
                    }
                }
                push(line, &["\n"]);
            }
            Self::Json => {
                write!(line, r#"{{"timestamp":"{now}","level":"INFO","message":"request""#)?;
                for (name, field) in fields {
                    push(line, &[r#",""#, name, r#"":"#]);
                    match field {
                        Field::Text(text) => serde_json::to_writer(&mut *line, text)?,
                        Field::Number(number) => serde_json::to_writer(&mut *line, &number)?,
                    }
                }
                push(line, &[r#","target":""#, TARGET, "\"}\n"]);
            }
        }
        Ok(())
    }
}

/// Every request has a line, and formatting would take several times as long.
fn push(line: &mut Vec<u8>, parts: &[&str]) {
    parts.iter().for_each(|part| line.extend_from_slice(part.as_bytes()));
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn libraries_have_a_limit_of_lines_a_minute() {
        let mut budget = LineBudget::default();
        let mut take = |second| budget.take(Duration::from_secs(second));
        let written = (0..1_000).filter(|_| take(1).0).count();
        assert_eq!(written, LIBRARY_LINES as usize);
        assert_eq!(take(61), (true, 1_000 - u64::from(LIBRARY_LINES)), "reported once");
        assert_eq!(take(62), (true, 0));
    }

    #[test]
    fn every_crate_of_ours_that_logs_is_among_our_targets() {
        let crates = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).unwrap();
        let logs = |entry: &std::fs::DirEntry| {
            std::fs::read_to_string(entry.path().join("Cargo.toml")).is_ok_and(|text| text.contains("\ntracing."))
        };
        let names: Vec<_> = crates.map(Result::unwrap).filter(logs).map(|entry| entry.file_name()).collect();
        assert!(names.len() > 3, "{names:?}");
        for name in names.iter().filter_map(|name| name.to_str()).filter(|name| *name != "testbed") {
            assert!(OUR_TARGETS.contains(&name), "{name}");
        }
    }

    #[test]
    fn libraries_log_less_than_we_do() {
        for (level, begins) in [("error", "error,"), ("warn", "warn,"), ("info", "warn,"), ("debug", "info,")] {
            let directives = directives(level);
            assert!(directives.starts_with(begins) && directives.contains(&format!(",store={level},")), "{directives}");
            assert!(EnvFilter::try_new(&directives).is_ok(), "{directives}");
        }
        assert_eq!(directives("trace"), "trace");
    }

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
        let plain = line(LogFormat::Text(Colours::default()));
        assert!(plain.starts_with("1970-01-01T00:00:00.000000Z  INFO request runtime="));
        let coloured = line(LogFormat::Text(Colours::ANSI));
        assert_eq!(regex::Regex::new("\x1b\\[[0-9]m|\x1b\\[32m").unwrap().replace_all(&coloured, ""), plain);
    }
}
