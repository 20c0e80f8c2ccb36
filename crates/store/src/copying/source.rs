//! Reads all tables for a copy, in one snapshot of a file that is opened read-only.

use std::collections::BTreeSet;
use std::path::Path;

use rusqlite::Connection;

use crate::copying::copy::{Cell, CopyError, Table};
use crate::database::snapshot::Snapshot;
use crate::database::sqlite::pool::ready;
use crate::database::sqlite::{migrate, open_read_only};
use crate::usage::reports::read_everything;
use crate::{StoreError, UsageReport};

const DAY_MICROS: u64 = 86_400_000_000;

pub(crate) struct SourceFile {
    connection: Connection,
}

impl SourceFile {
    pub(crate) fn open(path: &Path) -> Result<Self, CopyError> {
        let connection = open_read_only(path).map_err(StoreError::from)?;
        // From the first query on, this connection sees one snapshot.
        connection.execute_batch("BEGIN").map_err(StoreError::from)?;
        let (found, known) = migrate::versions(&connection).map_err(StoreError::from)?;
        match found == known {
            true => Ok(Self { connection }),
            false => Err(CopyError::Outdated { found, known }),
        }
    }

    /// The first and the last day with requests, in days since 1970.
    pub(crate) fn days(&self) -> Result<Option<(u64, u64)>, StoreError> {
        let bounds = "SELECT min(id), max(id) FROM requests";
        let (first, last): (Option<[u8; 16]>, Option<[u8; 16]>) =
            self.connection.query_row(bounds, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let day = |id| chat::RequestId::from_bytes(id).unix_micros() / DAY_MICROS;
        Ok(first.map(day).zip(last.map(day)))
    }

    /// Count and sums of a table. Fails if its columns are others in the copy.
    pub(crate) fn check(&self, table: &Table) -> Result<Vec<i64>, StoreError> {
        let all = self.connection.prepare(&format!("SELECT * FROM {}", table.name))?;
        let names: BTreeSet<_> = all.column_names().collect();
        if table.columns.iter().map(|(name, _)| &**name).collect::<BTreeSet<_>>() != names {
            return Err(StoreError::Corrupt("schema"));
        }
        let check = format!("SELECT {} FROM ({})", table.checks(), table.query());
        Ok(self
            .connection
            .query_row(&check, [], |row| (0..row.as_ref().column_count()).map(|at| row.get(at)).collect())?)
    }

    /// Reads a table in batches, until `take` returns `false`.
    pub(crate) fn read(
        &mut self,
        table: &Table,
        batch: usize,
        mut take: impl FnMut(Vec<Vec<Cell>>) -> bool,
    ) -> Result<(), StoreError> {
        let mut all = self.connection.prepare(&table.query())?;
        let mut rows = all.query([])?;
        let mut read = Vec::with_capacity(batch);
        while let Some(row) = rows.next()? {
            let cells = (0..table.columns.len()).map(|at| row.get(at).map(Cell));
            read.push(cells.collect::<Result<_, _>>()?);
            if read.len() == batch && !take(std::mem::replace(&mut read, Vec::with_capacity(batch))) {
                return Ok(());
            }
        }
        take(read);
        Ok(())
    }

    pub(crate) fn report(&mut self) -> Result<UsageReport, StoreError> {
        ready(read_everything(&mut Snapshot::Sqlite(&mut self.connection)))
    }
}
