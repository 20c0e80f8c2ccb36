//! The `backup` command: a copy of the SQLite file that can be served as it is.

use std::io::Write;
use std::path::Path;

use format::count;
use store::Database;

use crate::error::CliError;
use crate::settings::Settings;

pub(crate) fn run(settings: &Settings, to: &Path) -> Result<(), CliError> {
    let Database::Sqlite(from) = settings.database_location() else {
        return Err(CliError::new(
            "`database_url` is a PostgreSQL server, which has its own means: `pg_dump`, or `pg_basebackup` for all of it",
        ));
    };
    let (source, target) = (from.display(), to.display());
    if !from.is_file() {
        return Err(CliError::new(format!("there is no database {source}: there is nothing to be backed up")));
    }
    let copy = store::back_up(&from, to)
        .map_err(|error| CliError::new(format!("{source} was not backed up to {target}: {error}. Name a file that is not there yet, in a folder that is there, can be written and has room.")))?;
    let (requests, bytes) = (count(copy.requests, "request"), copy.bytes);
    writeln!(std::io::stdout(), "{source} is now in {target}: {requests}, {bytes} bytes, sound.")?;
    Ok(())
}
