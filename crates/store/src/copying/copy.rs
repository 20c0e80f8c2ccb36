//! Copies a SQLite file into a PostgreSQL database in one transaction, and compares counts and sums of both before it
//! commits. The file is only read. A later copy replaces an earlier one, unless that one has been used.

use std::path::Path;
use std::time::SystemTime;

use crate::StoreError;
use crate::copying::import::Import;
use crate::copying::source::SourceFile;
use crate::database::postgres::PostgresSettings;

/// Rows that are sent together.
const BATCH_ROWS: usize = 1_000;
/// Batches that may be read ahead.
const MAX_BATCHES_AHEAD: usize = 4;

/// A table that was copied and compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopiedTable {
    pub table: &'static str,
    pub rows: u64,
    /// The number of column sums that were compared.
    pub sums: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the SQLite database has schema {found}, and {known} is needed: run any other command on it first")]
    Outdated { found: i64, known: i64 },
    /// The PostgreSQL database holds data that no copy has written.
    #[error("the PostgreSQL database has been used, and its data would be lost: use an empty one")]
    Occupied,
    /// Nothing was changed.
    #[error("the copy of {table} differs from the original: {original} in the original, {copy} in the copy")]
    Differs {
        table: &'static str,
        /// Count and sums.
        original: String,
        /// Count and sums.
        copy: String,
    },
}

