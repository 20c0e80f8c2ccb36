//! Acknowledged requests are never lost and never counted twice, neither by SIGKILL nor by a full disk.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, prlimit};
use serde_json::Value;
use tempfile::TempDir;
use testbed::{Behaviour, FakeRuntime, Installation, Request, Service, chat_body, on_postgres, seeded_rng, wait_for};

use crate::ADRIATICUM;

const ROUNDS: u32 = 15;

#[test]
fn sigkill_under_load_loses_nothing_that_was_acknowledged() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let mut service = ADRIATICUM.service_with(&[&runtime]).start();
    let key = service.key();
    // Failures are acknowledged, too.
    let requests = [chat_body("hello"), chat_body("hello"), chat_body("hello"), "{".to_owned()]
        .map(|body| Request::chat(&key, body).bytes());
    let acknowledged = Mutex::new(Vec::new());
    let mut rng = seeded_rng();
    for _ in 0..ROUNDS {
        thread::scope(|scope| {
            for request in &requests {
                let mut connection = service.connect();
                let acknowledged = &acknowledged;
                scope.spawn(move || {
                    while connection.send_while_open(request) {
                        let Some(response) = connection.try_response() else { break };
                        let id = response.header("x-request-id").unwrap().to_owned();
                        acknowledged.lock().unwrap().push((id, response.status));
                    }
                });
            }
            // Killed after some responses, at a random time during the next few.
            let enough = acknowledged.lock().unwrap().len() + rng.usize(..40);
            wait_for("responses", || (acknowledged.lock().unwrap().len() >= enough).then_some(()));
            thread::sleep(Duration::from_micros(rng.u64(..10_000)));
            service.kill();
        });
        assert_each_is_recorded_once(&service, &acknowledged.lock().unwrap());
        service.start_again();
    }
    let acknowledged = acknowledged.into_inner().unwrap();
    assert!(acknowledged.len() > 100, "{} requests are no load", acknowledged.len());
    let rows = service.rows();
    assert_each_is_recorded_once(&service, &acknowledged);
    assert_eq!(service.usage()["requests"], rows.len(), "the sums cover the same rows");
    assert_eq!(service.run(&["check", "--deep"]).stdout.matches("intact").count(), 1);
}

/// Every id has one row with its status. There may be more rows, of requests that were cut off.
fn assert_each_is_recorded_once(installation: &Installation, acknowledged: &[(String, u16)]) {
    let rows = installation.rows();
    let by_id: HashMap<&str, &Value> = rows.iter().map(|row| (row["request_id"].as_str().unwrap(), row)).collect();
    assert_eq!(by_id.len(), rows.len(), "each row is there once");
    for (id, status) in acknowledged {
        let row = by_id.get(id.as_str()).unwrap_or_else(|| panic!("{id} ({status}) was acknowledged and lost"));
        assert_eq!(row["status"], *status, "{row}");
    }
}

/// A small file system in memory, unmounted when this is dropped.
struct Disk {
    folder: TempDir,
}

