//! Opens the database in the data folder, for `serve` and for commands.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::Access;
use store::{Admin, Database, Store, Viewer};

use crate::error::CliError;
use crate::settings::{Settings, environment_name};

/// Proof that the operator, who runs the commands, is an administrator.
pub(crate) fn admin(operator: &Viewer) -> Result<Admin<'_>, CliError> {
    operator.admin().ok_or_else(|| CliError::new("the operator may do everything"))
}

/// Opens the database; creates the data folder if needed.
pub(crate) async fn open_store(settings: &Settings) -> Result<Store, CliError> {
    create_folder(&settings.data_dir)?;
    let database = settings.database_location();
    let remedy = match &database {
        Database::Sqlite(path) => {
            create_folder(path.parent().unwrap_or(&settings.data_dir))?;
            "Make it and its folder writable, or set `data_dir` to another folder."
        }
        Database::Postgres(_) => "Start the server, or correct `database_url` (ADRIATICUM_DATABASE_URL).",
    };
    let opened = Store::open(&database).await;
    opened.map_err(|error| {
        let remedy = match error {
            store::StoreError::SchemaTooNew { .. } => {
                "Start that version, or restore the backup from before the upgrade."
            }
            store::StoreError::SettingRefused { .. } => {
                "A write-ahead log needs a local file system: set `data_dir` to a folder on one."
            }
            store::StoreError::Locked => "Close the program that has it open exclusively.",
            _ => remedy,
        };
        let reason = match &database {
            Database::Sqlite(path) => unwritable(path).map(|error| format!(" ({})", os_error(&error))),
            Database::Postgres(_) => None,
        };
        let reason = reason.unwrap_or_default();
        CliError::new(format!("the database {database} cannot be opened: {error}{reason}. {remedy}"))
    })
}

/// The system's reason why the file, or other files in its folder, cannot be written. SQLite does not report it.
fn unwritable(database: &Path) -> Option<std::io::Error> {
    let opened = File::options().read(true).write(true).open(database);
    let folder = database.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match opened {
        Err(error) if error.kind() != ErrorKind::NotFound => Some(error),
        _ => rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK).err().map(std::io::Error::from),
    }
}

/// The message with the symbolic name that manuals use.
pub(crate) fn os_error(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::PermissionDenied => format!("{error}, EACCES"),
        ErrorKind::ReadOnlyFilesystem => format!("{error}, EROFS"),
        _ => error.to_string(),
    }
}

/// Creates a folder that only this user can read, unless it exists.
pub(crate) fn create_folder(folder: &Path) -> Result<(), CliError> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| {
        let remedy = match error.kind() {
            ErrorKind::AlreadyExists | ErrorKind::NotADirectory => "A file has that name: move it away",
            _ => "Make the folder around it writable",
        };
        let (folder, variable) = (folder.display(), environment_name("data_dir"));
        CliError::new(format!(
            "the data folder {folder} cannot be created: {}. {remedy}, or set `data_dir` ({variable}) to another.",
            os_error(&error)
        ))
    })
}