/// Copies everything. `progress` is called with the table, the number of rows copied, and the number of its rows.
pub async fn copy(
    from: &Path,
    to: &PostgresSettings,
    progress: &mut (dyn FnMut(&'static str, u64, u64) + Send),
) -> Result<Vec<CopiedTable>, CopyError> {
    let mut export = SourceFile::open(from)?;
    let mut import = Import::begin(to).await?;
    import.prepare(export.days()?).await?;
    let mut copied = Vec::new();
    for table in TABLES {
        let original = export.check(table)?;
        let rows = original.first().copied().unwrap_or(0).unsigned_abs();
        progress(table.name, 0, rows);
        export = import_table(export, &import, table, |done| progress(table.name, done, rows)).await?;
        let copy = import.check(table).await?;
        if copy != original {
            let shown = |sums: &[i64]| sums.iter().map(i64::to_string).collect::<Vec<_>>().join(" ");
            return Err(CopyError::Differs { table: table.name, original: shown(&original), copy: shown(&copy) });
        }
        copied.push(CopiedTable { table: table.name, rows, sums: original.len() - 1 });
    }
    let (original, copy) = (export.report()?, import.report().await?);
    if original != copy {
        let shown = |report: &crate::UsageReport| format!("{} requests", report.totals.requests);
        return Err(CopyError::Differs { table: "rollups", original: shown(&original), copy: shown(&copy) });
    }
    import.finish(from, SystemTime::now().into()).await?;
    Ok(copied)
}

/// Reads a table on a separate thread, while earlier rows are being sent.
async fn import_table(
    mut export: SourceFile,
    import: &Import,
    table: &'static Table,
    mut progress: impl FnMut(u64),
) -> Result<SourceFile, CopyError> {
    let (sender, mut batches) = tokio::sync::mpsc::channel(MAX_BATCHES_AHEAD);
    let reading = std::thread::spawn(move || {
        let read = export.read(table, BATCH_ROWS, |batch| sender.blocking_send(batch).is_ok());
        (export, read)
    });
    let mut rows = import.copy(table).await?;
    let mut done = 0;
    while let Some(batch) = batches.recv().await {
        done += batch.len() as u64;
        rows.write(batch).await?;
        progress(done);
    }
    let (export, read) = reading.join().map_err(|_panic| StoreError::Corrupt("row"))?;
    read?; // before `finish`, so that a table is never copied in part
    rows.finish().await?;
    Ok(export)
}

/// A table with the same columns in both databases.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(crate) columns: &'static [(&'static str, ColumnType)],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ColumnType {
    Text,
    Bytes,
    /// A request id.
    Id,
    Flag,
    Small,
    Integer,
    Number,
    Real,
    Latencies,
    /// Request ids.
    Ids,
}

#[derive(Debug, Clone)]
pub(crate) enum Cell {
    Null,
    Number(i64),
    Real(f32),
    Text(String),
    Bytes(Vec<u8>),
    Numbers(Vec<i64>),
    Ids(Vec<[u8; 16]>),
}

use ColumnType::{Bytes, Flag, Id, Ids, Integer, Latencies, Number, Real, Small, Text};

#[rustfmt::skip]
pub(crate) const TABLES: &[Table] = &[
    Table {
        name: "accounts",
        columns: &[("id", Text), ("email", Text), ("name", Text), ("password", Text), ("role", Text),
            ("created_at", Number), ("signed_in_at", Number), ("disabled_at", Number),
            ("deleted_at", Number), ("deleted_email", Text)],
    },
    Table {
        name: "sessions",
        columns: &[("digest", Bytes), ("id", Text), ("account", Text), ("address", Text), ("agent", Text),
            ("created_at", Number), ("seen_at", Number), ("method", Text), ("issuer", Text), ("subject", Text),
            ("provider_session", Text), ("confirmed_at", Number)],
    },
    Table {
        name: "links",
        columns: &[("digest", Bytes), ("id", Text), ("purpose", Text), ("role", Text), ("account", Text),
            ("note", Text),
            ("made_by", Text), ("created_at", Number), ("expires_at", Number)],
    },
    Table {
        name: "identities",
        columns: &[("issuer", Text), ("subject", Text), ("account", Text), ("created_at", Number)],
    },
    Table {
        name: "authenticator_apps",
        columns: &[("account", Text), ("key", Text), ("last_step", Number), ("created_at", Number)],
    },
    Table {
        name: "passkeys",
        columns: &[("id", Text), ("account", Text), ("name", Text), ("credential", Text), ("created_at", Number),
            ("used_at", Number)],
    },
    Table {
        name: "recovery_codes",
        columns: &[("account", Text), ("digest", Bytes)],
    },
    Table {
        name: "sign_in_policy",
        columns: &[("rule", Text), ("set_at", Number)],
    },
    Table {
        name: "audit",
        columns: &[("number", Number), ("at", Number), ("who", Text), ("address", Text), ("action", Text),
            ("subject_kind", Text), ("subject_id", Text), ("subject", Text), ("details", Text)],
    },
    Table {
        name: "keys",
        columns: &[("id", Text), ("digest", Bytes), ("name", Text), ("completions", Flag), ("created_at", Number),
            ("expires_at", Number), ("revoked_at", Number), ("owner", Text), ("playground", Flag),
            ("last_used_at", Number), ("previous_digest", Bytes), ("previous_until", Number), ("note", Text),
            ("project", Text), ("admin_forbids_completions", Flag), ("admin_expires_at", Number)],
    },
    Table {
        name: "commits",
        columns: &[("id", Number), ("persisted_at_us", Number)],
    },
    Table {
        name: "requests",
        columns: &[("id", Id), ("key_id", Text), ("status", Small), ("code", Text), ("prompt_tokens", Number),
            ("completion_tokens", Number), ("total_tokens", Number), ("queue_us", Number), ("search_us", Number),
            ("inference_us", Number), ("total_us", Number), ("commit_id", Number), ("score", Real), ("scorer", Integer),
            ("sources", Integer), ("account", Text), ("project", Text), ("runtime", Text), ("finish_reason", Text)],
    },
    Table {
        name: "unfolded",
        columns: &[("commit_id", Number), ("requests", Ids)],
    },
    Table {
        name: "rollups",
        columns: &[("party", Text), ("start", Number), ("status", Small), ("code", Text), ("requests", Number),
            ("prompt_tokens", Number), ("prompt_measured", Number), ("completion_tokens", Number),
            ("completion_measured", Number), ("total_tokens", Number), ("total_measured", Number), ("last_at", Number),
            ("latencies", Latencies), ("account", Text)],
    },
    Table {
        name: "sums",
        columns: &[("span", Number), ("start", Number), ("key_id", Text), ("account", Text), ("project", Text),
            ("requests", Number), ("prompt_tokens", Number), ("prompt_measured", Number),
            ("completion_tokens", Number), ("completion_measured", Number), ("total_tokens", Number),
            ("total_measured", Number), ("succeeded", Number)],
    },
    Table {
        name: "prices",
        columns: &[("project", Text), ("prompt", Number), ("completion", Number), ("currency", Text)],
    },
    Table {
        name: "search_index",
        columns: &[("id", Integer), ("index_id", Text)],
    },
    Table {
        name: "limits",
        columns: &[("scope", Text), ("kind", Text), ("amount", Number)],
    },
    Table {
        name: "spending",
        columns: &[("scope", Text), ("period", Text), ("start", Number), ("slot", Number), ("requests", Number),
            ("tokens", Number), ("unmeasured", Number)],
    },
];

impl Table {
    pub(crate) fn query(&self) -> String {
        let names: Vec<_> = self.columns.iter().map(|(name, _)| *name).collect();
        format!("SELECT {} FROM {}", names.join(", "), self.name)
    }

    /// Expressions that must have the same value in both databases: the number of rows, and a sum for each column.
    /// The remainders of numbers are summed, so that no sum overflows.
    pub(crate) fn checks(&self) -> String {
        let sums = self.columns.iter().filter_map(|(name, kind)| match kind {
            ColumnType::Text | ColumnType::Bytes => Some(format!("coalesce(sum(length({name})), 0)")),
            ColumnType::Flag => Some(format!("coalesce(sum(CASE WHEN {name} THEN 1 ELSE 0 END), 0)")),
            ColumnType::Small | ColumnType::Integer | ColumnType::Number => {
                Some(format!("coalesce(sum({name} % 1000003), 0)"))
            }
            ColumnType::Real => Some(format!("count({name})")),
            ColumnType::Id | ColumnType::Ids | ColumnType::Latencies => None,
        });
        ["count(*)".to_owned()].into_iter().chain(sums).collect::<Vec<_>>().join(", ")
    }
}
