//! Accepting connections, giving each to a thread, and stopping in good order; for whatever site is behind.
//!
//! One task accepts; each worker thread runs its own single-threaded runtime, and a connection stays with its worker: a
//! request never changes threads. Connections over the cap are told so by an answer, within bounds, and closed.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::{HeaderValue, Request, header};
use hyper::body::Incoming;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::admission::{Admission, Permit};
use crate::answer::Answer;
use crate::body::Upload;
use crate::connection::{self, Handler, Timeouts};
use crate::phase::Phase;
use crate::proxies::TrustedProxies;
use crate::site::{Site, Unserved};
use crate::tls::{self, Tls};

/// Connections over the cap that are answered at once: a share of the cap, within bounds; more are closed without a word.
const REFUSED_SHARE: usize = 8;
const REFUSED_AT_ONCE: RangeInclusive<usize> = 8..=64;
const REFUSAL_TIMEOUTS: Timeouts = Timeouts { head: Duration::from_secs(2), idle: Duration::from_millis(100) };
/// How long to wait when the system has no more file descriptors to give.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections that may have been waiting to be accepted when the stop began.
const LAST_ONES: usize = 1024;

/// How long those who are cut off may take to read the answer that says so.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// What one may set about connections.
#[derive(Clone)]
pub struct ListenerSettings {
    /// Connections at the most.
    pub max_connections: usize,
    /// Threads that serve them.
    pub threads: usize,
    /// How long a connection may take for what.
    pub timeouts: Timeouts,
    /// How long requests under way may go on after the stop.
    pub stop: Duration,
    /// Whose word about where requests come from is taken.
    pub proxies: TrustedProxies,
    /// How TLS is spoken; in the clear if it is not.
    pub tls: Option<Tls>,
}

/// How far a listener has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// It has not.
    Serving,
    /// Everyone is served, and asked to open no further request on the same connection.
    Draining,
    /// What is under way is finished, nothing new begins.
    Finishing,
    /// Time is up.
    CutOff,
}

/// Serves a site on a listener until the service stops and everything under way is finished or cut off. Returns how many
/// connections had to be cut off.
pub async fn serve<S: Site>(
    listener: TcpListener,
    site: Arc<S>,
    settings: ListenerSettings,
    phase: watch::Receiver<Phase>,
) -> std::io::Result<usize> {
    let (stage, staged) = watch::channel(Stage::Serving);
    let mut workers = Vec::new();
    for number in 0..settings.threads.max(1) {
        workers.push(Worker::start(number, &site, &settings, staged.clone())?);
    }
    let mut reception = Reception::new(&settings, &workers);
    tokio::select! {
        () = reception.accept_all(&listener) => {}
        () = follow(phase, &stage) => {}
    }
    reception.accept_last(listener);

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
    if tokio::time::timeout(LAST_ANSWERS, all_done.as_mut()).await.is_err() {
        stage.send_replace(Stage::CutOff);
        all_done.await;
    }
    Ok(cut_off)
}

/// Follows the service to its stop.
async fn follow(mut phase: watch::Receiver<Phase>, stage: &watch::Sender<Stage>) {
    // Whoever decides about the stop may be gone: then there is none to wait for but this one.
    let _ = phase.wait_for(|phase| *phase >= Phase::Draining).await;
    stage.send_replace(Stage::Draining);
    let _ = phase.wait_for(|phase| *phase == Phase::Stopping).await;
}

/// Who takes places: an address; but a proxy brings many people, so each of its connections stands for itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Party {
    Address(IpAddr),
    Proxied(u64),
}

/// Finds room for whoever comes, and a worker.
struct Reception<'a> {
    room: Admission<Party>,
    refusals: Admission<Party>,
    proxies: &'a TrustedProxies,
    proxied: u64,
    workers: &'a [Worker],
}

impl<'a> Reception<'a> {
    fn new(settings: &'a ListenerSettings, workers: &'a [Worker]) -> Self {
        let refused = settings.max_connections / REFUSED_SHARE;
        Self {
            room: Admission::new(settings.max_connections),
            refusals: Admission::new(refused.clamp(*REFUSED_AT_ONCE.start(), *REFUSED_AT_ONCE.end())),
            proxies: &settings.proxies,
            proxied: 0,
            workers,
        }
    }

