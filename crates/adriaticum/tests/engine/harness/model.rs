//! The default model: fetched and tuned once per machine, and kept in the user's cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::Home;

/// The model's file.
pub(crate) fn model() -> &'static Path {
    static MODEL: OnceLock<PathBuf> = OnceLock::new();
    MODEL.get_or_init(|| {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.unwrap_or_else(|| Path::new(&std::env::var_os("HOME").unwrap()).join(".cache"));
        let folder = cache.join("adriaticum/test-model");
        let model = folder.join("model.gguf");
        let (kept, file) = (folder.to_str().unwrap(), model.to_str().unwrap());
        Home::new().output(&["model", "fetch", "--data-dir", kept]);
        if !folder.join("tuning.json").is_file() {
            Home::new().output(&["engine", "tune", "--model", file, "--data-dir", kept]);
        }
        model
    })
}

/// Spares an engine with that data folder the tuning.
pub(crate) fn tune(data: &Path) {
    fs::create_dir_all(data).unwrap();
    fs::copy(model().with_file_name("tuning.json"), data.join("tuning.json")).unwrap();
}
