//! llama.cpp's kernels are libraries of their own, for one kind of CPU each; the best one that this CPU can run is loaded.

use std::ffi::{CString, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_NOW};
use llama_cpp_sys_2 as sys;

/// There is no library of kernels that this CPU can run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there are no kernels for this CPU; looked for libggml-cpu*.so in {}", .looked_in.join(" and "))]
pub struct NoKernels {
    looked_in: Vec<String>,
}

/// Loads the kernels, unless that was done before.
pub fn load() -> Result<(), NoKernels> {
    static LOADED: OnceLock<Result<(), NoKernels>> = OnceLock::new();
    LOADED.get_or_init(load_first_of_folders).clone()
}

fn load_first_of_folders() -> Result<(), NoKernels> {
    let folders = folders();
    for folder in folders.iter().filter(|folder| folder.is_dir()) {
        let Ok(folder) = CString::new(folder.as_os_str().as_bytes()) else { continue };
        // SAFETY: the text lives until it returns. The libraries are those that were built with this program.
        unsafe { sys::ggml_backend_load_all_from_path(folder.as_ptr()) };
        // SAFETY: it only looks at what is loaded.
        if unsafe { !sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU).is_null() } {
            return Ok(());
        }
    }
    Err(NoKernels { looked_in: folders.iter().map(|folder| folder.display().to_string()).collect() })
}

/// Beside the program; and where they were built, if it is still there.
fn folders() -> Vec<PathBuf> {
    let program = std::env::current_exe().ok();
    let beside = program.and_then(|program| Some(program.parent()?.join("kernels")));
    let built = if cfg!(feature = "portable") { None } else { sys::BACKENDS_DIR.map(PathBuf::from) };
    beside.into_iter().chain(built).collect()
}

/// The library of kernels that is loaded.
pub(crate) fn cpu_library() -> Option<Library> {
    const RTLD_NOLOAD: c_int = 4;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps.lines().find_map(|line| {
        let path = line.get(line.find('/')?..)?;
        path.rsplit('/').next()?.starts_with("libggml-cpu").then_some(path)
    })?;
    // SAFETY: it is loaded already, so no initialiser runs; and it stays loaded as long as the program runs.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_NOLOAD) }.ok()
}
