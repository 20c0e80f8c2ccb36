//! Accepts connections, hands each to a worker thread, and drains them when the service stops; for any site.
//!
//! One task accepts; each worker thread runs its own single-threaded runtime, and a connection stays with its worker: a
//! request never changes threads. Connections over the limit are rejected by the site, within limits, and closed.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use admission::{Admission, Permit};
use futures_util::future::BoxFuture;
use http::{HeaderValue, Request, header};
use hyper::body::Incoming;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::connection::{self, Handler, Timeouts};
use crate::lifecycle::Lifecycle;
use crate::network::network;
use crate::proxies::TrustedProxies;
use crate::response_body::Response;
use crate::site::{Rejection, Site};
use crate::tls::{self, Tls};
use crate::upload::Upload;

/// Connections over the limit that get a response at the same time: a share of the limit, clamped. Further ones are
/// closed at once.
const REJECTED_SHARE: usize = 8;
const REJECTED_AT_ONCE: RangeInclusive<usize> = 8..=64;
const REJECTION_TIMEOUTS: Timeouts = Timeouts { head: Duration::from_secs(2), idle: Duration::from_millis(100) };
/// Before accepting again when the system is out of file descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);
/// Connections that are still taken from the backlog when the listener closes.
const MAX_BACKLOG: usize = 1024;
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

/// How far a listener is on its way to the stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DrainStage {
    Serving,
    /// Requests are served; clients are asked to open no further request on the same connection.
    Draining,
    /// Requests in flight are finished; nothing new begins.
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

    let (done, connections): (Vec<_>, Vec<_>) =
        workers.into_iter().map(|worker| (worker.done, worker.connections)).unzip();
    stage.send_replace(DrainStage::Finishing);
    let all_done = async {
        for done in done {
            let _ = done.await; // a worker that panicked is done as well
        }
    };
    let mut all_done = std::pin::pin!(all_done);
    if tokio::time::timeout(settings.stop_timeout, all_done.as_mut()).await.is_ok() {
        return Ok(0);
    }
    let aborted = connections.iter().map(|count| count.load(Ordering::Relaxed)).sum();
    site.abort_in_flight();
    if tokio::time::timeout(ABORT_TIMEOUT, all_done.as_mut()).await.is_err() {
        stage.send_replace(DrainStage::Aborted);
        all_done.await;
    }
    Ok(aborted)
}

/// Follows the service's lifecycle to its stop. A sender that is gone counts as a stop.
async fn follow(mut lifecycle: watch::Receiver<Lifecycle>, stage: &watch::Sender<DrainStage>) {
    let _ = lifecycle.wait_for(|now| *now >= Lifecycle::Draining).await;
    stage.send_replace(DrainStage::Draining);
    let _ = lifecycle.wait_for(|now| *now == Lifecycle::Stopping).await;
}

/// Whom a connection counts against: its client's network. A trusted proxy carries many clients, so each of its
/// connections counts alone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Peer {
    Network(IpAddr),
    Proxied(u64),
}

/// Admits connections and hands them to workers.
struct Acceptor<'a> {
    admission: Admission<Peer>,
    rejections: Admission<Peer>,
    proxies: &'a TrustedProxies,
    proxied: u64,
    workers: &'a [WorkerHandle],
}

impl<'a> Acceptor<'a> {
    fn new(settings: &'a ListenerSettings, workers: &'a [WorkerHandle]) -> Self {
        let rejected = settings.max_connections / REJECTED_SHARE;
        Self {
            admission: Admission::new(settings.max_connections),
            rejections: Admission::new(rejected.clamp(*REJECTED_AT_ONCE.start(), *REJECTED_AT_ONCE.end())),
            proxies: &settings.proxies,
            proxied: 0,
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
        let peer = self.peer(address);
        let (permit, is_admitted) = match self.admission.enter(peer.clone()) {
            Some(permit) => (permit, true),
            None => match self.rejections.enter(peer) {
                Some(permit) => (permit, false),
                None => return,
            },
        };
        let least_busy = self.workers.iter().min_by_key(|worker| worker.connections.load(Ordering::Relaxed));
        if let Some(worker) = least_busy {
            worker.connections.fetch_add(1, Ordering::Relaxed);
            let accepted = Accepted { socket, address, permit, is_admitted };
            let _ = worker.accepted.send(accepted); // fails only if the worker is gone
        }
    }

    fn peer(&mut self, address: IpAddr) -> Peer {
        if !self.proxies.contain(address) {
            return Peer::Network(network(address));
        }
        self.proxied += 1;
        Peer::Proxied(self.proxied)
    }
}

/// A connection on its way to a worker.
struct Accepted {
    socket: std::net::TcpStream,
    address: IpAddr,
    permit: Permit<Peer>,
    is_admitted: bool,
}

/// The acceptor's side of a worker thread.
struct WorkerHandle {
    accepted: mpsc::UnboundedSender<Accepted>,
    connections: Arc<AtomicUsize>,
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
        let connections = Arc::new(AtomicUsize::new(0));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (count, site) = (connections.clone(), site.clone());
        let (timeouts, proxies, tls) = (settings.timeouts, settings.proxies.clone(), settings.tls.clone());
        std::thread::Builder::new().name(format!("{}-{number}", S::NAME)).spawn(move || {
            let context = ConnectionContext::<S> { worker: Arc::new(site.worker()), timeouts, proxies, tls, stage };
            runtime.block_on(run_worker(incoming, context, count));
            drop(runtime); // with everything that was aborted, before we say that we are done
            let _ = finished.send(());
        })?;
        Ok(Self { accepted, connections, done })
    }
}

