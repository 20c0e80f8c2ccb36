//! The functions of the C library that this crate replaces, for every file of the process.
//!
//! A function that the program defines takes precedence over the library's of the same name, so SQLite and Rust's standard
//! library call these. Each checks whether the file is in a watched folder, gets a verdict, makes a raw system call, and
//! records it in the model. None of them may panic: their callers are C.

use std::collections::HashMap;
use std::ffi::{CStr, OsStr, c_char, c_int, c_long, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use libc::{mode_t, off_t, size_t, ssize_t};

use crate::disk::{Operation, Place, Target, Verdict, Watched, find};
use crate::model::FileId;

/// Files with a higher number are not watched; tests open fewer.
const MAX_FILES: usize = 4096;

/// Whether an open file is watched; without a lock, because sockets and pipes also use these functions.
static IS_WATCHED: [AtomicBool; MAX_FILES] = [const { AtomicBool::new(false) }; MAX_FILES];
static OPEN: LazyLock<Mutex<HashMap<c_int, OpenFile>>> = LazyLock::new(Mutex::default);

#[derive(Clone)]
struct OpenFile {
    watched: Arc<Watched>,
    target: Target,
    /// Another handle's sync has failed and lost writes. This handle reports the error once, too.
    has_lost_writes: bool,
}

fn open_files() -> MutexGuard<'static, HashMap<c_int, OpenFile>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn flag(file: c_int) -> Option<&'static AtomicBool> {
    IS_WATCHED.get(usize::try_from(file).ok()?)
}

fn watched(file: c_int) -> Option<OpenFile> {
    flag(file)?.load(Ordering::Acquire).then(|| open_files().get(&file).cloned()).flatten()
}

fn fail(error: c_int) -> c_int {
    // SAFETY: the pointer is to this thread's errno.
    unsafe { *libc::__errno_location() = error };
    -1
}

fn path_of<'a>(path: *const c_char) -> Option<&'a Path> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller of a function that takes a path passes a C string, which outlives the call.
    let text = unsafe { CStr::from_ptr(path) };
    Some(Path::new(OsStr::from_bytes(text.to_bytes())))
}

/// Not variadic like the library's: on Linux an integer is passed in the same way, and is only used if a file is created.
fn open_file(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    let call = || {
        // SAFETY: the arguments are those of our caller.
        let opened = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags | libc::O_LARGEFILE, mode) };
        opened as c_int
    };
    let Some((watched, place)) = path_of(path).and_then(find) else { return call() };
    let mut state = watched.state();
    match watched.judge(&mut state, Operation::Open, 0) {
        Verdict::Fail(error) => return fail(error),
        Verdict::Cut => return fail(libc::EIO),
        _ => {}
    }
    if state.is_read_only() && flags & (libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT) != 0 {
        return fail(libc::EROFS);
    }
    let file = call();
    let Some(flag) = flag(file) else { return file };
    let target = match place {
        Place::Folder => Target::Folder,
        Place::File(name) => {
            let id = state.model.find(&name).unwrap_or_else(|| state.model.create(&name));
            if flags & libc::O_TRUNC != 0 {
                state.model.resize(id, 0);
            }
            Target::File(id)
        }
    };
    state.open_files += 1;
    drop(state);
    open_files().insert(file, OpenFile { watched, target, has_lost_writes: false });
    flag.store(true, Ordering::Release);
    file
}

