//! A folder whose disk can fail, and the verdict on each call.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::model::{FileId, Model};

/// A folder on a disk that can fail. Its files are watched until this is dropped; it has no subfolders.
pub struct Disk {
    watched: Arc<Watched>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    Open,
    Read,
    Write,
    Resize,
    Sync,
    SyncFolder,
    Remove,
    Rename,
}

/// How often calls fail.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// One in this many calls fails; none if 0. Reads fail a tenth as often.
    pub one_in: u32,
    /// The number of consecutive calls that find the disk full, once one does.
    pub full_for: u32,
    /// Whether a failed sync loses the writes, as on Linux: a later sync succeeds without them. Otherwise a later sync
    /// writes them to the disk.
    pub sync_forgets: bool,
}

/// How a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// A power cut: writes that were not synced may be lost.
    Power,
    /// The process is killed, but the system keeps running: nothing is lost.
    Kill,
}

/// The numbers of calls of each kind and of those that failed, before the cut.
pub type Counts = HashMap<Operation, (u64, u64)>;

impl Disk {
    /// Watches an existing folder, which is empty or has only closed files.
    pub fn new(folder: &Path, seed: u64) -> std::io::Result<Self> {
        let folder = folder.canonicalize()?;
        let state = State {
            model: Model::with_files(read_files(&folder)?),
            rng: fastrand::Rng::with_seed(seed),
            faults: Faults::default(),
            full_for: 0,
            cut_after: None,
            cut: None,
            is_read_only: false,
            is_offline: false,
            open_files: 0,
            counts: Counts::new(),
        };
        let watched = Arc::new(Watched { folder, state: Mutex::new(state), is_cut: AtomicBool::new(false) });
        lock(&WATCHED).push(watched.clone());
        Ok(Self { watched })
    }

    pub fn folder(&self) -> &Path {
        &self.watched.folder
    }

    pub fn set_faults(&self, faults: Faults) {
        let mut state = self.watched.state();
        state.faults = faults;
        state.full_for = 0;
    }

    /// As if it were mounted read-only.
    pub fn set_read_only(&self, read_only: bool) {
        self.watched.state().is_read_only = read_only;
    }

    /// Cuts the disk at the `calls`-th call that is not a read. From then on every call fails.
    pub fn cut_after(&self, calls: u64, cut: Cut) {
        self.watched.state().cut_after = Some((calls, cut));
    }

    /// Does nothing if the disk is already cut.
    pub fn cut_now(&self, cut: Cut) {
        self.watched.state().cut.get_or_insert(cut);
        self.watched.is_cut.store(true, Ordering::SeqCst);
    }

    pub fn is_cut(&self) -> bool {
        self.watched.is_cut()
    }

    /// Restarts after the cut, without faults. Panics if there was no cut, or a file is still open.
    pub fn restart(&self) -> std::io::Result<()> {
        let mut state = self.watched.state();
        assert_eq!(state.open_files, 0, "files of the ended process are still open");
        if state.cut.take().expect("there was a cut") == Cut::Power {
            let State { model, rng, .. } = &mut *state;
            let files = model.after_power_cut(rng);
            state.is_offline = true;
            drop(state);
            replace_files(&self.watched.folder, &files)?;
            state = self.watched.state();
            state.is_offline = false;
            state.model = Model::with_files(files);
        }
        state.faults = Faults::default();
        state.full_for = 0;
        state.cut_after = None;
        self.watched.is_cut.store(false, Ordering::SeqCst);
        Ok(())
    }

    pub fn counts(&self) -> Counts {
        self.watched.state().counts.clone()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        lock(&WATCHED).retain(|watched| !Arc::ptr_eq(watched, &self.watched));
    }
}

fn read_files(folder: &Path) -> std::io::Result<Vec<(String, Vec<u8>)>> {
    std::fs::read_dir(folder)?
        .map(|entry| {
            let entry = entry?;
            Ok((entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path())?))
        })
        .collect()
}

