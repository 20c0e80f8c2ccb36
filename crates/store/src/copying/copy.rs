//! Copies a SQLite file into a PostgreSQL database in one transaction, and compares counts and sums of both before it
//! commits. The file is only read. A later copy replaces an earlier one, unless that one has been used.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use rusqlite::types::Value;
use tokio_postgres::types::Type;

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
    for name in TABLES {
        let table = Arc::new(import.table(name).await?);
        let original = export.check(&table)?;
        let rows = original.first().copied().unwrap_or(0).unsigned_abs();
        progress(name, 0, rows);
        export = import_table(export, &import, &table, |done| progress(name, done, rows)).await?;
        let copy = import.check(&table).await?;
        if copy != original {
            let shown = |sums: &[i64]| sums.iter().map(i64::to_string).collect::<Vec<_>>().join(" ");
            return Err(CopyError::Differs { table: name, original: shown(&original), copy: shown(&copy) });
        }
        copied.push(CopiedTable { table: name, rows, sums: original.len() - 1 });
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
    table: &Arc<Table>,
    mut progress: impl FnMut(u64),
) -> Result<SourceFile, CopyError> {
    let (sender, mut batches) = tokio::sync::mpsc::channel(MAX_BATCHES_AHEAD);
    let read_table = table.clone();
    let reading = std::thread::spawn(move || {
        let read = export.read(&read_table, BATCH_ROWS, |batch| sender.blocking_send(batch).is_ok());
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

/// A table with the same columns in both databases, and their types in PostgreSQL.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(crate) columns: Vec<(String, Type)>,
}

/// A value of the file, which `import` converts to the type of its column.
#[derive(Debug)]
pub(crate) struct Cell(pub(crate) Value);

/// All tables that are copied. The ledger's tables come first, in the order in which a commit of rows locks them, to avoid
/// deadlocks; folding and changes of the other tables are excluded by their advisory locks.
pub(crate) const TABLES: [&str; 19] = [
    "commits", "requests", "spending", "unfolded", "keys", "sums", "rollups", "accounts", "sessions", "links",
    "identities", "authenticator_apps", "passkeys", "recovery_codes", "sign_in_policy", "audit", "limits", "prices",
    "search_index",
];

impl Table {
    pub(crate) fn column_names(&self) -> String {
        self.columns.iter().map(|(name, _)| &**name).collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn query(&self) -> String {
        format!("SELECT {} FROM {}", self.column_names(), self.name)
    }

    /// Expressions that must have the same value in both databases: the number of rows, and a sum for each column.
    /// The remainders of numbers are summed, so that no sum overflows.
    pub(crate) fn checks(&self) -> String {
        let sums = self.columns.iter().filter_map(|(name, kind)| match *kind {
            Type::TEXT | Type::BYTEA => Some(format!("coalesce(sum(length({name})), 0)")),
            Type::BOOL => Some(format!("coalesce(sum(CASE WHEN {name} THEN 1 ELSE 0 END), 0)")),
            Type::INT2 | Type::INT4 | Type::INT8 => Some(format!("coalesce(sum({name} % 1000003), 0)")),
            Type::FLOAT4 => Some(format!("count({name})")),
            _ => None,
        });
        ["count(*)".to_owned()].into_iter().chain(sums).collect::<Vec<_>>().join(", ")
    }
}
