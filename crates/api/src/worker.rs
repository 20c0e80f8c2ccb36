//! The API's state in one worker thread: its connections to the runtimes and its counters. `Api` is the shared state.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::FutureExt;
use runtimes::PoolClient;
use store::Ledger;
use tokio::sync::Notify;

use crate::api::Api;
use crate::counters::Counters;
use crate::error::ApiError;
use crate::inference::Runtimes;

pub struct Worker {
    pub(crate) api: Arc<Api>,
    pub(crate) ledger: Ledger,
    pub(crate) runtimes: Option<Runtimes>,
    pub(crate) counters: Arc<Counters>,
    abort: Arc<Notify>,
}

impl Worker {
    pub fn new(api: Arc<Api>) -> Self {
        let runtimes = api.pool().map(|pool| Runtimes::new(PoolClient::new(pool)));
        let (counters, abort) = (Arc::<Counters>::default(), Arc::<Notify>::default());
        api.register(counters.clone(), abort.clone());
        Self { ledger: api.ledger.for_this_thread(), api, runtimes, counters, abort }
    }

    pub fn api(&self) -> &Api {
        &self.api
    }

    /// Runs a request's steps. A panic becomes an error, and so does the end of the stop timeout. The caller pins the
    /// steps, because they take kilobytes, which should not be moved.
    pub(crate) async fn supervise<T>(
        &self,
        steps: Pin<&mut impl Future<Output = Result<T, ApiError>>>,
    ) -> Result<T, ApiError> {
        let steps = AssertUnwindSafe(steps).catch_unwind();
        tokio::select! {
            biased;
            result = steps => result.unwrap_or_else(|panic| Err(ApiError::internal(panic_message(&*panic)))),
            () = self.aborted() => Err(ApiError::stopping()),
        }
    }

    async fn aborted(&self) {
        let notified = self.abort.notified(); // registered first, so that no notification is missed
        if !self.api.is_aborting() {
            notified.await;
        }
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", text.unwrap_or("no message"))
}
