//! Accepts connections, hands each to a worker thread, and drains them when the service stops; for any site.
//!
//! One task accepts; each worker thread runs its own single-threaded runtime. A connection stays with its worker, so a
//! request never changes threads. A connection over the limit replaces an idle one. If there is none, the site responds
//! to one request, within limits, and the connection is closed.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use admission::{Admission, Permit};
use futures_util::future::BoxFuture;
use http::{HeaderValue, Request, header};
use hyper::body::Incoming;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use crate::activity::Activity;
use crate::connection::{self, Handler, Timeouts};
use crate::connections::{ConnectionSlot, ConnectionSlots, Peer, Peers};
use crate::lifecycle::Lifecycle;
use crate::proxies::TrustedProxies;
use crate::response_body::Response;
use crate::site::{ClientConnection, Rejection, Site};
use crate::tls::{self, Tls};
use crate::upload::Upload;

/// Connections over the limit that get a response at the same time, and idle ones that are being closed for others:
/// each a share of the limit, clamped. Further new connections are closed without a response.
const BEYOND_LIMIT_SHARE: usize = 8;
const BEYOND_LIMIT: RangeInclusive<usize> = 8..=64;
const OVERFLOW_LOG_INTERVAL: Duration = Duration::from_secs(60);
const REJECTION_TIMEOUTS: Timeouts = Timeouts { head: Duration::from_secs(2), idle: Duration::from_millis(100) };
/// Before accepting again when the system is out of file descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);
/// Connections that are still taken from the backlog when the listener closes.
const MAX_BACKLOG: usize = 1024;
/// Connections without a request are closed once proxies have used none of them for this long.
const UNUSED_BEFORE_CLOSE: Duration = Duration::from_millis(200);
/// The longest wait for that.
const MAX_UNUSED_WAIT: Duration = Duration::from_secs(5);
/// How long clients may take to read the response that says that their request was aborted.
const ABORT_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub struct ListenerSettings {
    pub max_connections: usize,
    /// Worker threads.
    pub threads: usize,
    pub timeouts: Timeouts,
    /// How long requests in flight may take after the stop.
    pub stop_timeout: Duration,
    pub proxies: TrustedProxies,
    /// Plaintext without.
    pub tls: Option<Tls>,
}

/// How far a listener has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DrainStage {
    Serving,
    /// Requests are served; clients are asked to open no further request on the same connection.
    Draining,
    /// Requests in flight are finished; no new ones are accepted.
    Finishing,
    /// Connections are dropped.
    Aborted,
}

/// Serves a site on a listener until the service stops and every request is finished or aborted. Returns how many
/// connections had to be aborted.
pub async fn serve<S: Site>(
    listener: TcpListener,
    site: Arc<S>,
    settings: ListenerSettings,
    lifecycle: watch::Receiver<Lifecycle>,
) -> std::io::Result<usize> {
    let (stage, stages) = watch::channel(DrainStage::Serving);
    let mut workers = Vec::new();
    for number in 0..settings.threads.max(1) {
        workers.push(WorkerHandle::start(number, &site, &settings, stages.clone())?);
    }
    let mut acceptor = Acceptor::new(&settings, &workers);
    tokio::select! {
        () = acceptor.accept_all(&listener) => {}
        () = follow(lifecycle, &stage) => {}
    }
    acceptor.accept_backlog(listener);
    stage.send_replace(DrainStage::Draining);
    let deadline = Instant::now() + settings.stop_timeout;
    let _ = tokio::time::timeout(settings.stop_timeout.min(MAX_UNUSED_WAIT), until_unused(&acceptor.slots)).await;
    stage.send_replace(DrainStage::Finishing);

    let (done, connections): (Vec<_>, Vec<_>) =
        workers.into_iter().map(|worker| (worker.done, worker.connection)).unzip();
    let all_done = async {
        for done in done {
            let _ = done.await; // a worker that panicked counts as done
        }
    };
    let mut all_done = std::pin::pin!(all_done);
    if tokio::time::timeout_at(deadline, all_done.as_mut()).await.is_ok() {
        return Ok(0);
    }
    let aborted = connections.iter().map(|connection| Arc::strong_count(connection) - 1).sum();
    site.abort_in_flight();
    if tokio::time::timeout(ABORT_TIMEOUT, all_done.as_mut()).await.is_err() {
        stage.send_replace(DrainStage::Aborted);
        all_done.await;
    }
    Ok(aborted)
}

