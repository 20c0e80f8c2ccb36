//! Throttling of sign-in. Failures delay further attempts but never lock an account: its owner must be able to sign in
//! during an attack. Failures are counted by network and by account, for all replicas together, and decay. The number of
//! attempts in flight is limited in total and for each network, in fair shares.
//!
//! A network where the account has a session is known to it: guesses by others, at this account or from a larger network
//! around this one, do not delay it, and its attempts have a separate share.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use admission::{Admission, Client, Permit};
use http::StatusCode;
use sha2::{Digest, Sha256};
use store::{Email, Store, StoreError};
use transport::NetworkClient;

/// Failures that add no delay.
const FREE_FAILURES: f64 = 4.0;
const DELAY_PER_FAILURE: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(8);
/// A network may fail this many times as often as one of the next smaller size.
const FAILURES_PER_SIZE: f64 = 4.0;
/// Attempts in flight: those that wait out a delay, wait for their turn or are verified.
const MAX_ATTEMPTS: usize = 128;
const MAX_RETURNING_ATTEMPTS: usize = 32;
const MAX_ATTEMPTS_PER_NETWORK: usize = 8;

/// The delay after this number of failures.
fn delay(failures: f64) -> Duration {
    DELAY_PER_FAILURE.mul_f64((failures - FREE_FAILURES).max(0.0)).min(MAX_DELAY)
}

pub(crate) struct SignInThrottle {
    store: Arc<Store>,
    strangers: Admission<NetworkClient>,
    returning: Admission<NetworkClient>,
}

/// Why an attempt is refused immediately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TooManyAttempts {
    /// Too many attempts from the same network.
    Network,
    /// Too many attempts from others.
    Everyone,
}

impl TooManyAttempts {
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
        Self { store, strangers: Admission::new(MAX_ATTEMPTS), returning: Admission::new(MAX_RETURNING_ATTEMPTS) }
    }

    /// Admits an attempt that may be a guess, after the delay that earlier failures impose. Without an account, only the
    /// failures of networks count.
    pub(crate) async fn begin(
        &self,
        address: IpAddr,
        account: Option<&Email>,
    ) -> Result<Result<SignInAttempt<'_>, TooManyAttempts>, StoreError> {
        let network = NetworkClient::new(address);
        let is_returning = match account {
            Some(account) => self.is_returning(network, account).await?,
            None => false,
        };
        let share = if is_returning { &self.returning } else { &self.strangers };
        let mut attempt = match self.enter_share(share, network) {
            Ok(attempt) => attempt,
            Err(refusal) => return Ok(Err(refusal)),
        };
        attempt.account = account.map(account_subject);
        let counted = if is_returning { 1 } else { usize::MAX };
        let mut longest = Duration::ZERO;
        for (subject, weight) in attempt.subjects().take(counted) {
            longest = longest.max(delay(self.store.sign_ins().failures(&[subject]).await? * weight));
        }
        tokio::time::sleep(longest).await;
        Ok(Ok(attempt))
    }

    /// Admits an attempt that costs work but is no guess.
    pub(crate) fn enter(&self, address: IpAddr) -> Result<SignInAttempt<'_>, TooManyAttempts> {
        self.enter_share(&self.strangers, NetworkClient::new(address))
    }

    /// Whether the account has a session that was begun in the same network.
    async fn is_returning(&self, network: NetworkClient, account: &Email) -> Result<bool, StoreError> {
        let addresses = self.store.sessions().addresses(account).await?;
        let mut networks = addresses.iter().filter_map(|address| Some(NetworkClient::new(address.parse().ok()?)));
        Ok(networks.any(|other| other == network))
    }

    fn enter_share(
        &self,
        share: &Admission<NetworkClient>,
        network: NetworkClient,
    ) -> Result<SignInAttempt<'_>, TooManyAttempts> {
        let held = share.held_by(&network);
        let permit = (held < MAX_ATTEMPTS_PER_NETWORK).then(|| share.enter(network)).flatten();
        let permit = permit.ok_or(if held > 0 { TooManyAttempts::Network } else { TooManyAttempts::Everyone })?;
        let mut networks: Vec<_> = network.parties().map(|network| format!("network {network}")).collect();
        networks.reverse();
        Ok(SignInAttempt { store: &self.store, network, networks, account: None, _permit: permit })
    }
}

