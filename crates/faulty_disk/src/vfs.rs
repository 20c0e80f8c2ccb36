//! SQLite's built-in file layers for systems without locks or shared memory.

use std::ffi::CString;

use rusqlite::ffi;

/// Calls `run` while connections are opened through another of SQLite's built-in file layers: `unix-none` has neither locks
/// nor shared memory, `unix-dotfile` no shared memory. No other thread may open a database at the same time.
pub fn with_default_vfs<T>(name: &str, run: impl FnOnce() -> T) -> T {
    make_default(name);
    let result = run();
    make_default("unix");
    result
}

fn make_default(name: &str) {
    let c_name = CString::new(name).expect("a name without zero bytes");
    // SAFETY: the name is a C string; the returned object is static.
    let vfs = unsafe { ffi::sqlite3_vfs_find(c_name.as_ptr()) };
    assert!(!vfs.is_null(), "SQLite has no file layer {name}");
    // SAFETY: registering a built-in layer again only moves it to the front.
    let registered = unsafe { ffi::sqlite3_vfs_register(vfs, 1) };
    assert_eq!(registered, ffi::SQLITE_OK);
}
