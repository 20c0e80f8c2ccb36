//! llama.cpp's kernels are separate libraries. There is one for each kind of CPU; the best one that this CPU can run is
//! loaded. Those for GPUs are loaded if they are present and of the same build.

use std::ffi::{CStr, CString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::Library;
use llama_cpp_sys_2 as sys;

/// There is no library of kernels that this CPU can run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there are no kernels for this CPU; looked for libggml-cpu*.so in {}", .looked_in.join(" and "))]
pub struct NoKernels {
    looked_in: Vec<String>,
}

/// Loads the kernels for this CPU, unless that was done before.
pub fn load() -> Result<(), NoKernels> {
    cpu_library().map(|_| ())
}

/// The library of kernels for this CPU.
pub(crate) fn cpu_library() -> Result<&'static Library, NoKernels> {
    static LOADED: OnceLock<Result<Library, NoKernels>> = OnceLock::new();
    LOADED.get_or_init(load_for_cpu).as_ref().map_err(Clone::clone)
}

fn load_for_cpu() -> Result<Library, NoKernels> {
    let mut best: Option<(c_int, PathBuf, Library)> = None;
    for path in libraries("libggml-cpu") {
        let Ok(library) = open(&path) else { continue };
        let score = score(&library);
        if score > best.as_ref().map_or(0, |(best, ..)| *best) {
            best = Some((score, path, library));
        }
    }
    match best {
        Some((_, path, library)) if register(&path) => Ok(library),
        _ => Err(NoKernels { looked_in: folders().iter().map(|folder| folder.display().to_string()).collect() }),
    }
}

/// Loads the kernels for GPUs that lie beside the program, unless that was done before. Returns a sentence for each
/// library that is present but not used.
pub fn load_for_gpus() -> &'static [String] {
    static REFUSED: OnceLock<Vec<String>> = OnceLock::new();
    REFUSED.get_or_init(|| {
        let refused = |library: PathBuf| {
            load_for_gpu(&library).err().map(|why| format!("{} is not used: {why}", library.display()))
        };
        let all = ["libggml-cuda", "libggml-hip", "libggml-vulkan"].into_iter().flat_map(libraries);
        all.filter_map(refused).collect()
    })
}

fn load_for_gpu(path: &Path) -> Result<(), String> {
    let library = open(path).map_err(|why| format!("it cannot be loaded, perhaps its driver is missing ({why})"))?;
    let program = program_build();
    // SAFETY: native/build.c declares it so, and its text is a constant.
    let build = unsafe {
        let build = library.get::<unsafe extern "C" fn() -> *const c_char>(b"adriaticum_gpu_build\0");
        build.ok().map(|build| CStr::from_ptr(build()).to_string_lossy().into_owned())
    };
    if build.as_ref() != Some(&program) {
        let build = build.as_deref().unwrap_or("unknown");
        return Err(format!("it belongs to another build of llama.cpp ({build}; this program has {program})"));
    }
    if register(path) { Ok(()) } else { Err("its driver does not start".into()) }
}

/// The sources that this program's llama.cpp was built from, and our changes.
fn program_build() -> String {
    unsafe extern "C" {
        fn adriaticum_base_build() -> *const c_char;
    }
    // SAFETY: native/build.c declares it so, and its text is a constant.
    unsafe { CStr::from_ptr(adriaticum_base_build()) }.to_string_lossy().into_owned()
}

/// The folder beside the program, and the one where the libraries were built unless the program is portable.
fn folders() -> Vec<PathBuf> {
    let program = std::env::current_exe().ok();
    let beside = program.and_then(|program| Some(program.parent()?.join("kernels")));
    let built = if cfg!(feature = "portable") { None } else { sys::BACKENDS_DIR.map(PathBuf::from) };
    beside.into_iter().chain(built).collect()
}

/// All libraries whose name begins with `kind`, in the first folder that has any.
fn libraries(kind: &str) -> Vec<PathBuf> {
    let is_one = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(kind) && name.ends_with(".so")
    };
    let all_in = |folder: PathBuf| -> Vec<PathBuf> {
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).filter(is_one).collect()
    };
    folders().into_iter().map(all_in).find(|libraries| !libraries.is_empty()).unwrap_or_default()
}

fn open(path: &Path) -> Result<Library, libloading::Error> {
    // SAFETY: its name is that of a library of kernels, and its folder holds only those that came with the program.
    unsafe { Library::new(path) }
}

/// How well the kernels use this CPU; 0 if it cannot run them.
fn score(library: &Library) -> c_int {
    // SAFETY: llama.cpp declares it with this signature.
    unsafe { library.get::<unsafe extern "C" fn() -> c_int>(b"ggml_backend_score\0").map_or(1, |score| score()) }
}

/// Registers a library with llama.cpp.
fn register(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: the text lives until it returns.
    unsafe { !sys::ggml_backend_load(path.as_ptr()).is_null() }
}
