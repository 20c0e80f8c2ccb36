//! The first five minutes: the output of the first start, and that its commands work when pasted.

use std::io::Write;
use std::net::TcpStream;
use std::process::{Command, Stdio};

use serde_json::Value;
use testbed::{Behaviour, FakeRuntime, Installation, Output, Service, wait_for};

use crate::ADRIATICUM;

/// An installation in front of a runtime.
fn installation(runtime: &FakeRuntime) -> Installation {
    let mut installation = ADRIATICUM.install();
    installation.set("runtime.urls", &runtime.url());
    installation
}

/// The service started on a terminal; the process's standard input is the keyboard.
fn on_a_terminal(installation: &Installation) -> Command {
    let service = installation.command(&["serve"]);
    let mut terminal = Command::new("script");
    let run = format!("exec '{}' serve", service.get_program().to_str().unwrap());
    terminal.args(["-qefc", &run, "/dev/null"]).current_dir(installation.folder());
    for (name, value) in service.get_envs() {
        match value {
            Some(value) => terminal.env(name, value),
            None => terminal.env_remove(name),
        };
    }
    terminal.stdin(Stdio::piped());
    terminal
}

fn started(installation: Installation, flags: &[&str]) -> Service {
    let mut command = installation.command(&[&["serve"], flags].concat());
    command.stderr(Stdio::null());
    Service::start_as(installation, &mut command)
}

fn keys(installation: &Installation) -> usize {
    serde_json::from_str::<Vec<Value>>(&installation.run_ok(&["keys", "list", "--json"])).unwrap().len()
}

#[test]
fn the_first_key_is_shown_once_with_a_line_that_works_when_pasted() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let mut service = started(installation(&runtime), &["--first-key"]);
    let key = service.banner_value("API key").unwrap();
    let line = service.next_line_with("curl ");
    assert!(line.starts_with("curl ") && line.contains(&key), "{line}");

    let output = Output::from_command(Command::new("sh").args(["-c", &format!("{line} --silent --show-error --fail")]));
    let response: Value = serde_json::from_str(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    assert!(
        response["choices"][0]["message"]["content"].as_str().unwrap().contains("what a database is"),
        "{response}"
    );
    service.chat(&key, "And where does it begin?").completion();
    assert_eq!(keys(&service), 1);

    service.kill();
    let mut again = service.command(&["serve", "--first-key"]);
    service.start_again_as(again.stderr(Stdio::null()));
    assert!(!service.banner().contains("API key") && keys(&service) == 1, "{}", service.banner());
    assert!(service.next_line_with("Ready.").contains("keys create NAME"));
}

#[test]
fn without_a_terminal_no_key_is_created_or_shown() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let mut service = started(installation(&runtime), &[]);
    assert!(service.banner_value("API key").is_none());
    let how = service.next_line_with("Create the first API key");
    assert!(how.ends_with("adriaticum keys create NAME") && keys(&service) == 0, "{how}");
}

#[test]
fn on_a_terminal_the_key_is_shown_unasked_and_ctrl_c_stops_cleanly() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let installation = installation(&runtime);
    let mut terminal = on_a_terminal(&installation);
    let mut service = Service::start_as(installation, &mut terminal);
    let key = service.banner_value("API key").unwrap();
    service.next_line_with("curl ");
    service.chat(&key, "Hello!").completion();

    service.stdin().write_all(b"\x03").unwrap();
    assert!(service.next_line_with("stopped").contains("INFO"));
    assert_eq!(service.wait_for_exit().code(), Some(0));
    assert_eq!(service.rows().len(), 1);
}

#[test]
fn a_service_stops_with_its_terminal() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let installation = installation(&runtime);
    let mut terminal = on_a_terminal(&installation);
    let mut service = Service::start_as(installation, &mut terminal);
    let address = service.address();
    TcpStream::connect(address).unwrap();
    service.kill(); // the terminal
    wait_for("the end of the service", || TcpStream::connect(address).is_err().then_some(()));
}

#[test]
fn a_missing_model_is_reported_with_how_to_fetch_it() {
    let mut installation = ADRIATICUM.install();
    installation.set("model", "");
    let service = started(installation, &["--first-key"]);
    let greeting = service.banner();
    assert!(greeting.contains("model.gguf is not there: completions get 503"), "{greeting}");
    assert!(greeting.contains("`adriaticum model fetch`"), "{greeting}");
}

#[test]
fn an_unreachable_runtime_is_reported() {
    let mut installation = ADRIATICUM.install();
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    installation.set("runtime.urls", &format!("http://{gone}/v1"));
    let service = started(installation, &["--first-key"]);
    assert!(service.banner().contains("(does not answer: no connection"), "{}", service.banner());
}