fn write_file(file: c_int, bytes: *const c_void, count: size_t, offset: Option<off_t>) -> ssize_t {
    let call = |count: size_t| {
        let written = match offset {
            // SAFETY: the arguments are those of our caller, and `count` is not more than it said.
            Some(offset) => unsafe { libc::syscall(libc::SYS_pwrite64, file, bytes, count, offset) },
            // SAFETY: as above.
            None => unsafe { libc::syscall(libc::SYS_write, file, bytes, count) },
        };
        written as ssize_t
    };
    let Some(OpenFile { watched, target: Target::File(id), .. }) = watched(file) else { return call(count) };
    let at = offset.unwrap_or_else(|| {
        // SAFETY: this only reads the position of an open file.
        unsafe { libc::lseek(file, 0, libc::SEEK_CUR) }
    });
    // SAFETY: the caller of `write` passes that many readable bytes.
    let content = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), count) };
    let mut state = watched.state();
    let count = match watched.judge(&mut state, Operation::Write, count) {
        Verdict::Pass => count,
        Verdict::Short(count) => count,
        Verdict::Fail(error) => return fail(error) as ssize_t,
        Verdict::Cut => {
            state.model.write(id, at as usize, content);
            return fail(libc::EIO) as ssize_t;
        }
    };
    let written = call(count);
    if let Ok(written) = usize::try_from(written) {
        state.model.write(id, at as usize, &content[..written]);
    }
    written
}

fn read_file(file: c_int, call: impl FnOnce() -> c_long) -> ssize_t {
    if let Some(OpenFile { watched, .. }) = watched(file) {
        let mut state = watched.state();
        if let Verdict::Fail(error) = watched.judge(&mut state, Operation::Read, 0) {
            return fail(error) as ssize_t;
        }
    }
    call() as ssize_t
}

fn resize_file(file: c_int, size: off_t) -> c_int {
    let call = || {
        // SAFETY: the arguments are those of our caller.
        let resized = unsafe { libc::syscall(libc::SYS_ftruncate, file, size) };
        resized as c_int
    };
    let Some(OpenFile { watched, target: Target::File(id), .. }) = watched(file) else { return call() };
    let mut state = watched.state();
    let resized = match watched.judge(&mut state, Operation::Resize, 0) {
        Verdict::Fail(error) => return fail(error),
        Verdict::Cut => {
            state.model.resize(id, size as usize);
            return fail(libc::EIO);
        }
        _ => call(),
    };
    if resized == 0 {
        state.model.resize(id, size as usize);
    }
    resized
}

/// The real file is not synced: only the model decides what survives.
fn sync_file(file: c_int, number: c_long) -> c_int {
    let Some(OpenFile { watched, target, has_lost_writes }) = watched(file) else {
        // SAFETY: the argument is that of our caller.
        return unsafe { libc::syscall(number, file) } as c_int;
    };
    let mut state = watched.state();
    let operation = match target {
        Target::File(_) => Operation::Sync,
        Target::Folder => Operation::SyncFolder,
    };
    match (watched.judge(&mut state, operation, 0), target) {
        (Verdict::Fail(error), Target::File(id)) => {
            let forgets = !watched.is_cut() && state.fail_sync(id);
            drop(state);
            if forgets {
                report_lost_writes(&watched, id, file);
            }
            fail(error)
        }
        (Verdict::Fail(error), Target::Folder) => fail(error),
        (Verdict::Cut, _) => fail(libc::EIO),
        (_, Target::File(id)) => {
            state.model.sync(id);
            drop(state);
            match has_lost_writes {
                true => {
                    open_files().entry(file).and_modify(|open| open.has_lost_writes = false);
                    fail(libc::EIO)
                }
                false => 0,
            }
        }
        (_, Target::Folder) => {
            state.model.sync_folder();
            0
        }
    }
}

/// Like Linux: every handle that was open at that time reports the error once.
fn report_lost_writes(watched: &Arc<Watched>, id: FileId, by: c_int) {
    for (&file, open) in open_files().iter_mut() {
        let is_same = Arc::ptr_eq(&open.watched, watched) && matches!(open.target, Target::File(other) if other == id);
        open.has_lost_writes |= is_same && file != by;
    }
}

#[unsafe(no_mangle)]
extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    open_file(path, flags, mode)
}

#[unsafe(no_mangle)]
extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    open_file(path, flags, mode)
}