/// Waits while requests arrive on connections that were kept open: a proxy that sends one while we close its connection
/// gets no response, and does not send a POST again. Each response ends its connection, so they become fewer.
async fn until_unused(slots: &ConnectionSlots) {
    let mut unused = slots.unused();
    while unused > 0 {
        tokio::time::sleep(UNUSED_BEFORE_CLOSE).await;
        let before = std::mem::replace(&mut unused, slots.unused());
        if unused >= before {
            return;
        }
    }
}

/// Follows the service's lifecycle to its stop. A dropped sender counts as a stop.
async fn follow(mut lifecycle: watch::Receiver<Lifecycle>, stage: &watch::Sender<DrainStage>) {
    let _ = lifecycle.wait_for(|now| *now >= Lifecycle::Draining).await;
    stage.send_replace(DrainStage::Draining);
    let _ = lifecycle.wait_for(|now| *now == Lifecycle::Stopping).await;
}

/// Admits connections and hands them to workers.
struct Acceptor<'a> {
    slots: ConnectionSlots,
    rejections: Admission<Peer>,
    peers: Peers<'a>,
    overflow: Overflow,
    workers: &'a [WorkerHandle],
}

impl<'a> Acceptor<'a> {
    fn new(settings: &'a ListenerSettings, workers: &'a [WorkerHandle]) -> Self {
        let beyond_limit = settings.max_connections / BEYOND_LIMIT_SHARE;
        let beyond_limit = beyond_limit.clamp(*BEYOND_LIMIT.start(), *BEYOND_LIMIT.end());
        Self {
            slots: ConnectionSlots::new(settings.max_connections, beyond_limit),
            rejections: Admission::new(beyond_limit),
            peers: Peers::new(&settings.proxies),
            overflow: Overflow::new(settings.max_connections),
            workers,
        }
    }

