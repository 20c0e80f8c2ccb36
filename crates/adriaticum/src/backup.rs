//! The `backup` command: copies the SQLite file while the service may be running.

use std::io::Write;
use std::path::Path;

use format::count;
use store::Database;

use crate::error::CliError;
use crate::settings::Settings;

pub(crate) fn run(settings: &Settings, to: &Path) -> Result<(), CliError> {
    let Database::Sqlite(from) = settings.database_location() else {
        return Err(CliError::new(
            "`database_url` is a PostgreSQL server: use its own tools, `pg_dump`, or `pg_basebackup` for all of it",
        ));
    };
    let (source, target) = (from.display(), to.display());
    if !from.is_file() {
        return Err(CliError::new(format!("there is no database {source}: there is nothing to back up")));
    }
    let copy = store::back_up(&from, to).map_err(|error| {
        CliError::new(format!(
            "{source} was not backed up to {target}: {error}. \
             Name a file that does not exist yet, in a folder that exists, is writable and has space."
        ))
    })?;
    let (requests, bytes) = (count(copy.requests, "request"), copy.bytes);
    writeln!(std::io::stdout(), "{source} is now in {target}: {requests}, {bytes} bytes, checked.")?;
    Ok(())
}