#[unsafe(no_mangle)]
extern "C" fn close(file: c_int) -> c_int {
    if let Some(flag) = flag(file)
        && flag.swap(false, Ordering::AcqRel)
        && let Some(OpenFile { watched, .. }) = open_files().remove(&file)
    {
        watched.state().open_files -= 1;
    }
    // SAFETY: the argument is that of our caller.
    let closed = unsafe { libc::syscall(libc::SYS_close, file) };
    closed as c_int
}

#[unsafe(no_mangle)]
extern "C" fn write(file: c_int, bytes: *const c_void, count: size_t) -> ssize_t {
    write_file(file, bytes, count, None)
}

#[unsafe(no_mangle)]
extern "C" fn pwrite(file: c_int, bytes: *const c_void, count: size_t, offset: off_t) -> ssize_t {
    write_file(file, bytes, count, Some(offset))
}

#[unsafe(no_mangle)]
extern "C" fn pwrite64(file: c_int, bytes: *const c_void, count: size_t, offset: off_t) -> ssize_t {
    write_file(file, bytes, count, Some(offset))
}

#[unsafe(no_mangle)]
extern "C" fn read(file: c_int, bytes: *mut c_void, count: size_t) -> ssize_t {
    // SAFETY: the arguments are those of our caller.
    read_file(file, || unsafe { libc::syscall(libc::SYS_read, file, bytes, count) })
}

#[unsafe(no_mangle)]
extern "C" fn pread(file: c_int, bytes: *mut c_void, count: size_t, offset: off_t) -> ssize_t {
    // SAFETY: the arguments are those of our caller.
    read_file(file, || unsafe { libc::syscall(libc::SYS_pread64, file, bytes, count, offset) })
}

#[unsafe(no_mangle)]
extern "C" fn pread64(file: c_int, bytes: *mut c_void, count: size_t, offset: off_t) -> ssize_t {
    pread(file, bytes, count, offset)
}

#[unsafe(no_mangle)]
extern "C" fn ftruncate(file: c_int, size: off_t) -> c_int {
    resize_file(file, size)
}

#[unsafe(no_mangle)]
extern "C" fn ftruncate64(file: c_int, size: off_t) -> c_int {
    resize_file(file, size)
}

#[unsafe(no_mangle)]
extern "C" fn fsync(file: c_int) -> c_int {
    sync_file(file, libc::SYS_fsync)
}

#[unsafe(no_mangle)]
extern "C" fn fdatasync(file: c_int) -> c_int {
    sync_file(file, libc::SYS_fdatasync)
}

#[unsafe(no_mangle)]
extern "C" fn unlink(path: *const c_char) -> c_int {
    let call = || {
        // SAFETY: the argument is that of our caller.
        let removed = unsafe { libc::syscall(libc::SYS_unlinkat, libc::AT_FDCWD, path, 0) };
        removed as c_int
    };
    let Some((watched, Place::File(name))) = path_of(path).and_then(find) else { return call() };
    let mut state = watched.state();
    let removed = match watched.judge(&mut state, Operation::Remove, 0) {
        Verdict::Fail(error) => return fail(error),
        Verdict::Cut => {
            state.model.remove(&name);
            return fail(libc::EIO);
        }
        _ => call(),
    };
    if removed == 0 {
        state.model.remove(&name);
    }
    removed
}

#[unsafe(no_mangle)]
extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    let call = || {
        // SAFETY: the arguments are those of our caller.
        let renamed = unsafe { libc::syscall(libc::SYS_renameat2, libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0) };
        renamed as c_int
    };
    let Some((watched, Place::File(old))) = path_of(from).and_then(find) else { return call() };
    let Some((_, Place::File(new))) = path_of(to).and_then(find) else { return fail(libc::EXDEV) };
    let mut state = watched.state();
    let renamed = match watched.judge(&mut state, Operation::Rename, 0) {
        Verdict::Fail(error) => return fail(error),
        Verdict::Cut => {
            state.model.rename(&old, &new);
            return fail(libc::EIO);
        }
        _ => call(),
    };
    if renamed == 0 {
        state.model.rename(&old, &new);
    }
    renamed
}