    async fn accept_all(&mut self, listener: &TcpListener) {
        loop {
            match listener.accept().await {
                // Handed over as a plain socket: each worker's runtime registers its own.
                Ok((socket, peer)) => drop(socket.into_std().map(|socket| self.dispatch(socket, peer.ip()))),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
    }

    /// Takes connections that are still in the system's backlog: their requests may have been sent already.
    fn accept_backlog(&mut self, listener: TcpListener) {
        // Asked synchronously, because the runtime may not have been notified of them yet.
        let Ok(listener) = listener.into_std() else { return };
        for (socket, peer) in std::iter::from_fn(|| listener.accept().ok()).take(MAX_BACKLOG) {
            if socket.set_nonblocking(true).is_ok() {
                self.dispatch(socket, peer.ip());
            }
        }
    }

    /// Hands a connection to the worker with the fewest.
    fn dispatch(&mut self, socket: std::net::TcpStream, address: IpAddr) {
        let address = address.to_canonical();
        let Some((slot, rejection)) = self.admit(address) else { return };
        let least_busy = self.workers.iter().min_by_key(|worker| Arc::strong_count(&worker.connection));
        if let Some(worker) = least_busy {
            let accepted = Accepted { socket, address, slot, rejection, _count: worker.connection.clone() };
            let _ = worker.accepted.send(accepted); // fails only if the worker has ended
        }
    }

    /// A slot, or one that only serves to reject the client, with the permit for that.
    fn admit(&mut self, address: IpAddr) -> Option<(ConnectionSlot, Option<Permit<Peer>>)> {
        let peer = self.peers.peer(address);
        if let Some((slot, is_replacement)) = self.slots.open(&peer) {
            if is_replacement {
                self.overflow.count(0, 1);
            }
            return Some((slot, None));
        }
        self.overflow.count(1, 0);
        self.rejections.enter(peer).map(|permit| (ConnectionSlot::beyond_limit(), Some(permit)))
    }
}

/// Logs occasionally that the limit of connections is exceeded.
struct Overflow {
    max_connections: usize,
    refused: u64,
    idle_closed: u64,
    logged: Option<Instant>,
}

impl Overflow {
    fn new(max_connections: usize) -> Self {
        Self { max_connections, refused: 0, idle_closed: 0, logged: None }
    }

    fn count(&mut self, refused: u64, idle_closed: u64) {
        self.refused += refused;
        self.idle_closed += idle_closed;
        if self.logged.is_none_or(|logged| logged.elapsed() >= OVERFLOW_LOG_INTERVAL) {
            let Self { max_connections, refused, idle_closed, .. } = *self;
            tracing::warn!(max_connections, refused, idle_closed, "more connections than may be open");
            *self = Self { logged: Some(Instant::now()), ..Self::new(max_connections) };
        }
    }
}

/// A connection on its way to a worker.
struct Accepted {
    socket: std::net::TcpStream,
    address: IpAddr,
    slot: ConnectionSlot,
    /// For a connection beyond the limit. Held until the connection ends.
    rejection: Option<Permit<Peer>>,
    /// Counts as one of its worker's connections while it exists.
    _count: Arc<()>,
}

/// The acceptor's side of a worker thread.
struct WorkerHandle {
    accepted: mpsc::UnboundedSender<Accepted>,
    /// Each of the worker's connections has a clone, so its references are their number.
    connection: Arc<()>,
    done: oneshot::Receiver<()>,
}

impl WorkerHandle {
    fn start<S: Site>(
        number: usize,
        site: &Arc<S>,
        settings: &ListenerSettings,
        stage: watch::Receiver<DrainStage>,
    ) -> std::io::Result<Self> {
        let (accepted, incoming) = mpsc::unbounded_channel();
        let (finished, done) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let site = site.clone();
        let (timeouts, proxies, tls) = (settings.timeouts, settings.proxies.clone(), settings.tls.clone());
        std::thread::Builder::new().name(format!("{}-{number}", S::NAME)).spawn(move || {
            let entered = runtime.enter(); // a worker may spawn tasks
            let worker = Arc::new(site.worker());
            drop(entered);
            let context = ConnectionContext::<S> { worker, timeouts, proxies, tls, stage };
            runtime.block_on(run_worker(incoming, context));
            drop(runtime); // drops all aborted tasks before this worker reports that it is done
            let _ = finished.send(());
        })?;
        Ok(Self { accepted, connection: Arc::new(()), done })
    }
}

/// Shorter than any timer that requests usually start.
const EARLIEST_TIMER: Duration = Duration::from_millis(200);

/// What all connections of a worker share.
struct ConnectionContext<S: Site> {
    worker: Arc<S::Worker>,
    timeouts: Timeouts,
    proxies: TrustedProxies,
    tls: Option<Tls>,
    stage: watch::Receiver<DrainStage>,
}

/// Serves connections until the acceptor has stopped and all connections have ended, or until they are aborted.
async fn run_worker<S: Site>(mut incoming: mpsc::UnboundedReceiver<Accepted>, mut context: ConnectionContext<S>) {
    let mut connections = JoinSet::new();
    // A new timer that is earlier than all others makes a runtime wake itself by a system call, and nearly every request
    // would do that. So there is always one that is earlier.
    let mut tick = tokio::time::interval(EARLIEST_TIMER);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = tick.tick(), if !connections.is_empty() => {}
            accepted = incoming.recv() => match accepted {
                Some(accepted) => {
                    connections.spawn(serve_accepted(accepted, &context));
                }
                None => break, // the acceptor has stopped
            },
            Some(_ended) = connections.join_next() => {}
        }
    }
    tokio::select! {
        () = async { while connections.join_next().await.is_some() {} } => {}
        _ = context.stage.wait_for(|stage| *stage == DrainStage::Aborted) => {}
    }
}