/// What all connections of a worker share.
struct ConnectionContext<S: Site> {
    worker: Arc<S::Worker>,
    timeouts: Timeouts,
    proxies: TrustedProxies,
    tls: Option<Tls>,
    stage: watch::Receiver<DrainStage>,
}

/// Serves what is accepted until the acceptor has stopped and all connections have ended, or until they are aborted.
async fn run_worker<S: Site>(
    mut incoming: mpsc::UnboundedReceiver<Accepted>,
    mut context: ConnectionContext<S>,
    count: Arc<AtomicUsize>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = incoming.recv() => match accepted {
                Some(accepted) => {
                    connections.spawn(serve_accepted(accepted, &context, ConnectionCount(count.clone())));
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

fn serve_accepted<S: Site>(
    accepted: Accepted,
    context: &ConnectionContext<S>,
    count: ConnectionCount,
) -> impl Future<Output = ()> + use<S> {
    let ConnectionContext { worker, timeouts, proxies, tls, stage } = context;
    let (worker, timeouts, proxies, tls, stage) =
        (worker.clone(), *timeouts, proxies.clone(), tls.clone(), stage.clone());
    async move {
        let Accepted { socket, address, permit: _permit, is_admitted } = accepted;
        let _count = count;
        let Ok(socket) = TcpStream::from_std(socket) else { return };
        let _ = socket.set_nodelay(true); // without it responses are merely slower
        let plaintext = Arc::new(Rejecting::<S> { worker: worker.clone(), why: Rejection::PlaintextOnTls });
        if is_admitted {
            let handler = Arc::new(Serving::<S> { worker, proxies, peer: address });
            serve_socket(socket, tls, timeouts, stage, handler, plaintext).await;
        } else {
            let handler = Arc::new(Rejecting::<S> { worker, why: Rejection::TooManyConnections });
            serve_socket(socket, tls, REJECTION_TIMEOUTS, stage, handler, plaintext).await;
        }
    }
}

/// Serves a connection with TLS or without, as its listener is set up.
async fn serve_socket(
    socket: TcpStream,
    tls: Option<Tls>,
    timeouts: Timeouts,
    stage: watch::Receiver<DrainStage>,
    handler: Arc<dyn Handler>,
    plaintext: Arc<dyn Handler>,
) {
    let Some(tls) = tls else { return connection::serve(socket, timeouts, stage, handler).await };
    match tokio::time::timeout(timeouts.head, tls.accept(socket)).await {
        Ok(Ok(tls::Accepted::Encrypted { stream, is_http2 })) => {
            connection::serve_stream(stream, is_http2, timeouts, stage, handler).await;
        }
        Ok(Ok(tls::Accepted::Plaintext(socket))) => {
            connection::serve(socket, REJECTION_TIMEOUTS, stage, plaintext).await;
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
}

impl<S: Site> Handler for Serving<S> {
    fn handle(self: Arc<Self>, request: Request<Incoming>) -> BoxFuture<'static, Response> {
        let client = self.proxies.client(self.peer, request.headers());
        Box::pin(async move { S::handle(&self.worker, client, request).await })
    }

    fn reject(&self, why: Rejection) -> Response {
        S::reject(&self.worker, why)
    }
}

/// Has the site reject every request, for one reason, and closes the connection.
struct Rejecting<S: Site> {
    worker: Arc<S::Worker>,
    why: Rejection,
}

impl<S: Site> Handler for Rejecting<S> {
    fn handle(self: Arc<Self>, request: Request<Incoming>) -> BoxFuture<'static, Response> {
        let (head, incoming) = request.into_parts();
        drop(Upload::new(incoming, &head.headers)); // drained, so that the client sees the response
        let mut response = self.reject(self.why);
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        Box::pin(std::future::ready(response))
    }

    fn reject(&self, _why: Rejection) -> Response {
        S::reject(&self.worker, self.why)
    }
}

/// Counts a worker's connection while it lives.
struct ConnectionCount(Arc<AtomicUsize>);

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_of_one_network_count_together_and_a_proxys_connections_alone() {
        let settings = ListenerSettings {
            max_connections: 10,
            threads: 1,
            timeouts: REJECTION_TIMEOUTS,
            stop_timeout: Duration::ZERO,
            proxies: "2001:db8:9::/48".parse().unwrap(),
            tls: None,
        };
        let mut acceptor = Acceptor::new(&settings, &[]);
        let mut admitted = |prefix: &str| {
            let peers: Vec<_> =
                (0..20).map(|last| acceptor.peer(format!("{prefix}:{last}").parse().unwrap())).collect();
            let permits: Vec<_> = peers.into_iter().filter_map(|peer| acceptor.admission.enter(peer)).collect();
            permits.len()
        };
        assert_eq!(admitted("2001:db8::7"), 8, "one network, as greedy as one address may be");
        assert_eq!(admitted("2001:db8:9::7"), 10, "clients of a proxy");
    }
}
