//! Imports between the folders of the console run one way: a folder imports only folders that stand before it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

/// From the bottom to the top; `routes` and `lib` are files.
const ORDER: [&str; 11] =
    ["credentials", "page", "playground", "sign_in", "usage", "people", "limits", "keys", "overview", "routes", "lib"];

#[test]
fn imports_between_folders_run_one_way() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut imports = 0;
    for file in files(&source) {
        let place = file.strip_prefix(&source).unwrap().iter().next().unwrap().to_str().unwrap();
        let importer = rank(place.trim_end_matches(".rs"), &file);
        let text = fs::read_to_string(&file).unwrap();
        for (line, imported) in text.lines().flat_map(|line| imported(line).into_iter().map(move |name| (line, name))) {
            imports += 1;
            assert!(rank(imported, &file) <= importer, "{}: against the order: {line}", file.display());
        }
    }
    assert!(imports > 100, "the test reads the imports: {imports}");
}

/// The names after `crate::` in a line.
fn imported(line: &str) -> Vec<&str> {
    let code = line.split("//").next().unwrap_or_default();
    assert!(!code.contains("crate::{"), "one folder in a line, so that this test can read it: {line}");
    let name = |rest: &'_ str| rest.find(|end: char| !end.is_alphanumeric() && end != '_').unwrap_or(rest.len());
    code.split("crate::").skip(1).map(|rest| &rest[..name(rest)]).collect()
}

fn rank(name: &str, file: &Path) -> usize {
    let position = ORDER.iter().position(|folder| *folder == name);
    position.unwrap_or_else(|| panic!("{}: {name} has no place in the order", file.display()))
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}