impl Disk {
    fn mount(bytes: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let size = format!("size={bytes}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "adriaticum-test"]).arg(folder.path());
        assert!(mount.status().unwrap().success());
        Self { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn ballast(&self) -> PathBuf {
        self.path().join("ballast")
    }

    fn fill(&self) {
        let mut ballast = File::create(self.ballast()).unwrap();
        while ballast.write(&[0; 4096]).is_ok_and(|written| written > 0) {}
    }

    fn free(&self) {
        std::fs::remove_file(self.ballast()).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let unmounted = |option: &[&str]| {
            Command::new("umount").args(option).arg(self.path()).status().is_ok_and(|status| status.success())
        };
        let _ = unmounted(&[]) || unmounted(&["--lazy"]);
    }
}

#[test]
#[ignore = "mounts a tmpfs, which only root may; `tools/test` runs it where it can"]
fn a_full_disk_is_reported_before_inference_and_service_resumes() {
    let disk = Disk::mount(8 << 20);
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).on_sqlite().data(disk.path().join("data")).start();
    survives_a_ledger_that_cannot_write(&service, &runtime, || disk.fill(), || disk.free());
}

#[test]
fn a_file_size_limit_is_reported_before_inference_and_service_resumes() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    survives_a_limit_on_file_sizes(&ADRIATICUM.service_with(&[&runtime]).on_sqlite().start(), &runtime);
}

fn survives_a_limit_on_file_sizes(service: &Service, runtime: &FakeRuntime) {
    let pid = service.pid();
    let limit = |bytes| {
        prlimit(Some(pid), Resource::Fsize, Rlimit { current: bytes, maximum: None }).unwrap();
    };
    let log = service.data().join("adriaticum.db-wal");
    let fill = || limit(Some(std::fs::metadata(&log).unwrap().len()));
    survives_a_ledger_that_cannot_write(service, runtime, fill, || limit(None));
}

fn survives_a_ledger_that_cannot_write(service: &Service, runtime: &FakeRuntime, fill: impl Fn(), free: impl Fn()) {
    let (key, weak) = (service.key(), service.key_with("weak", &["--without-completions"]));
    let mut acknowledged = Vec::new();
    let mut connection = service.connect();
    let mut ask_once = || {
        let asked = runtime.requests().len();
        let response = connection.send(Request::chat(&key, chat_body("hello")).bytes()).response();
        if response.status == 200 {
            acknowledged.push((response.completion().id, 200));
            return true;
        }
        response.expect_error("service_unavailable");
        // A completion that was computed and may still be recorded is not to be retried.
        let should_retry = if runtime.requests().len() == asked { "true" } else { "false" };
        assert_eq!(response.header("x-should-retry"), Some(should_retry), "{response:?}");
        false
    };
    for _ in 0..2 {
        (0..10).for_each(|_| assert!(ask_once()));
        fill();
        // A few rows may still fit. The first that does not fails after inference, all later ones before.
        let fitted = (0..100).take_while(|_| ask_once()).count();
        assert!(fitted < 100, "the disk is not full");
        let asked = runtime.requests().len();
        (0..20).for_each(|_| assert!(!ask_once()));
        assert_eq!(runtime.requests().len(), asked, "no inference for requests that cannot be recorded");
        let (_, figures) = service.get_ops("/metrics");
        assert!(figures.contains("adriaticum_requests_not_recorded_total "), "{figures}");
        assert!(!figures.contains("adriaticum_requests_not_recorded_total 0\n"), "{figures}");
        assert!(!figures.contains("adriaticum_ledger_commits_failed_total 0\n"), "{figures}");

        // Keys are still checked, and other errors still win.
        service.chat("nonsense", "hello").expect_error("invalid_api_key");
        service.chat(&weak, "hello").expect_error("insufficient_permission");
        service.send(&Request::chat(&key, "{")).expect_error("invalid_request");

        let since = Instant::now();
        free();
        wait_for("service again", || ask_once().then_some(()));
        assert!(since.elapsed() < Duration::from_secs(10));
    }
    assert_each_is_recorded_once(service, &acknowledged);
    assert_eq!(service.usage()["requests"], service.rows().len());
}

/// The log may be on the same full disk.
#[test]
fn a_log_that_cannot_be_written_does_no_harm() {
    let runtime = FakeRuntime::start(Behaviour::Respond(500, "{}".into()));
    let installation = ADRIATICUM.install();
    let key = installation.key();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut command = installation.command(&["serve"]);
    command.env("ADRIATICUM_RUNTIME_URLS", runtime.url()).env("ADRIATICUM_LOG", "trace");
    let service = Service::start_as(installation, command.stderr(full));
    (0..10).for_each(|_| drop(service.chat(&key, "hello").expect_error("inference_error")));
    assert_eq!(service.rows().len(), 10);
    runtime.set_behaviour(Behaviour::Echo);
    if !on_postgres() {
        survives_a_limit_on_file_sizes(&service, &runtime);
    }
}
