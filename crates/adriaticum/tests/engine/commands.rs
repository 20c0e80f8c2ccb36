//! The engine's commands.

use std::net::TcpListener;

use testbed::{Engine, EngineStatus, Output};

use crate::embedded::EmbeddedBuilder;
use crate::{ADRIATICUM, run_alone};

/// The command fails with one sentence about the cause.
fn assert_one_sentence(output: &Output, about: &str) {
    assert!(output.code.is_some_and(|code| code != 0), "{output:?}");
    // llama.cpp logs before it.
    let lines = output.stderr.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let complaints: Vec<_> = lines.filter(|line| line["level"] == "ERROR" && line["target"] == "adriaticum").collect();
    let [complaint] = &complaints[..] else { panic!("one sentence: {output:?}") };
    let complaint = complaint["message"].as_str().unwrap();
    assert!(complaint.contains(about) && complaint.ends_with('.'), "{output:?}");
    assert!(!output.stderr.contains("panicked") && output.stdout.is_empty(), "{output:?}");
}

#[test]
fn check_completes_with_the_model() {
    let _alone = run_alone();
    let output = EmbeddedBuilder::new().installation().run(&["check"]);
    let line = output.stdout.lines().find(|line| line.contains(" model "));
    assert!(line.is_some_and(|line| line.starts_with("ok ") && line.contains("completes")), "{output:?}");
    assert_eq!(output.code, Some(0), "{output:?}");
}

#[test]
fn check_reports_a_file_that_is_no_model() {
    let _alone = run_alone();
    let mut installation = ADRIATICUM.install();
    let file = installation.folder().join("letter.gguf");
    std::fs::write(&file, "To whom it may concern").unwrap();
    installation.set("model", file.to_str().unwrap());
    let output = installation.run(&["check"]);
    let line = output.stdout.lines().find(|line| line.contains(" model "));
    assert!(line.is_some_and(|line| line.starts_with("FAIL") && line.contains("letter.gguf")), "{output:?}");
    assert_eq!(output.code, Some(1), "{output:?}");
}

#[test]
fn an_engine_reports_an_address_in_use() {
    let _alone = run_alone();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let installation = ADRIATICUM.install();
    installation.use_cached_tuning();
    let output =
        installation.run(&["engine", "--model", ADRIATICUM.default_model().to_str().unwrap(), "--listen", &address]);
    assert_one_sentence(&output, &format!("cannot listen on {address}"));
    assert_eq!(output.code, Some(1), "{output:?}");
}

#[test]
fn an_engine_reports_a_file_that_is_no_model() {
    let _alone = run_alone();
    let installation = ADRIATICUM.install();
    std::fs::write(installation.folder().join("letter.gguf"), "To whom it may concern").unwrap();
    for file in ["nonsense", "letter.gguf", "."] {
        assert_one_sentence(&installation.run(&["engine", "--model", file, "--listen", "127.0.0.1:0"]), file);
    }
}

#[test]
fn an_engine_serves_a_unix_socket_and_removes_it_at_the_end() {
    let _alone = run_alone();
    let mut engine = Engine::start_at(ADRIATICUM, "unix:here.sock");
    let socket = engine.folder().join("here.sock");
    let status = EngineStatus::over_socket(&socket).expect("an engine behind the socket");
    assert!(status.is_idle() && status.get("context") == 8192, "{status:?}");
    assert_eq!(engine.stop().code(), Some(0));
    assert!(!socket.exists());
}
