//! The audit log: a line for every change, written in the change's own transaction. A line is data (`audit_action`), and
//! `format` turns it into a sentence.

use chat::Timestamp;

use crate::audit::action::{AuditAction, AuditSubject, ProviderRefusal, named};
use crate::database::patterns::Patterns;
use crate::database::snapshot::Snapshot;
use crate::database::sql::{Row, Transaction, params};
use crate::values::{Admin, Email, Viewer};
use crate::{AuditLog, StoreError};

/// Lines that one search scans, in some tens of milliseconds.
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
    /// The action's name.
    pub action: String,
    pub subject: AuditSubject,
    /// JSON.
    pub details: String,
}

/// A search of the audit log. A text matches any part of a column, ignoring case; an empty one matches all. `action`
/// matches an action's name, with spaces or hyphens, and its details; `subject` matches a subject's name and id.
#[derive(Debug, Clone, Default)]
pub struct AuditQuery {
    pub since: Timestamp,
    /// Only lines before this time.
    pub until: Option<Timestamp>,
    /// Only lines before that number.
    pub before: Option<u64>,
    pub who: String,
    pub action: String,
    pub subject: String,
    pub limit: u32,
}

/// Lines that match a query, the newest first.
#[derive(Debug, Clone)]
pub struct AuditPage {
    pub records: Vec<AuditRecord>,
    /// Where a long search stopped: older lines were not scanned.
    pub searched_to: Option<u64>,
}

/// The step at which a sign-in or confirmation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PasswordTry {
    SignIn,
    /// A wrong code after the right password.
    SecondFactor,
    /// By a person who is signed in, to confirm a change of password or second factors.
    Confirmation,
    /// A passkey was used instead.
    Passkey,
    /// The identity provider had authenticated the person.
    Provider(ProviderRefusal),
}

/// Wrong passwords, as one line of the audit log.
#[derive(Debug, Clone)]
pub struct WrongPasswords {
    pub at: PasswordTry,
    /// `None` if there is no such account that could sign in. Never the address that was typed.
    pub account: Option<Email>,
    pub several_accounts: bool,
    pub count: u64,
    pub address: String,
}

impl AuditLog<'_> {
    /// The caller limits the number of such lines.
    pub async fn record_wrong_passwords(self, wrong: &WrongPasswords) -> Result<(), StoreError> {
        let (count, account) = (wrong.count, wrong.account.as_ref().map(Email::as_str));
        let subject = match account {
            Some(email) => AuditSubject::person_named(email),
            None if wrong.several_accounts => AuditSubject::unknown_person("other accounts"),
            None => AuditSubject::unknown_person("an unknown or disabled account"),
        };
        let (who, action) = match wrong.at {
            PasswordTry::SignIn => ("anonymous", AuditAction::FailedSignIn { count }),
            PasswordTry::SecondFactor => ("anonymous", AuditAction::FailedSecondFactor { count }),
            PasswordTry::Confirmation => (&*subject.name, AuditAction::FailedConfirmation { count }),
            PasswordTry::Passkey => ("anonymous", AuditAction::FailedPasskey { count }),
            PasswordTry::Provider(reason) => ("anonymous", AuditAction::RefusedProviderSignIn { reason, count }),
        };
        self.change_without_viewer(async |transaction| {
            transaction.audit_as(who, &wrong.address, action, &subject).await
        })
        .await
    }

    /// Newest first. A search stops after many lines, so that other searches can run.
    pub async fn search(self, _admin: Admin<'_>, query: &AuditQuery) -> Result<AuditPage, StoreError> {
        let query = query.clone();
        let search = async move |snapshot: &mut Snapshot<'_>| {
            let newest: u64 = snapshot.value("SELECT coalesce(max(number), 0) FROM audit", &[]).await?;
            let end = query.before.unwrap_or(u64::MAX).min(newest + 1);
            let first = end.saturating_sub(MAX_SCANNED);
            let until = query.until.unwrap_or(Timestamp::MAX);
            let name = query.action.trim().replace(' ', "-");
            let [who, action, details, subject] =
                [&query.who, &name, &query.action, &query.subject].map(|text| Patterns::containing(text));
            let parameters = params![
                first,
                end,
                query.since,
                until,
                &*who.lower,
                &*who.typed,
                &*action.lower,
                &*details.lower,
                &*details.typed,
                &*subject.lower,
                &*subject.typed,
                u64::from(query.limit),
            ];
            let records = snapshot.query(SEARCH, parameters, record).await?;
            let searched_to = (first > 1 && records.len() < query.limit as usize).then_some(first);
            Ok(AuditPage { records, searched_to })
        };
        self.long_read(search).await
    }
}

const SEARCH: &str = r"SELECT number, at, who, address, action, subject_kind, subject_id, subject, details FROM audit
    WHERE number >= $1 AND number < $2 AND at >= $3 AND at < $4
        AND (lower(who) LIKE $5 ESCAPE '\' OR who LIKE $6 ESCAPE '\')
        AND (action LIKE $7 ESCAPE '\' OR lower(details) LIKE $8 ESCAPE '\' OR details LIKE $9 ESCAPE '\')
        AND (lower(subject) LIKE $10 ESCAPE '\' OR subject LIKE $11 ESCAPE '\' OR subject_id LIKE $11 ESCAPE '\')
    ORDER BY number DESC LIMIT $12";

fn record(row: &Row<'_>) -> Result<AuditRecord, StoreError> {
    Ok(AuditRecord {
        number: row.get(0)?,
        at: row.get(1)?,
        who: row.get(2)?,
        address: row.get(3)?,
        action: row.get(4)?,
        subject: AuditSubject { kind: named(&row.get::<String>(5)?, "subject")?, id: row.get(6)?, name: row.get(7)? },
        details: row.get(8)?,
    })
}

impl Transaction<'_> {
    /// Adds a line to the audit log.
    pub(crate) async fn audit(
        &mut self,
        viewer: &Viewer,
        action: AuditAction,
        subject: &AuditSubject,
    ) -> Result<(), StoreError> {
        self.audit_as(viewer.name(), viewer.address(), action, subject).await
    }

    /// The same for a person who is not yet signed in, or for the identity provider.
    pub(crate) async fn audit_as(
        &mut self,
        who: &str,
        address: &str,
        action: AuditAction,
        subject: &AuditSubject,
    ) -> Result<(), StoreError> {
        let line = "INSERT INTO audit (at, who, address, action, subject_kind, subject_id, subject, details)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
        let (now, (action, details)) = (self.now(), action.to_columns());
        let AuditSubject { kind, id, name } = subject;
        let kind = kind.to_string();
        self.execute(line, params![now, who, address, &*action, &*kind, &**id, &**name, &*details]).await?;
        Ok(())
    }
}
