//! Models that are local files.

use testbed::gguf::GgufFile;

use crate::sandbox::{Sandbox, complains, installed, model};

#[test]
fn a_file_is_copied_into_the_data_folder() {
    let sandbox = Sandbox::new();
    sandbox.file("models/tiny model.gguf", &model("Tiny"));
    let output = sandbox.fetch(&["--from", "models/tiny model.gguf"]);
    installed(&output, "Tiny", "100.51 kB");
    assert!(output.stderr.contains("without a copy, set `model` (ADRIATICUM_MODEL)"), "{output:?}");
    assert!(output.stderr.contains("copying: 100 %"), "{output:?}");
    sandbox.assert_holds(&model("Tiny"));

    // Another file replaces it; the installed file itself is not copied.
    sandbox.file("other.gguf", &model("Other"));
    installed(&sandbox.fetch(&["--from", "other.gguf"]), "Other", "100.51 kB");
    sandbox.assert_holds(&model("Other"));
    let output = sandbox.fetch(&["--from", "data/model.gguf"]);
    installed(&output, "Other", "100.51 kB");
    assert!(output.stderr.contains("nothing to copy"), "{output:?}");
    sandbox.assert_holds(&model("Other"));
}

#[test]
fn fetching_if_needed_fetches_once() {
    let sandbox = Sandbox::new();
    sandbox.file("tiny.gguf", &model("Tiny"));
    sandbox.file("other.gguf", &model("Other"));
    installed(&sandbox.fetch(&["--if-needed", "--from", "tiny.gguf"]), "Tiny", "100.51 kB");
    let output = sandbox.fetch(&["--if-needed", "--from", "other.gguf"]);
    assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("", ""), "{output:?}");
    sandbox.assert_holds(&model("Tiny"));
}

#[test]
fn a_file_that_is_no_model_is_refused_and_changes_nothing() {
    let whole = model("Tiny");
    let mut corrupt = whole.clone();
    corrupt[20..24].fill(0xff);
    let split = GgufFile::model("Tiny", 8).pair("split.count", 2, &[2, 0]).bytes();
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
        let sandbox = Sandbox::new();
        sandbox.file("file.gguf", bytes);
        let output = sandbox.fetch(&["--from", "file.gguf"]);
        complains(&output, &["file.gguf", says]);
        assert_eq!(output.stderr.lines().count(), 1, "{output:?}");
        assert!(!sandbox.data().exists());

        sandbox.file("data/model.gguf", &whole);
        complains(&sandbox.fetch(&["--from", "file.gguf"]), &["file.gguf", says]);
        sandbox.assert_holds(&whole);
    }
}

#[test]
fn a_missing_path_is_reported() {
    let sandbox = Sandbox::new();
    for path in ["missing.gguf", "./models/missing.gguf", "models/missing.gguf", "a/b/c/../d", "/a/b"] {
        complains(&sandbox.fetch(&["--from", path]), &[&format!("there is no file {path}"), "OWNER/REPO"]);
    }
    complains(&sandbox.fetch(&["--from", "bin"]), &["bin is not a file"]);
    assert!(!sandbox.data().exists());
}

#[test]
fn a_data_folder_that_cannot_be_created_is_reported() {
    let sandbox = Sandbox::new();
    sandbox.file("tiny.gguf", &model("Tiny"));
    sandbox.file("data", b"in the way");
    complains(&sandbox.fetch(&["--from", "tiny.gguf"]), &["data cannot be written", "`data_dir`"]);
    complains(&sandbox.fetch(&[]), &["data cannot be written", "`data_dir`"]);
}