fn replace_files<'a>(folder: &Path, files: impl IntoIterator<Item = (&'a String, &'a Vec<u8>)>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        std::fs::remove_file(entry?.path())?;
    }
    files.into_iter().try_for_each(|(name, content)| std::fs::write(folder.join(name), content))
}

static WATCHED: Mutex<Vec<Arc<Watched>>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder's state for the replaced calls.
pub(crate) struct Watched {
    folder: PathBuf,
    state: Mutex<State>,
    is_cut: AtomicBool,
}

pub(crate) struct State {
    pub(crate) model: Model,
    rng: fastrand::Rng,
    faults: Faults,
    /// Calls that will still find the disk full.
    full_for: u32,
    /// Calls other than reads until the cut.
    cut_after: Option<(u64, Cut)>,
    cut: Option<Cut>,
    is_read_only: bool,
    /// While the folder is rewritten, it is not watched.
    is_offline: bool,
    pub(crate) open_files: u32,
    counts: Counts,
}

/// The object that a watched path names.
pub(crate) enum Place {
    Folder,
    File(String),
}

/// The object that is open.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    Folder,
    File(FileId),
}

/// The result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Pass,
    /// Only this many bytes are written.
    Short(usize),
    Fail(i32),
    /// The power is cut during the call: any part of it may reach the disk.
    Cut,
}

/// The watched folder of a path, and the object in it that the path names.
pub(crate) fn find(path: &Path) -> Option<(Arc<Watched>, Place)> {
    lock(&WATCHED).iter().find_map(|watched| {
        let place = match path.strip_prefix(&watched.folder).ok()?.to_str()? {
            "" => Place::Folder,
            name => Place::File(name.to_owned()),
        };
        (!watched.state().is_offline).then(|| (watched.clone(), place))
    })
}

impl Watched {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::SeqCst)
    }

    /// Decides the result of a call. `bytes` is the size of a write.
    pub(crate) fn judge(&self, state: &mut State, operation: Operation, bytes: usize) -> Verdict {
        if state.cut.is_some() {
            return Verdict::Fail(libc::EIO);
        }
        if let (Some((left, cut)), false) = (&mut state.cut_after, operation == Operation::Read) {
            *left = left.saturating_sub(1);
            if *left == 0 {
                state.cut = Some(*cut);
                self.is_cut.store(true, Ordering::SeqCst);
                return if *cut == Cut::Power { Verdict::Cut } else { Verdict::Fail(libc::EIO) };
            }
        }
        let verdict = state.draw(operation, bytes);
        let (all, failed) = state.counts.entry(operation).or_default();
        *all += 1;
        *failed += u64::from(verdict != Verdict::Pass);
        verdict
    }
}

impl State {
    fn draw(&mut self, operation: Operation, bytes: usize) -> Verdict {
        let Self { rng, faults, full_for, .. } = self;
        let takes_space = matches!(operation, Operation::Write | Operation::Resize);
        if *full_for > 0 && takes_space {
            *full_for -= 1;
            return Verdict::Fail(libc::ENOSPC);
        }
        let one_in = faults.one_in.saturating_mul(if operation == Operation::Read { 10 } else { 1 });
        if one_in == 0 || rng.u32(..one_in) != 0 {
            return Verdict::Pass;
        }
        match operation {
            Operation::Write if bytes > 1 && rng.bool() => {
                *full_for = if rng.bool() { faults.full_for } else { 0 };
                Verdict::Short(rng.usize(1..bytes))
            }
            Operation::Write | Operation::Resize if rng.bool() => {
                *full_for = faults.full_for;
                Verdict::Fail(libc::ENOSPC)
            }
            Operation::Open => {
                Verdict::Fail(*rng.choice(&[libc::EMFILE, libc::EIO, libc::EROFS]).unwrap_or(&libc::EIO))
            }
            _ => Verdict::Fail(libc::EIO),
        }
    }

    /// Applies a failed sync; `true` if it has lost writes.
    pub(crate) fn fail_sync(&mut self, file: FileId) -> bool {
        let Self { model, rng, faults, .. } = self;
        if faults.sync_forgets {
            model.fail_sync(file, rng);
        }
        faults.sync_forgets
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only
    }
}
