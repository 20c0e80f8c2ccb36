//! The `migrate` command: copies a SQLite file to a PostgreSQL server.

use std::io::Write;

use store::{CopiedTable, Database, PostgresSettings};

use crate::cli::MigrateOptions;
use crate::error::CliError;
use crate::progress::{ProgressOutput, Unit};
use crate::settings::Settings;
use crate::table::Table;

pub(crate) async fn run(settings: &Settings, options: MigrateOptions) -> Result<(), CliError> {
    let from = match (options.from, settings.database_location()) {
        (Some(file), _) | (None, Database::Sqlite(file)) => file,
        (None, Database::Postgres(_)) => {
            return Err(CliError::new(
                "`database_url` is a PostgreSQL server already; give the SQLite file to copy with --from FILE",
            ));
        }
    };
    if !from.is_file() {
        let from = from.display();
        return Err(CliError::new(format!("there is no database {from}: there is nothing to copy")));
    }
    let to = PostgresSettings { url: options.to, connections: 1, timeout: settings.database.timeout };
    let mut shown: Option<(&str, ProgressOutput)> = None;
    let mut progress = |table, done, total| {
        if shown.as_ref().is_none_or(|(name, _)| *name != table) {
            shown = Some((table, ProgressOutput::new(table, Unit::Rows, total, 0)));
        }
        if let Some((_, progress)) = &mut shown {
            progress.set(done);
        }
    };
    let copied = store::copy(&from, &to, &mut progress).await.map_err(|error| {
        let (from, to) = (from.display(), &to.url);
        CliError::new(format!("{from} was not copied to {to}: {error}. Nothing was changed."))
    })?;
    drop(shown);
    let (table, from, to) = (table(&copied), from.display(), &to.url);
    write!(
        std::io::stdout(),
        "{table}\n{from} is now in {to}, and both agree. {from} was only read.\n\
         What a running service records in {from} from now on is not in the copy: stop the service, run this command\n\
         once more, and start it again with `database_url` (ADRIATICUM_DATABASE_URL) set to the new database.\n"
    )?;
    Ok(())
}

fn table(copied: &[CopiedTable]) -> Table {
    let mut table = Table::new(&["TABLE", ">ROWS", ">SUMS COMPARED"]);
    copied.iter().for_each(|each| table.row([each.table.into(), format::number(each.rows), each.sums.to_string()]));
    table
}
