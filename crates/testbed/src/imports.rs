//! The order of a crate's folders: a folder imports only folders that stand before it.

use std::fs;
use std::path::{Path, PathBuf};

/// Fails if a file of the crate in `manifest_dir` imports a folder that comes later in `order`, or one that has no place
/// there. Unit tests may import anything. `lib` and other files of the root are folders, too.
pub fn assert_imports_run_one_way(manifest_dir: &str, order: &[&str]) {
    let source = Path::new(manifest_dir).join("src");
    let mut imports = 0;
    for file in files(&source) {
        let rank = |name: &str| {
            let position = order.iter().position(|folder| *folder == name);
            position.unwrap_or_else(|| panic!("{}: {name} has no place in the order", file.display()))
        };
        let place = file.strip_prefix(&source).unwrap().iter().next().unwrap().to_str().unwrap();
        let importer = rank(place.trim_end_matches(".rs"));
        let text = fs::read_to_string(&file).unwrap();
        let program = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        for line in program.lines() {
            for name in imported(line).into_iter().filter(|name| name.starts_with(char::is_lowercase)) {
                imports += 1;
                assert!(rank(name) <= importer, "{}: against the order: {line}", file.display());
            }
        }
    }
    assert!(imports > 80, "the imports are read: {imports}");
}

/// The names after `crate::` in a line.
fn imported(line: &str) -> Vec<&str> {
    let code = line.split("//").next().unwrap_or_default();
    let is_nested = code.contains("crate::{") && code.contains("::{") && code.matches("::").count() > 1;
    assert!(!is_nested, "one folder in a line, so that this can be read: {line}");
    let name = |rest: &'_ str| rest.find(|end: char| !end.is_alphanumeric() && end != '_').unwrap_or(rest.len());
    code.split("crate::").skip(1).map(|rest| &rest[..name(rest)]).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}
