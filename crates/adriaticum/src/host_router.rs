//! API and console on one listener: the request's host decides which of them handles it.
//!
//! The console's requests run on separate threads here, too. Its pages may sum up many rows, its changes wait for the
//! disk, and SQLite does both on the calling thread: no caller of the API may wait for that.

use std::sync::Arc;

use api::Api;
use console::Console;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use transport::{ClientConnection, Rejection, Response, ResponseBody, Site};

pub(crate) struct HostRouter {
    api: Arc<Api>,
    console: Arc<Console>,
    threads: Vec<ConsoleThread>,
}

impl HostRouter {
    pub(crate) fn start(api: Arc<Api>, console: Arc<Console>, threads: usize) -> std::io::Result<Self> {
        let threads = (0..threads).map(|number| ConsoleThread::start(number, &console));
        Ok(Self { threads: threads.collect::<std::io::Result<_>>()?, api, console })
    }

    fn is_for_console(&self, request: Request<Incoming>) -> (bool, Request<Incoming>) {
        let (head, body) = request.into_parts();
        (self.console.host().is_named_by(&head), Request::from_parts(head, body))
    }

    /// Runs a request to the console on the thread with the fewest tasks. If the client disconnects, this future is
    /// dropped, and the request with it.
    async fn run_console(
        &self,
        connection: ClientConnection,
        request: Request<Incoming>,
        is_admitted: bool,
    ) -> Response {
        let mut task = JoinSet::new();
        if let Some(thread) = self.threads.iter().min_by_key(|thread| thread.runtime.metrics().num_alive_tasks()) {
            let worker = thread.worker.clone();
            let handle = async move {
                match is_admitted {
                    true => Console::handle(&worker, connection, request).await,
                    false => Console::handle_beyond_limit(&worker, connection, request).await,
                }
            };
            task.spawn_on(handle, &thread.runtime);
        }
        match task.join_next().await {
            Some(Ok(response)) => response,
            // The thread was stopped, so the client no longer reads the response.
            _ => {
                let mut response = Response::new(ResponseBody::from("The console was stopped."));
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                response
            }
        }
    }
}

/// A thread for requests to the console. It ends when this is dropped.
struct ConsoleThread {
    runtime: Handle,
    worker: Arc<<Console as Site>::Worker>,
    _stop: oneshot::Sender<()>,
}

impl ConsoleThread {
    fn start(number: usize, console: &Arc<Console>) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (handle, (stop, stopped)) = (runtime.handle().clone(), oneshot::channel());
        let run = move || drop(runtime.block_on(stopped));
        std::thread::Builder::new().name(format!("{}-{number}", Console::NAME)).spawn(run)?;
        Ok(Self { runtime: handle, worker: Arc::new(console.worker()), _stop: stop })
    }
}

pub(crate) struct HostRouterWorker {
    site: Arc<HostRouter>,
    api: <Api as Site>::Worker,
}

impl Site for HostRouter {
    type Worker = HostRouterWorker;

    const NAME: &str = "site";

    fn worker(self: &Arc<Self>) -> HostRouterWorker {
        HostRouterWorker { site: self.clone(), api: self.api.worker() }
    }

    async fn handle(worker: &HostRouterWorker, connection: ClientConnection, request: Request<Incoming>) -> Response {
        let (is_console, request) = worker.site.is_for_console(request);
        match is_console {
            true => worker.site.run_console(connection, request, true).await,
            // The API answers 404 to a host that is neither.
            false => Api::handle(&worker.api, connection, request).await,
        }
    }

    async fn handle_beyond_limit(
        worker: &HostRouterWorker,
        connection: ClientConnection,
        request: Request<Incoming>,
    ) -> Response {
        let (is_console, request) = worker.site.is_for_console(request);
        match is_console {
            true => worker.site.run_console(connection, request, false).await,
            false => Api::handle_beyond_limit(&worker.api, connection, request).await,
        }
    }

    fn reject(worker: &HostRouterWorker, why: Rejection) -> Response {
        Api::reject(&worker.api, why)
    }

    fn abort_in_flight(&self) {
        self.api.abort_in_flight();
    }
}
