//! The default model, fetched and tuned once per machine, and the sentence encoder, both kept in the user's cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::{Installation, Program};

/// The files that tests keep on this machine between runs.
pub fn cache_folder() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| Path::new(&std::env::var_os("HOME").unwrap()).join(".cache"));
    cache.join("adriaticum")
}

/// The folder of the tuning. Not the model's folder, because engines of tests also have other models.
fn tuning_folder() -> PathBuf {
    cache_folder().join("test-tuning")
}

impl Program {
    /// The default model's file.
    pub fn default_model(self) -> &'static Path {
        static MODEL: OnceLock<PathBuf> = OnceLock::new();
        MODEL.get_or_init(|| {
            let (folder, tuned) = (cache_folder().join("test-model"), tuning_folder());
            let model = folder.join("model.gguf");
            let (kept, file) = (folder.to_str().unwrap(), model.to_str().unwrap());
            self.install().run_ok(&["model", "fetch", "--data-dir", kept]);
            // A tuning is valid for one build of the program.
            let modified = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
            if modified(&tuned.join("tuning.json")) < modified(Path::new(self.binary())) {
                let data = tuned.to_str().unwrap();
                self.install().run_ok(&["engine", "tune", "--model", file, "--data-dir", data]);
            }
            model
        })
    }
}

impl Installation {
    /// Finds documents by meaning, too.
    pub fn use_sentence_encoder(&mut self) {
        const FILE: &str = "sentence-encoder.whl";
        static FETCHED: OnceLock<PathBuf> = OnceLock::new();
        let kept = FETCHED.get_or_init(|| {
            let folder = cache_folder().join("test-encoder");
            let mut installation = self.program().install();
            installation.set_data(folder.clone());
            installation.set("search.embeddings", "on");
            fs::create_dir_all(installation.folder().join("empty")).unwrap();
            let _ = fs::remove_dir_all(folder.join("index")); // of another version, or none
            installation.run_ok(&["index", "add", "empty"]);
            folder.join(FILE)
        });
        self.set("search.embeddings", "on");
        fs::create_dir_all(self.data()).unwrap();
        fs::copy(kept, self.data().join(FILE)).unwrap();
    }
}

/// A copy of the default model whose words are split by another vocabulary's rules. `pre_tokenizer` has six letters, like
/// the original's.
pub fn with_pre_tokenizer(model: &Path, pre_tokenizer: &str, copy: &Path) {
    let mut bytes = fs::read(model).unwrap();
    let key = b"tokenizer.ggml.pre";
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap() + key.len() + 4 + 8;
    assert_eq!(&bytes[at..at + 6], b"smollm");
    bytes[at..at + 6].copy_from_slice(pre_tokenizer.as_bytes());
    fs::write(copy, bytes).unwrap();
}

impl Installation {
    /// Copies the cached tuning of the default model, so that an engine skips it.
    pub fn use_cached_tuning(&self) {
        fs::create_dir_all(self.data()).unwrap();
        self.program().default_model();
        fs::copy(tuning_folder().join("tuning.json"), self.data().join("tuning.json")).unwrap();
    }
}
