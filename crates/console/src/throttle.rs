//! Sign-in is slowed down for those who keep failing, never locked: an account under attack must still open for its
//! owner. Failures count by network and by account, for all replicas together, and decay. How many attempts may wait is
//! limited, in all and for each network, in fair shares.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use admission::FairShare;
use http::StatusCode;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use store::{Email, Store, StoreError};
use transport::network;

/// Failures that add no delay.
const FREE_FAILURES: f64 = 4.0;
const DELAY_PER_FAILURE: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(8);
/// Attempts in flight: those that wait out a delay, wait for their turn or are verified.
const MAX_ATTEMPTS: usize = 128;
const MAX_ATTEMPTS_PER_NETWORK: usize = 8;

/// The delay that so many failures impose.
fn delay(failures: f64) -> Duration {
    DELAY_PER_FAILURE.mul_f64((failures - FREE_FAILURES).max(0.0)).min(MAX_DELAY)
}

pub(crate) struct SignInThrottle {
    store: Arc<Store>,
    attempts: Mutex<FairShare<IpAddr>>,
}

/// Why an attempt is refused at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Crowded {
    /// By other attempts of its own network.
    Network,
    /// By attempts of others.
    Everyone,
}

impl Crowded {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::Network => StatusCode::TOO_MANY_REQUESTS,
            Self::Everyone => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// For the person who is refused.
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::Network => "Too many attempts from your address. Please try again in a few seconds.",
            Self::Everyone => "Too many people are signing in right now. Please try again in a few seconds.",
        }
    }
}

impl SignInThrottle {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        Self { store, attempts: Mutex::new(FairShare::new(MAX_ATTEMPTS)) }
    }

    /// An attempt to guess an account's password, after the delay that earlier failures impose. Without an account only
    /// the network's failures count.
    pub(crate) async fn begin(
        &self,
        address: IpAddr,
        account: Option<&Email>,
    ) -> Result<Result<Attempt<'_>, Crowded>, StoreError> {
        let mut attempt = match self.enter(address) {
            Ok(attempt) => attempt,
            Err(crowded) => return Ok(Err(crowded)),
        };
        attempt.account = account.map(account_subject);
        let failures = self.store.sign_in_failures(&attempt.subjects()).await?;
        tokio::time::sleep(delay(failures)).await;
        Ok(Ok(attempt))
    }

    /// For what costs work but is no guess.
    pub(crate) fn enter(&self, address: IpAddr) -> Result<Attempt<'_>, Crowded> {
        let network = network(address);
        let mut attempts = self.attempts.lock();
        let held = attempts.held(&network);
        if held < MAX_ATTEMPTS_PER_NETWORK && attempts.enter(network) {
            return Ok(Attempt {
                throttle: self,
                network,
                network_subject: format!("network {network}"),
                account: None,
            });
        }
        Err(if held > 0 { Crowded::Network } else { Crowded::Everyone })
    }
}

/// Of a fixed size, whatever was typed. Addresses that are nobody's are not stored as they were typed.
fn account_subject(email: &Email) -> String {
    format!("account {}", base16ct::lower::encode_string(&Sha256::digest(email.as_str())))
}

/// An attempt in flight, counted while it exists. Only with one is a password hashed.
pub(crate) struct Attempt<'a> {
    throttle: &'a SignInThrottle,
    network: IpAddr,
    /// What failures are counted by.
    network_subject: String,
    account: Option<String>,
}

impl Attempt<'_> {
    pub(crate) fn network(&self) -> IpAddr {
        self.network
    }

    pub(crate) async fn failed(self) -> Result<(), StoreError> {
        let own = self.own_subject();
        let subjects: Vec<_> = self.subjects().into_iter().chain(own.as_deref()).collect();
        self.throttle.store.add_sign_in_failure(&subjects).await
    }

    /// Forgets what this account failed from this network, as a part of the network's failures. Those of other accounts
    /// stay: a guesser may have an account as well. So do the account's, from other networks.
    pub(crate) async fn succeeded(self) -> Result<(), StoreError> {
        match self.own_subject() {
            Some(own) => self.throttle.store.forget_sign_in_failures(&own, &self.network_subject).await,
            None => Ok(()),
        }
    }

    /// The account from this network.
    fn own_subject(&self) -> Option<String> {
        self.account.as_ref().map(|account| format!("{account} from {}", self.network))
    }

    fn subjects(&self) -> Vec<&str> {
        [self.network_subject.as_str()].into_iter().chain(self.account.as_deref()).collect()
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.throttle.attempts.lock().leave(&self.network);
    }
}

#[cfg(test)]
impl SignInThrottle {
    pub(crate) async fn with_own_store() -> (Self, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&store::Database::Sqlite(folder.path().join("test.db"))).await.unwrap();
        (Self::new(Arc::new(store)), folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_64_is_one_visitor_and_leaves_room_for_others() {
        let (throttle, _folder) = SignInThrottle::with_own_store().await;
        let of = |prefix: &str| -> Vec<_> {
            let addresses = (1..=MAX_ATTEMPTS * 2).map(|last| format!("{prefix}::{last:x}").parse().unwrap());
            addresses.filter_map(|address| throttle.enter(address).ok()).collect()
        };
        let held = of("2001:db8:0:1");
        assert_eq!(held.len(), MAX_ATTEMPTS_PER_NETWORK);
        assert_eq!(throttle.enter("2001:db8:0:1:ffff::1".parse().unwrap()).err(), Some(Crowded::Network));
        assert_eq!(of("2001:db8:0:2").len(), MAX_ATTEMPTS_PER_NETWORK);
        drop(held);
        assert_eq!(throttle.attempts.lock().held(&"2001:db8:0:1::".parse().unwrap()), 0);
    }

    #[tokio::test]
    async fn attempts_in_flight_have_a_hard_limit() {
        let (throttle, _folder) = SignInThrottle::with_own_store().await;
        let enter = |number: u32| throttle.enter(std::net::Ipv4Addr::from(number).into());
        let held: Vec<_> = (0..1000).filter_map(|number| enter(number).ok()).collect();
        assert_eq!(held.len(), MAX_ATTEMPTS);
        assert_eq!(enter(1000).err(), Some(Crowded::Everyone));
    }

    #[test]
    fn a_few_failures_are_free_and_no_delay_exceeds_the_maximum() {
        assert_eq!(delay(4.0), Duration::ZERO);
        assert_eq!(delay(6.0), DELAY_PER_FAILURE * 2);
        assert_eq!(delay(1e9), MAX_DELAY);
    }
}
