//! `backup --all` and `restore`: one archive of the database, the index and the settings, with the digest of each file.
//!
//! An archive has its final name only once it is complete. A restore unpacks and checks everything under a temporary name
//! first: a damaged archive leaves nothing behind, and no file is overwritten.

use std::fs::{File, Permissions};
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use format::count;
use grounding::index::{IndexId, Indexer};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use store::Database;
use tempfile::TempDir;
use zip::write::SimpleFileOptions;
use zip::{ZipArchive, ZipWriter};

use crate::error::CliError;
use crate::index;
use crate::output::print_line;
use crate::settings::Settings;
use crate::storage::create_folder;

const FORMAT: u32 = 1;
const MANIFEST: &str = "manifest.json";
const DATABASE: &str = "adriaticum.db";
const SETTINGS: &str = "adriaticum.toml";
const INDEX: &str = "index/";
const MAX_MANIFEST_BYTES: u64 = 16 << 20;

/// The last file of an archive.
#[derive(Serialize, Deserialize)]
struct Manifest {
    format: u32,
    /// The program's version.
    version: String,
    created_at: String,
    files: Vec<Entry>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Entry {
    name: String,
    bytes: u64,
    sha256: String,
}

pub(crate) async fn back_up(settings: &Settings, to: &Path) -> Result<(), CliError> {
    let target = to.display();
    let failed = |reason: String| CliError::new(format!("{target} was not written: {reason}"));
    if to.symlink_metadata().is_ok() {
        return Err(failed("it already exists, and is not overwritten".into()));
    }
    let indexer = Indexer::new(settings.index_folder());
    let index = indexer.lock().map_err(|error| failed(format!("{error}.")))?;
    let staging = staging(&PathBuf::from(format!("{target}.partial"))).map_err(|error| failed(format!("{error}.")))?;
    let partial = staging.path().join("archive");
    let file = create_file(&partial).map_err(|error| failed(format!("{error}.")))?;
    let mut archive = Writer { zip: ZipWriter::new(BufWriter::new(file)), entries: Vec::new() };
    let mut parts = Vec::new();
    match settings.database_location() {
        Database::Sqlite(from) => {
            let copy = staging.path().join(DATABASE);
            let summary = store::back_up(&from, &copy).map_err(|error| failed(format!("{error}.")))?;
            index::compare(summary.index.map(IndexId::from), &indexer)?;
            archive.add_file(DATABASE, &copy).map_err(failed)?;
            parts.push(format!("the database with {}", count(summary.requests, "request")));
        }
        Database::Postgres(_) => index::check(settings, &indexer).await?,
    }
    if let Some(index) = &index {
        for path in index.files() {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            archive.add_file(&format!("{INDEX}{name}"), path).map_err(failed)?;
        }
        parts.push("the index".into());
    }
    archive.add(SETTINGS, settings.without_secrets().as_bytes()).map_err(failed)?;
    parts.push("the settings without their secrets".into());
    archive.finish().map_err(failed)?;
    persist(&partial, to).map_err(|error| failed(format!("{error}.")))?;
    print_line(&format!("{target} holds {}.", parts.join(", ")))?;
    if let Database::Postgres(_) = settings.database_location() {
        print_line("The database is NOT in it: `database_url` is a PostgreSQL server. Back it up with `pg_dump`.")?;
    }
    Ok(())
}

pub(crate) fn restore(settings: &Settings, from: &Path) -> Result<(), CliError> {
    let source = from.display();
    let failed = |reason: String| CliError::new(format!("{source} was not restored: {reason} Nothing was changed."));
    let mut archive = Reader::open(from).map_err(failed)?;
    let has = |start: &str| archive.manifest.files.iter().any(|entry| entry.name.starts_with(start));
    let (has_database, has_index) = (has(DATABASE), has(INDEX));
    let database = match settings.database_location() {
        Database::Sqlite(path) => Some(path),
        Database::Postgres(_) => None,
    };
    if has_database && database.is_none() {
        let remedy = "restore it without `database_url`, then run `adriaticum migrate`.";
        return Err(failed(format!("it holds a SQLite database, and `database_url` is a PostgreSQL server: {remedy}")));
    }
    let (index, toml) = (settings.index_folder(), settings.data_dir.join(SETTINGS));
    let mut targets = vec![toml.clone()];
    targets.extend(has_index.then(|| index.clone()));
    if let Some(path) = database.iter().find(|_| has_database) {
        targets.extend(["", "-wal", "-shm"].map(|end| PathBuf::from(format!("{}{end}", path.display()))));
    }
    if let Some(there) = targets.iter().find(|path| path.symlink_metadata().is_ok()) {
        let remedy = "name another folder with --data-dir";
        return Err(failed(format!("{} already exists, and is not overwritten: {remedy}.", there.display())));
    }
    create_folder(&settings.data_dir)?;
    let staging = staging(&settings.data_dir.join("restore.partial"))
        .map_err(|error| failed(format!("a folder for its files cannot be created: {error}.")))?;
    archive.unpack(staging.path()).map_err(failed)?;
    let mut parts = Vec::new();
    if has_database {
        let summary = store::check_copy(&staging.path().join(DATABASE)).map_err(|error| failed(format!("{error}.")))?;
        parts.push(format!("the database with {}", count(summary.requests, "request")));
    }
    if has_index {
        let index = Indexer::new(staging.path().join(INDEX)).list();
        index.map_err(|error| failed(format!("{error}.")))?;
        parts.push("the index".into());
    }
    let moved = |from: &str, to: &Path| {
        let place = |error| CliError::new(format!("{} could not be put in place: {error}", to.display()));
        persist(&staging.path().join(from), to).map_err(place)
    };
    // The database last: without it, the restore can be repeated.
    moved(SETTINGS, &toml)?;
    if has_index {
        moved(INDEX, &index)?;
    }
    if let Some(path) = database.filter(|_| has_database) {
        create_folder(path.parent().unwrap_or(&settings.data_dir))?;
        moved(DATABASE, &path)?;
    }
    let folder = settings.data_dir.display();
    parts.push(format!("the settings in {}", toml.display()));
    print_line(&format!("{source}, of {}, is now in {folder}: {}.", archive.manifest.created_at, parts.join(", ")))?;
    if !has_database {
        print_line("The database is NOT in it: restore it on the PostgreSQL server with `pg_restore`.")?;
    }
    print_line(&format!(
        "Secrets are not in it: add any to the settings. Then run: adriaticum --config {} --data-dir {folder} check --deep",
        toml.display()
    ))
}

struct Writer {
    zip: ZipWriter<BufWriter<File>>,
    entries: Vec<Entry>,
}

impl Writer {
    fn add_file(&mut self, name: &str, path: &Path) -> Result<(), String> {
        let file = File::open(path).map_err(|error| format!("{} cannot be read: {error}.", path.display()))?;
        self.add(name, BufReader::new(file))
    }

