//! The audit log: a line for every change, written in the change's own transaction.

use chat::Timestamp;

use crate::accounts::Email;
use crate::patterns::Patterns;
use crate::sql::{Row, Transaction, Value, params};
use crate::viewer::{Admin, Viewer};
use crate::{Backend, Store, StoreError};

/// Lines that one search looks at: some tens of milliseconds.
const MAX_SCANNED: u64 = 100_000;

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

/// Which lines of the audit log. Texts match any part of theirs, in upper or lower case; an empty one matches all.
#[derive(Debug, Clone, Default)]
pub struct AuditQuery {
    pub since: Timestamp,
    /// Only lines before this time.
    pub until: Option<Timestamp>,
    /// Only lines before that number.
    pub before: Option<u64>,
    pub who: String,
    pub what: String,
    pub subject: String,
    pub limit: u32,
}

/// Lines that match a query, the newest first.
#[derive(Debug, Clone)]
pub struct AuditPage {
    pub records: Vec<AuditRecord>,
    /// Where a search stopped that would have taken long: older lines were not looked at.
    pub searched_to: Option<u64>,
}

/// Where a password was typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PasswordTry {
    SignIn,
    /// A code, after the right password.
    SecondFactor,
    /// By somebody who is signed in, to confirm a change of password or second factors.
    Confirmation,
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
            PasswordTry::SecondFactor => ("anonymous", format!("failed{times} to give the second factor of")),
            PasswordTry::Confirmation => (subject, format!("failed{times} to confirm a change of the account")),
        };
        self.change(async |transaction| transaction.audit_as(who, &wrong.address, &what, subject).await).await
    }

    /// Newest first. A search that looks at many lines stops, so that others get their turn.
    pub async fn audit(&self, _admin: Admin<'_>, query: &AuditQuery) -> Result<AuditPage, StoreError> {
        let newest: u64 =
            self.connection().await?.query_value("SELECT coalesce(max(number), 0) FROM audit", &[]).await?;
        let end = query.before.unwrap_or(u64::MAX).min(newest + 1);
        let first = end.saturating_sub(MAX_SCANNED);
        let (query, limit) = (SearchTexts::new(query), query.limit as usize);
        let records = match &self.backend {
            Backend::Sqlite(backend) => {
                let search = move |sqlite: &crate::sqlite::Sqlite| {
                    sqlite.connection()?.query(SEARCH, &query.parameters(first, end), record)
                };
                backend.report(search).await?
            }
            Backend::Postgres(backend) => {
                backend.client().await?.query(SEARCH, &query.parameters(first, end), record).await?
            }
        };
        let searched_to = (first > 1 && records.len() < limit).then_some(first);
        Ok(AuditPage { records, searched_to })
    }
}

const SEARCH: &str = r"SELECT number, at, who, address, what, subject FROM audit
    WHERE number >= $1 AND number < $2 AND at >= $3 AND at < $4
        AND (lower(who) LIKE $5 ESCAPE '\' OR who LIKE $6 ESCAPE '\')
        AND (lower(what) LIKE $7 ESCAPE '\' OR what LIKE $8 ESCAPE '\')
        AND (lower(subject) LIKE $9 ESCAPE '\' OR subject LIKE $10 ESCAPE '\')
    ORDER BY number DESC LIMIT $11";

fn record(row: &Row<'_>) -> Result<AuditRecord, StoreError> {
    Ok(AuditRecord {
        number: row.get(0)?,
        at: row.get(1)?,
        who: row.get(2)?,
        address: row.get(3)?,
        what: row.get(4)?,
        subject: row.get(5)?,
    })
}

/// What a query compares.
struct SearchTexts {
    since: Timestamp,
    until: Timestamp,
    texts: [Patterns; 3],
    limit: u64,
}

impl SearchTexts {
    fn new(query: &AuditQuery) -> Self {
        let texts = [&query.who, &query.what, &query.subject].map(|text| Patterns::containing(text));
        Self { since: query.since, until: query.until.unwrap_or(Timestamp::MAX), texts, limit: query.limit.into() }
    }

    fn parameters(&self, first: u64, end: u64) -> Vec<Value<'_>> {
        let mut parameters = vec![first.into(), end.into(), self.since.into(), self.until.into()];
        parameters.extend(self.texts.iter().flat_map(|text| [Value::from(&*text.lower), Value::from(&*text.typed)]));
        parameters.push(self.limit.into());
        parameters
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
