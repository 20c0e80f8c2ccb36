//! The first five minutes: what somebody sees who starts the service for the first time, and what works when pasted.

use std::io::Write;
use std::net::TcpStream;
use std::process::{Command, Stdio};

use serde_json::Value;
use testbed::{Home, Ran, Reply, Runtime, Service, eventually};

use crate::ADRIATICUM;

/// A home in front of a runtime.
fn home(runtime: &Runtime) -> Home {
    let mut home = ADRIATICUM.home();
    home.set("runtime.urls", &runtime.url());
    home
}

/// The service as it is started on a terminal; what is written to the process is typed there.
fn on_a_terminal(home: &Home) -> Command {
    let service = home.command(&["serve"]);
    let mut terminal = Command::new("script");
    let run = format!("exec '{}' serve", service.get_program().to_str().unwrap());
    terminal.args(["-qefc", &run, "/dev/null"]).current_dir(home.folder());
    for (name, value) in service.get_envs() {
        match value {
            Some(value) => terminal.env(name, value),
            None => terminal.env_remove(name),
        };
    }
    terminal.stdin(Stdio::piped());
    terminal
}

fn started(home: Home, flags: &[&str]) -> Service {
    let mut command = home.command(&[&["serve"], flags].concat());
    command.stderr(Stdio::null());
    Service::start_as(home, &mut command)
}

fn keys(home: &Home) -> usize {
    serde_json::from_str::<Vec<Value>>(&home.output(&["keys", "list", "--json"])).unwrap().len()
}

#[test]
fn the_first_key_is_shown_once_with_a_line_that_works_when_pasted() {
    let runtime = Runtime::that(Reply::Echoes);
    let mut service = started(home(&runtime), &["--first-key"]);
    let key = service.told("API key").unwrap();
    let line = service.next_line_with("curl ");
    assert!(line.starts_with("curl ") && line.contains(&key), "{line}");

    let ran = Ran::of(Command::new("sh").args(["-c", &format!("{line} --silent --show-error --fail")]));
    let answer: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"));
    assert!(answer["choices"][0]["message"]["content"].as_str().unwrap().contains("Danube"), "{answer}");
    service.ask(&key, "And where does it begin?").completed();
    assert_eq!(keys(&service), 1);

    service.kill();
    let mut again = service.command(&["serve", "--first-key"]);
    service.start_again_as(again.stderr(Stdio::null()));
    assert!(!service.greeting().contains("API key") && keys(&service) == 1, "{}", service.greeting());
    assert!(service.next_line_with("Ready.").contains("keys create NAME"));
}

#[test]
fn a_key_is_for_a_person_and_not_for_a_log() {
    let runtime = Runtime::that(Reply::Echoes);
    let mut service = started(home(&runtime), &[]);
    assert!(service.told("API key").is_none());
    let how = service.next_line_with("Create the first API key");
    assert!(how.ends_with("adriaticum keys create NAME") && keys(&service) == 0, "{how}");
}

#[test]
fn on_a_terminal_the_key_is_shown_unasked_and_ctrl_c_stops_cleanly() {
    let runtime = Runtime::that(Reply::Echoes);
    let home = home(&runtime);
    let mut terminal = on_a_terminal(&home);
    let mut service = Service::start_as(home, &mut terminal);
    let key = service.told("API key").unwrap();
    service.next_line_with("curl ");
    service.ask(&key, "Hello!").completed();

    service.typing().write_all(b"\x03").unwrap();
    assert!(service.next_line_with("stopped").contains("INFO"));
    assert_eq!(service.wait_for_exit().code(), Some(0));
    assert_eq!(service.rows().len(), 1);
}

#[test]
fn a_service_goes_with_the_terminal_that_it_was_started_on() {
    let runtime = Runtime::that(Reply::Echoes);
    let home = home(&runtime);
    let mut terminal = on_a_terminal(&home);
    let mut service = Service::start_as(home, &mut terminal);
    let address = service.address();
    TcpStream::connect(address).unwrap();
    service.kill(); // the terminal, that is
    eventually("the end of the service", || TcpStream::connect(address).is_err().then_some(()));
}

#[test]
fn a_model_that_is_not_there_is_told_and_how_to_get_it() {
    let mut home = ADRIATICUM.home();
    home.set("model", "");
    let service = started(home, &["--first-key"]);
    let greeting = service.greeting();
    assert!(greeting.contains("model.gguf is not there: completions get 503"), "{greeting}");
    assert!(greeting.contains("`adriaticum model fetch`"), "{greeting}");
}

#[test]
fn a_runtime_that_does_not_answer_is_told() {
    let mut home = ADRIATICUM.home();
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    home.set("runtime.urls", &format!("http://{gone}/v1"));
    let service = started(home, &["--first-key"]);
    assert!(service.greeting().contains("(does not answer: no connection"), "{}", service.greeting());
}