    fn add(&mut self, name: &str, mut from: impl Read) -> Result<(), String> {
        self.zip.start_file(name, options()).map_err(|error| format!("{error}."))?;
        let (bytes, sha256) = copy(&mut from, &mut self.zip).map_err(|error| format!("{error}."))?;
        self.entries.push(Entry { name: name.into(), bytes, sha256 });
        Ok(())
    }

    fn finish(mut self) -> Result<(), String> {
        let created_at = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let manifest = Manifest { format: FORMAT, version, created_at, files: self.entries };
        let written = || -> Result<(), Box<dyn std::error::Error>> {
            self.zip.start_file(MANIFEST, options())?;
            serde_json::to_writer_pretty(&mut self.zip, &manifest)?;
            self.zip.finish()?.flush()?;
            Ok(())
        };
        written().map_err(|error| format!("{error}."))
    }
}

fn options() -> SimpleFileOptions {
    SimpleFileOptions::default().large_file(true).unix_permissions(0o600)
}

struct Reader {
    zip: ZipArchive<BufReader<File>>,
    manifest: Manifest,
}

impl Reader {
    fn open(path: &Path) -> Result<Self, String> {
        let file = File::open(path).map_err(|error| format!("it cannot be read: {error}."))?;
        let no_archive = "it is not a complete archive of `adriaticum backup --all`.";
        let mut zip = ZipArchive::new(BufReader::new(file)).map_err(|_| no_archive.to_owned())?;
        let manifest = match zip.by_name(MANIFEST) {
            Ok(entry) => serde_json::from_reader(entry.take(MAX_MANIFEST_BYTES)).map_err(|_| damaged(MANIFEST))?,
            Err(_) => return Err(no_archive.into()),
        };
        let manifest: Manifest = manifest;
        match manifest.format {
            FORMAT => Ok(Self { zip, manifest }),
            _ => Err(format!("it was written by version {}: restore it with that version.", manifest.version)),
        }
    }

    /// Unpacks the files that the manifest names, and compares each with its digest.
    fn unpack(&mut self, folder: &Path) -> Result<(), String> {
        for entry in &self.manifest.files {
            let name = entry.name.as_str();
            let file = name.strip_prefix(INDEX).unwrap_or(name);
            if file.contains(['/', '\0']) || ["", ".", ".."].contains(&file) {
                return Err(damaged(name));
            }
            let path = folder.join(name);
            let cannot = |error: std::io::Error| format!("{} cannot be written: {error}.", path.display());
            create_folder(path.parent().unwrap_or(folder)).map_err(|error| error.to_string())?;
            let mut packed = self.zip.by_name(name).map_err(|_| damaged(name))?;
            let mut target = BufWriter::new(create_file(&path).map_err(cannot)?);
            let (bytes, sha256) = copy(&mut packed, &mut target).map_err(|error| match error.kind() {
                std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof => damaged(name),
                _ => cannot(error),
            })?;
            target.flush().and_then(|()| target.get_ref().sync_all()).map_err(cannot)?;
            if (bytes, &sha256) != (entry.bytes, &entry.sha256) {
                return Err(damaged(name));
            }
        }
        Ok(())
    }
}

fn damaged(name: &str) -> String {
    format!("it is damaged: {name} in it is missing or was changed.")
}

/// Copies everything, and returns the number of bytes and their digest.
fn copy(from: &mut impl Read, to: &mut impl Write) -> std::io::Result<(u64, String)> {
    let (mut bytes, mut digest, mut buffer) = (0, Sha256::new(), vec![0; 1 << 16]);
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => return Ok((bytes, base16ct::lower::encode_string(&digest.finalize()))),
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        digest.update(&buffer[..read]);
        to.write_all(&buffer[..read])?;
        bytes += read as u64;
    }
}

/// Only this user can read the file.
fn create_file(path: &Path) -> std::io::Result<File> {
    File::options().write(true).create_new(true).mode(0o600).open(path)
}

/// Gives a file or folder its name once it is durable.
fn persist(from: &Path, to: &Path) -> std::io::Result<()> {
    File::open(from)?.sync_all()?;
    std::fs::rename(from, to)?;
    File::open(folder_of(to))?.sync_all()
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A folder that only this user can read; removed on drop. The fixed name keeps out a second command with the same target.
fn staging(path: &Path) -> std::io::Result<TempDir> {
    let name = path.file_name().unwrap_or_default();
    let permissions = Permissions::from_mode(0o700);
    tempfile::Builder::new().prefix(name).rand_bytes(0).permissions(permissions).tempdir_in(folder_of(path))
}
