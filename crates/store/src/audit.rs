//! The audit log: a line for every change, written in the change's own transaction.

use chat::Timestamp;

use crate::accounts::Email;
use crate::sql::{Row, Transaction, params};
use crate::viewer::{Admin, Viewer};
use crate::{Store, StoreError};

#[derive(Debug, Clone)]
pub struct AuditRecord {
    /// Increases with every line.
    pub number: u64,
    pub at: Timestamp,
    /// An e-mail address, `operator` for the command line, or `anonymous`.
    pub who: String,
    /// A network address, or `command line`.
    pub address: String,
    pub what: String,
    pub subject: String,
}

/// Where a password was typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PasswordTry {
    SignIn,
    /// The current one, to change it.
    Change,
}

/// Wrong passwords, as one line of the audit log.
#[derive(Debug, Clone)]
pub struct WrongPasswords {
    pub at: PasswordTry,
    /// `None` if there is no such account that could sign in. Never what was typed.
    pub account: Option<Email>,
    pub several_accounts: bool,
    pub count: u64,
    pub address: String,
}

impl Store {
    /// The caller limits how many such lines there are.
    pub async fn record_wrong_passwords(&self, wrong: &WrongPasswords) -> Result<(), StoreError> {
        let times = if wrong.count == 1 { String::new() } else { format!(" {} times", wrong.count) };
        let subject = match &wrong.account {
            Some(email) => email.as_str(),
            None if wrong.several_accounts => "other accounts",
            None => "an unknown or disabled account",
        };
        let (who, what) = match wrong.at {
            PasswordTry::SignIn => ("anonymous", format!("failed{times} to sign in as")),
            PasswordTry::Change => (subject, format!("failed{times} to change the password")),
        };
        self.change(async |transaction| transaction.audit_as(who, &wrong.address, &what, subject).await).await
    }

    /// Lines before a number, the newest first.
    pub async fn audit(&self, _admin: Admin<'_>, before: u64, limit: u32) -> Result<Vec<AuditRecord>, StoreError> {
        let list = "SELECT number, at, who, address, what, subject FROM audit WHERE number < $1
            ORDER BY number DESC LIMIT $2";
        let record = |row: &Row<'_>| {
            Ok(AuditRecord {
                number: row.get(0)?,
                at: row.get(1)?,
                who: row.get(2)?,
                address: row.get(3)?,
                what: row.get(4)?,
                subject: row.get(5)?,
            })
        };
        self.connection().await?.query(list, params![before, u64::from(limit)], record).await
    }
}

impl Transaction<'_> {
    /// Adds a line to the audit log.
    pub(crate) async fn audit(&mut self, viewer: &Viewer, what: &str, subject: &str) -> Result<(), StoreError> {
        self.audit_as(viewer.name(), viewer.address(), what, subject).await
    }

    /// The same, for somebody who is not signed in yet.
    pub(crate) async fn audit_as(
        &mut self,
        who: &str,
        address: &str,
        what: &str,
        subject: &str,
    ) -> Result<(), StoreError> {
        let line = "INSERT INTO audit (at, who, address, what, subject) VALUES ($1, $2, $3, $4, $5)";
        let now = self.now();
        self.execute(line, params![now, who, address, what, subject]).await?;
        Ok(())
    }
}
