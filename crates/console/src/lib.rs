//! The developer console: server-rendered pages with a little script.
//!
//! `routes` lists the whole site. A handler that takes a `SignedIn` runs only with a valid session, and one that takes a
//! `Form` only for a form that was posted from a page of the console. Every read and change passes the viewer to the
//! store, which enforces access.

mod counters;
mod credentials;
mod keys;
mod limits;
mod overview;
mod page;
mod people;
mod playground;
mod routes;
mod sign_in;
mod usage;

use std::sync::Arc;

use api::Api;
use http::Request;
use hyper::body::Incoming;
use store::{AccountId, Store};
use tokio::sync::Semaphore;
use transport::{BodyBudget, ClientConnection, HostName, Rejection, Response, Site};
use webauthn_rs::Webauthn;

pub use crate::counters::SignInCounters;
pub use crate::sign_in::provider::{CALLBACK_PATH, IdentityProvider};

use crate::credentials::password::Passwords;
use crate::credentials::throttle::SignInThrottle;
use crate::credentials::wrong_passwords::WrongPasswordLog;
use crate::page::error::{ConsoleError, ConsoleResult};
use crate::page::request::ConsoleRequest;
use crate::page::response::ConsoleResponse;
use crate::page::session::SignedIn;

/// Max. memory for request bodies of signed-in people. Forms are small; the playground's requests may be as large as the
/// API's.
const MAX_BODY_MEMORY: usize = 2 << 20;

/// Max. back-channel logouts that are verified at the same time.
const MAX_LOGOUTS: usize = 8;

pub struct ConsoleSettings {
    pub host: HostName,
    /// As browsers write it: `https://console.example.com`.
    pub origin: String,
    pub api_base_url: String,
    /// The API's OpenAPI document, as JSON.
    pub api_description: String,
    /// Whether people can sign in with a password or passkey of this console.
    pub passwords: bool,
    /// Max. active keys per person.
    pub keys_per_person: u64,
    pub identity_provider: Option<IdentityProvider>,
    /// Whether notifications are sent.
    pub webhook: bool,
}

pub struct Console {
    settings: ConsoleSettings,
    store: Arc<Store>,
    api: Arc<Api>,
    passwords: Passwords,
    /// `None` where browsers do not allow passkeys.
    passkeys: Option<Webauthn>,
    sign_in_throttle: SignInThrottle,
    /// Permits for verifying back-channel logouts.
    logouts: Arc<Semaphore>,
    /// For bodies of signed-in people.
    body_budget: BodyBudget<AccountId>,
    sign_ins: Arc<SignInCounters>,
    wrong_passwords: WrongPasswordLog,
}

/// State of one worker thread.
pub struct Worker {
    console: Arc<Console>,
    /// Completes the playground's requests.
    api: api::Worker,
}

impl Console {
    /// Fails only if threads cannot be started.
    pub fn new(
        settings: ConsoleSettings,
        store: Arc<Store>,
        api: Arc<Api>,
        sign_ins: Arc<SignInCounters>,
    ) -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            passkeys: passkeys::relying_party(&settings.origin).filter(|_| settings.passwords),
            settings,
            wrong_passwords: WrongPasswordLog::new(store.clone()),
            api,
            passwords: Passwords::start()?,
            sign_in_throttle: SignInThrottle::new(store.clone()),
            logouts: Arc::new(Semaphore::new(MAX_LOGOUTS)),
            sign_ins,
            body_budget: BodyBudget::new(MAX_BODY_MEMORY),
            store,
        }))
    }

    pub fn host(&self) -> &HostName {
        &self.settings.host
    }

    fn provider(&self) -> ConsoleResult<&IdentityProvider> {
        self.settings.identity_provider.as_ref().ok_or(ConsoleError::NotFound)
    }

    fn passkeys(&self) -> ConsoleResult<&Webauthn> {
        self.passkeys.as_ref().ok_or(ConsoleError::NotFound)
    }

    /// Pages about passwords do not exist if all sign-ins go through the identity provider.
    fn require_passwords(&self) -> ConsoleResult<()> {
        if self.settings.passwords { Ok(()) } else { Err(ConsoleError::NotFound) }
    }

    /// Whether browsers reach the console over TLS, which a proxy may terminate.
    fn is_secure(&self) -> bool {
        self.settings.origin.starts_with("https://")
    }
}

impl Site for Console {
    type Worker = Worker;

    const NAME: &str = "console";

    fn worker(self: &Arc<Self>) -> Worker {
        Worker { console: self.clone(), api: api::Worker::new(self.api.clone()) }
    }

    async fn handle(worker: &Worker, connection: ClientConnection, request: Request<Incoming>) -> Response {
        if worker.api.api().covers(request.uri().path()) {
            let response = ConsoleResponse::from_api(api::reject_foreign_host(&worker.api, request));
            return response.into_response(worker.console.is_secure());
        }
        routes::handle(worker, ConsoleRequest::new(connection, request)).await
    }

    /// Signed-in people are served regardless of the number of anonymous connections.
    async fn handle_beyond_limit(
        worker: &Worker,
        connection: ClientConnection,
        request: Request<Incoming>,
    ) -> Response {
        let request = ConsoleRequest::new(connection, request);
        match SignedIn::from_request(&worker.console, &request).await {
            Ok(_) => routes::handle(worker, request).await,
            Err(_) => Self::reject(worker, Rejection::TooManyConnections),
        }
    }

    fn reject(worker: &Worker, why: Rejection) -> Response {
        api::reject(&worker.api, why)
    }

    /// The playground's requests run in the API.
    fn abort_in_flight(&self) {
        self.api.abort_in_flight();
    }
}
