//! Lines of the audit log, as exports have them.

use serde::Serialize;
use store::AuditRecord;

use crate::csv::spreadsheet_safe;
use crate::times::rfc3339_millis;

#[derive(Debug, Serialize)]
pub struct AuditRow {
    number: u64,
    at: String,
    actor: String,
    action: String,
    subject: String,
    address: String,
}

impl AuditRow {
    pub const COLUMNS: [&str; 6] = ["number", "at", "actor", "action", "subject", "address"];

    /// For a spreadsheet: no text is a formula.
    pub fn for_csv(record: &AuditRecord) -> Self {
        let row = Self::from(record);
        Self {
            actor: spreadsheet_safe(&row.actor),
            action: spreadsheet_safe(&row.action),
            subject: spreadsheet_safe(&row.subject),
            ..row
        }
    }
}

impl From<&AuditRecord> for AuditRow {
    fn from(record: &AuditRecord) -> Self {
        Self {
            number: record.number,
            at: rfc3339_millis(record.at),
            actor: record.who.clone(),
            action: record.what.clone(),
            subject: record.subject.clone(),
            address: record.address.clone(),
        }
    }
}
