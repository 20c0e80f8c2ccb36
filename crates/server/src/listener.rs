//! Accepting connections, giving each to a thread, and stopping in good order; for whatever site is behind.
//!
//! One task accepts; each worker thread runs its own single-threaded runtime, and a connection stays with its worker: a
//! request never changes threads. Connections over the cap are told so by an answer, within bounds, and closed.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use chat::RequestId;
use http::{HeaderValue, Request, header};
use hyper::body::Incoming;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::admission::{Admission, Permit};
use crate::answer::{Answer, Refusal};
use crate::connection::{self, Timeouts};
use crate::site::Site;

/// Connections over the cap that are answered at once: a share of the cap, within bounds; more are closed without a word.
const REFUSED_SHARE: usize = 8;
const REFUSED_AT_ONCE: RangeInclusive<usize> = 8..=64;
const REFUSAL_TIMEOUTS: Timeouts = Timeouts { head: Duration::from_secs(2), idle: Duration::from_millis(100) };
/// How long to wait when the system has no more file descriptors to give.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What one may set about connections.
#[derive(Debug, Clone)]
pub struct ListenerSettings {
    /// Connections at the most.
    pub max_connections: usize,
    /// Threads that serve them.
    pub threads: usize,
    /// How long a connection may take for what.
    pub timeouts: Timeouts,
    /// How long requests under way may go on after the stop.
    pub stop: Duration,
}

/// How far the server has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It has not.
    Serving,
    /// What is under way is finished, nothing new begins.
    Finishing,
    /// Time is up.
    CutOff,
}

/// Serves a site on a listener until `stop` resolves and everything under way is finished or cut off. Returns how many
/// connections had to be cut off.
pub async fn serve<S: Site>(
    listener: TcpListener,
    site: Arc<S>,
    settings: ListenerSettings,
    stop: impl Future<Output = ()>,
) -> std::io::Result<usize> {
    let (stage, staged) = watch::channel(Stage::Serving);
    let mut workers = Vec::new();
    for number in 0..settings.threads.max(1) {
        workers.push(Worker::start(number, &site, settings.timeouts, staged.clone())?);
    }
    tokio::select! {
        () = accept(&listener, &settings, &workers) => {}
        () = stop => {}
    }
    drop(listener);

    let (done, live): (Vec<_>, Vec<_>) = workers.into_iter().map(|worker| (worker.done, worker.live)).unzip();
    stage.send_replace(Stage::Finishing);
    let all_done = async {
        for done in done {
            let _ = done.await; // a worker that panicked is done as well
        }
    };
    let mut all_done = std::pin::pin!(all_done);
    if tokio::time::timeout(settings.stop, all_done.as_mut()).await.is_ok() {
        return Ok(0);
    }
    let cut_off = live.iter().map(|live| live.load(Ordering::Relaxed)).sum();
    site.cut_off();
    stage.send_replace(Stage::CutOff);
    all_done.await;
    Ok(cut_off)
}

async fn accept(listener: &TcpListener, settings: &ListenerSettings, workers: &[Worker]) {
    let room = Admission::new(settings.max_connections);
    let refusals = Admission::new(
        (settings.max_connections / REFUSED_SHARE).clamp(*REFUSED_AT_ONCE.start(), *REFUSED_AT_ONCE.end()),
    );
    loop {
        let (socket, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, say: the next try may find some.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let peer = peer.ip().to_canonical();
        let (permit, welcome) = match room.enter(peer) {
            Some(permit) => (permit, true),
            None => match refusals.enter(peer) {
                Some(permit) => (permit, false),
                None => continue,
            },
        };
        // Handed over as a plain socket: each worker's runtime watches its own.
        let Ok(socket) = socket.into_std() else { continue };
        let least = workers.iter().min_by_key(|worker| worker.live.load(Ordering::Relaxed));
        if let Some(worker) = least {
            worker.live.fetch_add(1, Ordering::Relaxed);
            let _ = worker.accepted.send(Accepted { socket, peer, permit, welcome }); // fails only if the worker is gone
        }
    }
}

/// A connection on its way to a worker.
struct Accepted {
    socket: std::net::TcpStream,
    peer: IpAddr,
    permit: Permit<IpAddr>,
    welcome: bool,
}

/// A thread that serves connections.
struct Worker {
    accepted: mpsc::UnboundedSender<Accepted>,
    live: Arc<AtomicUsize>,
    done: oneshot::Receiver<()>,
}

impl Worker {
    fn start<S: Site>(
        number: usize,
        site: &Arc<S>,
        timeouts: Timeouts,
        stage: watch::Receiver<Stage>,
    ) -> std::io::Result<Self> {
        let (accepted, incoming) = mpsc::unbounded_channel();
        let (finished, done) = oneshot::channel();
        let live = Arc::new(AtomicUsize::new(0));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (counted, site) = (live.clone(), site.clone());
        std::thread::Builder::new().name(format!("{}-{number}", S::NAME)).spawn(move || {
            runtime.block_on(work::<S>(incoming, Arc::new(site.desk()), timeouts, stage, counted));
            drop(runtime); // with everything that was cut off, before we say that we are done
            let _ = finished.send(());
        })?;
        Ok(Self { accepted, live, done })
    }
}

/// One worker's life: serve what is accepted, until the stop and the end of all connections, or until the cut-off.
async fn work<S: Site>(
    mut incoming: mpsc::UnboundedReceiver<Accepted>,
    desk: Arc<S::Desk>,
    timeouts: Timeouts,
    mut stage: watch::Receiver<Stage>,
    live: Arc<AtomicUsize>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = incoming.recv() => match accepted {
                Some(accepted) => {
                    let connection = serve_one::<S>(accepted, desk.clone(), timeouts, stage.clone(), Live(live.clone()));
                    connections.spawn(connection);
                }
                None => break, // the acceptor has stopped
            },
            Some(_ended) = connections.join_next() => {}
        }
    }
    tokio::select! {
        () = async { while connections.join_next().await.is_some() {} } => {}
        _ = stage.wait_for(|stage| *stage == Stage::CutOff) => {}
    }
}

async fn serve_one<S: Site>(
    accepted: Accepted,
    desk: Arc<S::Desk>,
    timeouts: Timeouts,
    stage: watch::Receiver<Stage>,
    _live: Live,
) {
    let Accepted { socket, peer, permit: _permit, welcome } = accepted;
    let Ok(socket) = TcpStream::from_std(socket) else { return };
    let _ = socket.set_nodelay(true); // without it answers are merely slower
    if welcome {
        let answer = move |request| {
            let desk = desk.clone();
            async move { S::answer(&desk, peer, request).await }
        };
        connection::serve(socket, timeouts, stage, answer).await;
    } else {
        connection::serve(socket, REFUSAL_TIMEOUTS, stage, refuse).await;
    }
}

/// The answer to everyone over the cap.
async fn refuse(_request: Request<Incoming>) -> Answer {
    let mut answer = Refusal::no_room().into_answer(RequestId::now());
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// Counts a worker's connection while it lives.
struct Live(Arc<AtomicUsize>);

impl Drop for Live {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
