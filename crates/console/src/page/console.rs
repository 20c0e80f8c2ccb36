//! The console's settings, and the state that its threads share.

use std::sync::Arc;

use api::Api;
use store::{AccountId, Store};
use tokio::sync::Semaphore;
use transport::{BodyBudget, HostName};
use url::Url;
use webauthn_rs::{Webauthn, WebauthnBuilder};

use crate::credentials::{
    IdentityProvider, Passwords, SignInCounters, SignInOutcome, SignInThrottle, WrongPasswordLog,
};
use crate::page::{ConsoleError, ConsoleResult, found};

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
    pub(crate) settings: ConsoleSettings,
    pub(crate) store: Arc<Store>,
    pub(crate) api: Arc<Api>,
    pub(crate) passwords: Passwords,
    /// `None` where browsers do not allow passkeys.
    pub(crate) passkeys: Option<Webauthn>,
    pub(crate) sign_in_throttle: SignInThrottle,
    /// Permits for verifying back-channel logouts.
    pub(crate) logouts: Arc<Semaphore>,
    /// For bodies of signed-in people.
    pub(crate) body_budget: BodyBudget<AccountId>,
    sign_ins: Arc<SignInCounters>,
    pub(crate) wrong_passwords: WrongPasswordLog,
}

impl Console {
    pub fn new(
        settings: ConsoleSettings,
        store: Arc<Store>,
        api: Arc<Api>,
        sign_ins: Arc<SignInCounters>,
    ) -> Arc<Self> {
        Arc::new(Self {
            passkeys: relying_party(&settings.origin).filter(|_| settings.passwords),
            settings,
            wrong_passwords: WrongPasswordLog::new(store.clone()),
            api,
            passwords: Passwords::new(),
            sign_in_throttle: SignInThrottle::new(store.clone()),
            logouts: Arc::new(Semaphore::new(MAX_LOGOUTS)),
            sign_ins,
            body_budget: BodyBudget::new(MAX_BODY_MEMORY),
            store,
        })
    }

    pub fn host(&self) -> &HostName {
        &self.settings.host
    }

    pub(crate) fn provider(&self) -> ConsoleResult<&IdentityProvider> {
        self.settings.identity_provider.as_ref().ok_or(ConsoleError::NotFound)
    }

    pub(crate) fn passkeys(&self) -> ConsoleResult<&Webauthn> {
        self.passkeys.as_ref().ok_or(ConsoleError::NotFound)
    }

    /// Pages about passwords do not exist if all sign-ins go through the identity provider.
    pub(crate) fn require_passwords(&self) -> ConsoleResult<()> {
        found(self.settings.passwords)
    }

    pub(crate) fn count_sign_in(&self, outcome: SignInOutcome) {
        self.sign_ins.add(outcome as usize);
    }

    /// Whether browsers reach the console over TLS, which a proxy may terminate.
    pub(crate) fn is_secure(&self) -> bool {
        self.settings.origin.starts_with("https://")
    }
}

/// `None` where browsers do not allow passkeys: if the origin is an IP address.
fn relying_party(origin: &str) -> Option<Webauthn> {
    let origin = Url::parse(origin).ok()?;
    WebauthnBuilder::new(origin.domain()?, &origin).ok()?.rp_name("Adriaticum").build().ok()
}
