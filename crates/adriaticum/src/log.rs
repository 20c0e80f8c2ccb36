//! The log: text for a terminal, JSON otherwise; never message text, never a key.
//!
//! What is rare is written at once. The line that every request has is handed to a thread of its own, which writes many with one
//! call: so neither threads that serve requests wait for each other here, nor for whoever reads the log. If that one stands
//! still, lines are lost rather than requests held up, and the log says how many.

use std::io::{self, IsTerminal, Stderr, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tracing::Metadata;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Lines that may wait to be written.
const MOST_WAITING: usize = 16_384;
/// What is written at once.
const BATCH_BYTES: usize = 64 << 10;
/// How often it is looked whether lines were lost, and how long the last ones may take at the end.
const LOOK_EVERY: Duration = Duration::from_secs(1);

static QUEUE: OnceLock<Queue> = OnceLock::new();

/// Starts the log at a level. What llama.cpp has to say below an error is for those who ask for everything.
pub(crate) fn start(level: &str) {
    let filter = match level {
        "trace" => EnvFilter::new(level),
        _ => EnvFilter::new(format!("{level},llama-cpp-2=error")),
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(Out(QUEUE.get_or_init(Queue::start)));
    // A log that cannot be written must not end in a panic about it.
    let log = log.log_internal_errors(false);
    if io::stderr().is_terminal() {
        log.compact().with_target(false).init();
    } else {
        log.json().flatten_event(true).init();
    }
}

/// Waits for a moment until what was handed over is written.
pub(crate) fn finish() {
    let Some(orders) = QUEUE.get().and_then(|queue| queue.orders.as_ref()) else { return };
    let (done, is_done) = sync_channel(1);
    if orders.try_send(Order::Tell(done)).is_ok() {
        let _ = is_done.recv_timeout(LOOK_EVERY); // a reader that stands still is not waited for
    }
}

enum Order {
    Write(Box<[u8]>),
    /// Says when all before it is written.
    Tell(SyncSender<()>),
}

/// The way to the thread that writes.
struct Queue {
    /// None if there could be no such thread.
    orders: Option<SyncSender<Order>>,
    lost: Arc<AtomicU64>,
}

impl Queue {
    fn start() -> Self {
        let (orders, received) = sync_channel(MOST_WAITING);
        let lost = Arc::<AtomicU64>::default();
        let counted = lost.clone();
        let thread = std::thread::Builder::new().name("log".into()).spawn(move || write_out(&received, &counted));
        Self { orders: thread.is_ok().then_some(orders), lost }
    }
}

fn write_out(orders: &Receiver<Order>, lost: &AtomicU64) {
    let mut batch = Vec::with_capacity(BATCH_BYTES);
    loop {
        let mut next = match orders.recv_timeout(LOOK_EVERY) {
            Ok(order) => Some(order),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let mut waiting = Vec::new();
        while let Some(order) = next.take() {
            match order {
                Order::Write(line) => batch.extend_from_slice(&line),
                Order::Tell(done) => waiting.push(done),
            }
            if batch.len() < BATCH_BYTES {
                next = orders.try_recv().ok();
            }
        }
        let _ = io::stderr().write_all(&batch); // nobody could be told
        batch.clear();
        for done in waiting {
            let _ = done.try_send(()); // whoever has gone need not know
        }
        let lines = lost.swap(0, Ordering::Relaxed);
        if lines > 0 {
            tracing::warn!(lines, "the log could not keep up: lines about requests were lost");
        }
    }
}

/// Where lines go, by what they are about.
struct Out(&'static Queue);

/// Takes one line.
enum Line {
    Now(Stderr),
    Soon(&'static SyncSender<Order>, &'static AtomicU64),
}

impl<'a> MakeWriter<'a> for Out {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line::Now(io::stderr())
    }

    fn make_writer_for(&'a self, about: &Metadata<'_>) -> Line {
        match &self.0.orders {
            Some(orders) if about.target() == server::REQUEST_LOG => Line::Soon(orders, &self.0.lost),
            _ => self.make_writer(),
        }
    }
}

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match self {
            Self::Now(stderr) => stderr.write(line),
            Self::Soon(orders, lost) => {
                if orders.try_send(Order::Write(line.into())).is_err() {
                    lost.fetch_add(1, Ordering::Relaxed);
                }
                Ok(line.len())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(()) // standard error keeps nothing back
    }
}
