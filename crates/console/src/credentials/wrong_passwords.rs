//! Log lines and audit entries about wrong passwords: one for the first failure of an account, and one every ten minutes
//! for the sum of further failures.
//!
//! An attacker decides how often and for which accounts passwords are tried, so the number of lines is limited. No line has
//! the typed text, because people type passwords where e-mail addresses belong. The metrics count every failure.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use store::{Email, PasswordTry, Store, WrongPasswords};

/// How long failures are summed up.
const WINDOW: Duration = Duration::from_secs(600);
/// Max. accounts that are named in one window. Failures of further accounts are summed up together.
const MAX_NAMED: usize = 16;

/// The account whose password was wrong, and where it was typed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Subject {
    Named(PasswordTry, Option<Email>),
    /// All beyond `MAX_NAMED`.
    Others,
}

/// Failures that were not reported yet.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    count: u64,
    /// Of the last failure.
    address: Option<IpAddr>,
    several_addresses: bool,
}

impl Tally {
    fn add(&mut self, address: IpAddr) {
        self.several_addresses |= self.address.is_some_and(|earlier| earlier != address);
        self.address = Some(address);
        self.count += 1;
    }

    fn line(self, subject: &Subject) -> WrongPasswords {
        let (at, account) = match subject {
            Subject::Named(at, account) => (*at, account.clone()),
            Subject::Others => (PasswordTry::SignIn, None),
        };
        let address = self.address.map(|address| address.to_string()).unwrap_or_default();
        let address = if self.several_addresses { format!("{address} and others") } else { address };
        WrongPasswords { at, account, several_accounts: *subject == Subject::Others, count: self.count, address }
    }
}

/// The rule, without a clock: the caller closes a window some time after it was opened.
#[derive(Debug, Default)]
struct Tallies(HashMap<Subject, Tally>);

impl Tallies {
    /// Counts a failure. Returns a line to write immediately, if any, and whether this has opened a window.
    fn add(&mut self, subject: Subject, address: IpAddr) -> (Option<WrongPasswords>, bool) {
        let opens = self.0.is_empty();
        if let Some(tally) = self.0.get_mut(&subject) {
            tally.add(address);
            return (None, opens);
        }
        if self.0.len() < MAX_NAMED {
            let mut first = Tally::default();
            first.add(address);
            let line = first.line(&subject);
            self.0.insert(subject, Tally::default());
            return (Some(line), opens);
        }
        self.0.entry(Subject::Others).or_default().add(address);
        (None, opens)
    }

    /// The lines of a window. Another window follows if there are any.
    fn close_window(&mut self) -> Vec<WrongPasswords> {
        self.0.retain(|_, tally| tally.count > 0);
        self.0.iter_mut().map(|(subject, tally)| std::mem::take(tally).line(subject)).collect()
    }
}

pub(crate) struct WrongPasswordLog {
    tallies: Arc<Mutex<Tallies>>,
    store: Arc<Store>,
}

impl WrongPasswordLog {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        Self { tallies: Arc::default(), store }
    }

    /// `account` is the account's e-mail address, or `None` if there is no such account.
    pub(crate) fn add(&self, at: PasswordTry, account: Option<Email>, address: IpAddr) {
        let (line, opens_window) = self.tallies.lock().add(Subject::Named(at, account), address);
        let (tallies, store) = (self.tallies.clone(), self.store.clone());
        if line.is_none() && !opens_window {
            return;
        }
        // In a separate task, so that it is written even if the client has disconnected.
        tokio::spawn(async move {
            if let Some(line) = line {
                write(&store, &line).await;
            }
            if !opens_window {
                return;
            }
            loop {
                tokio::time::sleep(WINDOW).await;
                let lines = tallies.lock().close_window();
                if lines.is_empty() {
                    return;
                }
                for line in &lines {
                    write(&store, line).await;
                }
            }
        });
    }
}

async fn write(store: &Store, line: &WrongPasswords) {
    let (what, reason) = match line.at {
        PasswordTry::SignIn => ("sign-in failed: wrong password or account", None),
        PasswordTry::SecondFactor => ("sign-in failed: wrong second factor", None),
        PasswordTry::Passkey => ("sign-in failed: wrong passkey", None),
        PasswordTry::Provider(reason) => ("a person of the identity provider was refused", Some(reason)),
        PasswordTry::Confirmation => ("change of an account failed: wrong password", None),
    };
    let (account, reason) = (line.account.as_ref().map(Email::as_str), reason.map(tracing::field::debug));
    tracing::warn!(account, address = line.address, count = line.count, reason, "{what}");
    if let Err(error) = store.audit_log().record_wrong_passwords(line).await {
        tracing::error!(%error, "failed sign-ins could not be written to the audit log");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn subject(number: usize) -> Subject {
        Subject::Named(PasswordTry::SignIn, Some(format!("a{number}@example.com").parse().unwrap()))
    }

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn the_first_failure_is_reported_immediately_and_the_others_in_one_line() {
        let mut tallies = Tallies::default();
        let (line, opens) = tallies.add(subject(1), address(1));
        assert!(opens);
        assert_eq!((line.as_ref().unwrap().count, line.unwrap().address.as_str()), (1, "192.0.2.1"));
        for last in 1..=9 {
            let (line, opens) = tallies.add(subject(1), address(last));
            assert!(line.is_none() && !opens);
        }
        let lines = tallies.close_window();
        assert_eq!((lines.len(), lines[0].count, lines[0].address.as_str()), (1, 9, "192.0.2.9 and others"));
        assert!(tallies.close_window().is_empty(), "the attack is over");
        assert!(tallies.add(subject(1), address(1)).0.is_some(), "a new attack is reported immediately");
    }

    proptest! {
        /// In any order of attempts: every failure is in exactly one line, and a window has few lines.
        #[test]
        fn every_failure_is_reported_in_few_lines(
            windows in proptest::collection::vec(proptest::collection::vec(0..60usize, 0..200), 1..5),
        ) {
            let (mut tallies, mut reported, mut failed) = (Tallies::default(), 0, 0);
            for window in windows {
                let mut lines = 0;
                for number in &window {
                    failed += 1;
                    if let (Some(line), _) = tallies.add(subject(*number), address(1)) {
                        reported += line.count;
                        lines += 1;
                    }
                    prop_assert!(tallies.0.len() <= MAX_NAMED + 1);
                }
                for line in tallies.close_window() {
                    reported += line.count;
                    lines += 1;
                }
                prop_assert!(lines <= 2 * (MAX_NAMED + 1));
                prop_assert_eq!(reported, failed);
            }
        }
    }
}
