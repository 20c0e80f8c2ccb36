//! Models that are on this machine already.

use crate::home::{Home, complains, installed, model};
use crate::sample::Sample;

#[test]
fn a_file_is_copied_into_the_data_folder() {
    let home = Home::new();
    home.file("models/tiny model.gguf", &model("Tiny"));
    let ran = home.fetch(&["--from", "models/tiny model.gguf"]);
    installed(&ran, "Tiny", "100.51 kB");
    assert!(ran.stderr.contains("without a copy, set `model` (ADRIATICUM_MODEL)"), "{ran:?}");
    assert!(ran.stderr.contains("copying: 100 %"), "{ran:?}");
    home.assert_holds(&model("Tiny"));

    // Another takes its place; itself it leaves alone.
    home.file("other.gguf", &model("Other"));
    installed(&home.fetch(&["--from", "other.gguf"]), "Other", "100.51 kB");
    home.assert_holds(&model("Other"));
    let ran = home.fetch(&["--from", "data/model.gguf"]);
    installed(&ran, "Other", "100.51 kB");
    assert!(ran.stderr.contains("nothing to copy"), "{ran:?}");
    home.assert_holds(&model("Other"));
}

#[test]
fn what_is_only_fetched_if_needed_is_fetched_once() {
    let home = Home::new();
    home.file("tiny.gguf", &model("Tiny"));
    home.file("other.gguf", &model("Other"));
    installed(&home.fetch(&["--if-needed", "--from", "tiny.gguf"]), "Tiny", "100.51 kB");
    let ran = home.fetch(&["--if-needed", "--from", "other.gguf"]);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("", ""), "{ran:?}");
    home.assert_holds(&model("Tiny"));
}

#[test]
fn a_file_that_is_no_model_is_refused_and_changes_nothing() {
    let whole = model("Tiny");
    let mut corrupt = whole.clone();
    corrupt[20..24].fill(0xff);
    let split = Sample::model("Tiny", 8).pair("split.count", 2, &[2, 0]).bytes();
    let cases: &[(&[u8], &str)] = &[
        (b"", "is not a GGUF file"),
        (b"{\"model\": true}", "is not a GGUF file"),
        (&whole[..whole.len() - 1], "is cut off or damaged"),
        (&whole[..whole.len() / 2], "is cut off or damaged"),
        (&whole[..100], "is cut off or damaged"),
        (&corrupt, "is damaged"),
        (&split, "is one of 2 pieces of a model"),
    ];
    for (bytes, says) in cases {
        let home = Home::new();
        home.file("file.gguf", bytes);
        let ran = home.fetch(&["--from", "file.gguf"]);
        complains(&ran, &["file.gguf", says]);
        assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
        assert!(!home.data().exists());

        home.file("data/model.gguf", &whole);
        complains(&home.fetch(&["--from", "file.gguf"]), &["file.gguf", says]);
        home.assert_holds(&whole);
    }
}

#[test]
fn a_path_that_leads_nowhere_is_told() {
    let home = Home::new();
    for path in ["missing.gguf", "./models/missing.gguf", "models/missing.gguf", "a/b/c/../d", "/a/b"] {
        complains(&home.fetch(&["--from", path]), &[&format!("there is no file {path}"), "OWNER/REPO"]);
    }
    complains(&home.fetch(&["--from", "bin"]), &["bin is not a file"]);
    assert!(!home.data().exists());
}

#[test]
fn a_data_folder_that_cannot_be_made_is_told() {
    let home = Home::new();
    home.file("tiny.gguf", &model("Tiny"));
    home.file("data", b"in the way");
    complains(&home.fetch(&["--from", "tiny.gguf"]), &["data cannot be written", "`data_dir`"]);
    complains(&home.fetch(&[]), &["data cannot be written", "`data_dir`"]);
}