    async fn accept_all(&mut self, listener: &TcpListener) {
        loop {
            match listener.accept().await {
                // Handed over as a plain socket: each worker's runtime watches its own.
                Ok((socket, peer)) => drop(socket.into_std().map(|socket| self.receive(socket, peer.ip()))),
                Err(error) => {
                    // Out of file descriptors, say: the next try may find some.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Takes in those who knocked before the door is closed: their requests may be on the way already.
    fn accept_last(&mut self, listener: TcpListener) {
        // The system itself is asked, because we may not have been told of them yet.
        let Ok(listener) = listener.into_std() else { return };
        for (socket, peer) in std::iter::from_fn(|| listener.accept().ok()).take(LAST_ONES) {
            if socket.set_nonblocking(true).is_ok() {
                self.receive(socket, peer.ip());
            }
        }
    }

    fn receive(&mut self, socket: std::net::TcpStream, peer: IpAddr) {
        let peer = peer.to_canonical();
        let party = self.party(peer);
        let (permit, welcome) = match self.room.enter(party.clone()) {
            Some(permit) => (permit, true),
            None => match self.refusals.enter(party) {
                Some(permit) => (permit, false),
                None => return,
            },
        };
        let least = self.workers.iter().min_by_key(|worker| worker.live.load(Ordering::Relaxed));
        if let Some(worker) = least {
            worker.live.fetch_add(1, Ordering::Relaxed);
            let _ = worker.accepted.send(Accepted { socket, peer, permit, welcome }); // fails only if the worker is gone
        }
    }

    fn party(&mut self, peer: IpAddr) -> Party {
        if !self.proxies.contain(peer) {
            return Party::Address(peer);
        }
        self.proxied += 1;
        Party::Proxied(self.proxied)
    }
}

/// A connection on its way to a worker.
struct Accepted {
    socket: std::net::TcpStream,
    peer: IpAddr,
    permit: Permit<Party>,
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
        settings: &ListenerSettings,
        stage: watch::Receiver<Stage>,
    ) -> std::io::Result<Self> {
        let (accepted, incoming) = mpsc::unbounded_channel();
        let (finished, done) = oneshot::channel();
        let live = Arc::new(AtomicUsize::new(0));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (counted, site) = (live.clone(), site.clone());
        let (timeouts, proxies, tls) = (settings.timeouts, settings.proxies.clone(), settings.tls.clone());
        std::thread::Builder::new().name(format!("{}-{number}", S::NAME)).spawn(move || {
            let post = Post::<S> { desk: Arc::new(site.desk()), timeouts, proxies, tls, stage };
            runtime.block_on(work(incoming, post, counted));
            drop(runtime); // with everything that was cut off, before we say that we are done
            let _ = finished.send(());
        })?;
        Ok(Self { accepted, live, done })
    }
}

/// What all connections of a worker have in common.
struct Post<S: Site> {
    desk: Arc<S::Desk>,
    timeouts: Timeouts,
    proxies: TrustedProxies,
    tls: Option<Tls>,
    stage: watch::Receiver<Stage>,
}

/// One worker's life: serve what is accepted, until the stop and the end of all connections, or until the cut-off.
async fn work<S: Site>(mut incoming: mpsc::UnboundedReceiver<Accepted>, mut post: Post<S>, live: Arc<AtomicUsize>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = incoming.recv() => match accepted {
                Some(accepted) => {
                    connections.spawn(serve_one(accepted, &post, Live(live.clone())));
                }
                None => break, // the acceptor has stopped
            },
            Some(_ended) = connections.join_next() => {}
        }
    }
    tokio::select! {
        () = async { while connections.join_next().await.is_some() {} } => {}
        _ = post.stage.wait_for(|stage| *stage == Stage::CutOff) => {}
    }
}

fn serve_one<S: Site>(accepted: Accepted, post: &Post<S>, live: Live) -> impl Future<Output = ()> + use<S> {
    let Post { desk, timeouts, proxies, tls, stage } = post;
    let (desk, timeouts, proxies, tls, stage) = (desk.clone(), *timeouts, proxies.clone(), tls.clone(), stage.clone());
    async move {
        let Accepted { socket, peer, permit: _permit, welcome } = accepted;
        let _live = live;
        let Ok(socket) = TcpStream::from_std(socket) else { return };
        let _ = socket.set_nodelay(true); // without it answers are merely slower
        let in_the_clear = Arc::new(Refusing::<S> { desk: desk.clone(), why: Unserved::InTheClear });
        if welcome {
            let handler = Arc::new(Serving::<S> { desk, proxies, peer });
            serve_socket(socket, tls, timeouts, stage, handler, in_the_clear).await;
        } else {
            let handler = Arc::new(Refusing::<S> { desk, why: Unserved::TooManyConnections });
            serve_socket(socket, tls, REFUSAL_TIMEOUTS, stage, handler, in_the_clear).await;
        }
    }
}

/// Serves a connection as its listener speaks: in the clear, or with TLS.
async fn serve_socket(
    socket: TcpStream,
    tls: Option<Tls>,
    timeouts: Timeouts,
    stage: watch::Receiver<Stage>,
    handler: Arc<dyn Handler>,
    in_the_clear: Arc<dyn Handler>,
) {
    let Some(tls) = tls else { return connection::serve(socket, timeouts, stage, handler).await };
    match tokio::time::timeout(timeouts.head, tls.accept(socket)).await {
        Ok(Ok(tls::Accepted::Encrypted { stream, http2 })) => {
            connection::serve_stream(stream, http2, timeouts, stage, handler).await;
        }
        Ok(Ok(tls::Accepted::InTheClear(socket))) => {
            connection::serve(socket, REFUSAL_TIMEOUTS, stage, in_the_clear).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => {}
    }
}

/// Has the site answer whatever comes from a peer.
struct Serving<S: Site> {
    desk: Arc<S::Desk>,
    proxies: TrustedProxies,
    peer: IpAddr,
}

impl<S: Site> Handler for Serving<S> {
    fn answer(self: Arc<Self>, request: Request<Incoming>) -> BoxFuture<'static, Answer> {
        let visitor = self.proxies.visitor(self.peer, request.headers());
        Box::pin(async move { S::answer(&self.desk, visitor, request).await })
    }

    fn refuse(&self, why: Unserved) -> Answer {
        S::refuse(&self.desk, why)
    }
}

/// Has the site refuse whatever comes, for one reason, and ends the connection.
struct Refusing<S: Site> {
    desk: Arc<S::Desk>,
    why: Unserved,
}

impl<S: Site> Handler for Refusing<S> {
    fn answer(self: Arc<Self>, request: Request<Incoming>) -> BoxFuture<'static, Answer> {
        let (head, incoming) = request.into_parts();
        drop(Upload::new(incoming, &head.headers)); // what is still being sent is drained
        let mut answer = self.refuse(self.why);
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        Box::pin(std::future::ready(answer))
    }

    fn refuse(&self, _why: Unserved) -> Answer {
        S::refuse(&self.desk, self.why)
    }
}

/// Counts a worker's connection while it lives.
struct Live(Arc<AtomicUsize>);

impl Drop for Live {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