/// A hash has a fixed size for any input, and addresses without an account are not stored as they were typed.
fn account_subject(email: &Email) -> String {
    format!("account {}", base16ct::lower::encode_string(&Sha256::digest(email.as_str())))
}

/// An attempt in flight, counted while it exists. Only with one is a password hashed.
pub(crate) struct SignInAttempt<'a> {
    store: &'a Store,
    network: NetworkClient,
    /// The networks that failures are counted by, the smallest first.
    networks: Vec<String>,
    account: Option<String>,
    _permit: Permit<NetworkClient>,
}

impl SignInAttempt<'_> {
    pub(crate) fn network(&self) -> IpAddr {
        self.network.address()
    }

    pub(crate) async fn failed(self) -> Result<(), StoreError> {
        let own = self.own_subject();
        let subjects: Vec<_> = self.subjects().map(|(subject, _)| subject).chain(own.as_deref()).collect();
        self.store.sign_ins().add_failure(&subjects).await
    }

    /// Removes this account's failures from the count of this network. Failures of other accounts stay, because a guesser
    /// may have an account as well. Failures of this account from other networks stay, too.
    pub(crate) async fn succeeded(self) -> Result<(), StoreError> {
        match self.own_subject() {
            Some(own) => self.store.sign_ins().forget_failures(&own, &self.networks[0]).await,
            None => Ok(()),
        }
    }

    /// The account from this network.
    fn own_subject(&self) -> Option<String> {
        self.account.as_ref().map(|account| format!("{account} from {}", self.networks[0]))
    }

    /// The subjects that failures are counted by, and the weight of one failure.
    fn subjects(&self) -> impl Iterator<Item = (&str, f64)> {
        let weights = std::iter::successors(Some(1.0), |weight| Some(weight / FAILURES_PER_SIZE));
        let networks = self.networks.iter().map(String::as_str).zip(weights);
        networks.chain(self.account.as_deref().map(|account| (account, 1.0)))
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
    async fn a_64_is_one_network_and_leaves_room_for_others() {
        let (throttle, _folder) = SignInThrottle::with_own_store().await;
        let enter_all = |prefix: &str| -> Vec<_> {
            let addresses = (1..=MAX_ATTEMPTS * 2).map(|last| format!("{prefix}::{last:x}").parse().unwrap());
            addresses.filter_map(|address| throttle.enter(address).ok()).collect()
        };
        let held = enter_all("2001:db8:0:1");
        assert_eq!(held.len(), MAX_ATTEMPTS_PER_NETWORK);
        assert_eq!(throttle.enter("2001:db8:0:1:ffff::1".parse().unwrap()).err(), Some(TooManyAttempts::Network));
        assert_eq!(enter_all("2001:db8:0:2").len(), MAX_ATTEMPTS_PER_NETWORK);
        drop(held);
        assert_eq!(throttle.strangers.held_by(&NetworkClient::new("2001:db8:0:1::".parse().unwrap())), 0);
    }

    #[tokio::test]
    async fn attempts_in_flight_have_a_hard_limit() {
        let (throttle, _folder) = SignInThrottle::with_own_store().await;
        let enter = |number: u32| throttle.enter(std::net::Ipv4Addr::from(number).into());
        let neighbours: Vec<_> = (0..256).filter_map(|number| enter(number).ok()).collect();
        assert_eq!(neighbours.len(), MAX_ATTEMPTS * 4 / 5 + 1, "a /24 is one party");
        let others: Vec<_> = (1..1000).filter_map(|number| enter(number << 8).ok()).collect();
        assert_eq!(neighbours.len() + others.len(), MAX_ATTEMPTS);
        assert_eq!(enter(1000 << 8).err(), Some(TooManyAttempts::Everyone));
    }

    #[test]
    fn a_few_failures_are_free_and_no_delay_exceeds_the_maximum() {
        assert_eq!(delay(4.0), Duration::ZERO);
        assert_eq!(delay(6.0), DELAY_PER_FAILURE * 2);
        assert_eq!(delay(1e9), MAX_DELAY);
    }
}