fn serve_accepted<S: Site>(accepted: Accepted, context: &ConnectionContext<S>) -> impl Future<Output = ()> + use<S> {
    let ConnectionContext { worker, timeouts, proxies, tls, stage } = context;
    let (worker, timeouts, proxies, tls, stage) =
        (worker.clone(), *timeouts, proxies.clone(), tls.clone(), stage.clone());
    async move {
        let Accepted { socket, address, slot, rejection, _count } = accepted;
        let is_admitted = rejection.is_none();
        let Ok(socket) = TcpStream::from_std(socket) else { return };
        let _ = socket.set_nodelay(true); // without it responses are merely slower
        let plaintext = Arc::new(Rejecting::<S> { worker: worker.clone(), why: Rejection::PlaintextOnTls });
        let timeouts = if is_admitted { timeouts } else { REJECTION_TIMEOUTS };
        let handler = Arc::new(Serving::<S> { worker, proxies, peer: address, is_admitted });
        serve_socket(socket, slot, tls, timeouts, stage, handler, plaintext).await;
    }
}

/// Serves a connection with TLS or without, as its listener is set up.
async fn serve_socket(
    socket: TcpStream,
    slot: ConnectionSlot,
    tls: Option<Tls>,
    timeouts: Timeouts,
    stage: watch::Receiver<DrainStage>,
    handler: Arc<dyn Handler>,
    plaintext: Arc<dyn Handler>,
) {
    let Some(tls) = tls else { return connection::serve(socket, slot, timeouts, stage, handler).await };
    let accepted = tokio::select! {
        accepted = tokio::time::timeout(timeouts.head, tls.accept(socket)) => accepted,
        () = slot.activity.evicted() => return,
    };
    match accepted {
        Ok(Ok(tls::Accepted::Encrypted { stream, is_http2 })) => {
            connection::serve_stream(stream, is_http2, slot, timeouts, stage, handler).await;
        }
        Ok(Ok(tls::Accepted::Plaintext(socket))) => {
            connection::serve(socket, slot, REJECTION_TIMEOUTS, stage, plaintext).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => {}
    }
}

/// Passes a peer's requests to the site.
struct Serving<S: Site> {
    worker: Arc<S::Worker>,
    proxies: TrustedProxies,
    peer: IpAddr,
    is_admitted: bool,
}

impl<S: Site> Handler for Serving<S> {
    fn handle(self: Arc<Self>, activity: &Arc<Activity>, request: Request<Incoming>) -> BoxFuture<'static, Response> {
        let address = self.proxies.client(self.peer, request.headers());
        let connection = ClientConnection { address, activity: activity.clone() };
        if self.is_admitted {
            return Box::pin(async move { S::handle(&self.worker, connection, request).await });
        }
        Box::pin(async move { closing(S::handle_beyond_limit(&self.worker, connection, request).await) })
    }

    fn reject(&self, why: Rejection) -> Response {
        S::reject(&self.worker, why)
    }
}

/// Rejects every request of a connection for one reason, by the site's response, and closes it.
struct Rejecting<S: Site> {
    worker: Arc<S::Worker>,
    why: Rejection,
}

impl<S: Site> Handler for Rejecting<S> {
    fn handle(self: Arc<Self>, _activity: &Arc<Activity>, request: Request<Incoming>) -> BoxFuture<'static, Response> {
        let (head, incoming) = request.into_parts();
        drop(Upload::new(incoming, &head.headers)); // drained, so that the client sees the response
        Box::pin(std::future::ready(closing(self.reject(self.why))))
    }

    fn reject(&self, _why: Rejection) -> Response {
        S::reject(&self.worker, self.why)
    }
}

/// The last response of its connection.
fn closing(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
