//! The commands around the engine.

use std::net::TcpListener;

use testbed::{Engine, Ran, Status};

use crate::embedded::Embedded;
use crate::{ADRIATICUM, turn};

/// One sentence that says what is wrong, and a code that says that something is.
fn assert_complaint(ran: &Ran, about: &str) {
    assert!(ran.code.is_some_and(|code| code != 0), "{ran:?}");
    // What llama.cpp has to say is in the log before it.
    let complaints: Vec<_> = ran.stderr.lines().filter_map(|line| line.strip_prefix("adriaticum: ")).collect();
    let [complaint] = complaints[..] else { panic!("one sentence: {ran:?}") };
    assert!(complaint.contains(about) && complaint.ends_with('.'), "{ran:?}");
    assert!(!ran.stderr.contains("panicked") && ran.stdout.is_empty(), "{ran:?}");
}

#[test]
fn check_completes_with_the_model() {
    let _turn = turn();
    let ran = Embedded::new().home().run(&["check"]);
    let line = ran.stdout.lines().find(|line| line.contains(" model "));
    assert!(line.is_some_and(|line| line.starts_with("ok ") && line.contains("completes")), "{ran:?}");
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn check_says_that_a_file_is_no_model() {
    let _turn = turn();
    let mut home = ADRIATICUM.home();
    let file = home.folder().join("letter.gguf");
    std::fs::write(&file, "To whom it may concern").unwrap();
    home.set("model", file.to_str().unwrap());
    let ran = home.run(&["check"]);
    let line = ran.stdout.lines().find(|line| line.contains(" model "));
    assert!(line.is_some_and(|line| line.starts_with("FAIL") && line.contains("letter.gguf")), "{ran:?}");
    assert_eq!(ran.code, Some(1), "{ran:?}");
}

#[test]
fn an_engine_complains_about_an_address_in_use() {
    let _turn = turn();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let home = ADRIATICUM.home();
    home.use_cached_tuning();
    let ran = home.run(&["engine", "--model", ADRIATICUM.default_model().to_str().unwrap(), "--listen", &address]);
    assert_complaint(&ran, &format!("cannot listen on {address}"));
    assert_eq!(ran.code, Some(1), "{ran:?}");
}

#[test]
fn an_engine_complains_about_a_model_that_is_none() {
    let _turn = turn();
    let home = ADRIATICUM.home();
    std::fs::write(home.folder().join("letter.gguf"), "To whom it may concern").unwrap();
    for file in ["nonsense", "letter.gguf", "."] {
        assert_complaint(&home.run(&["engine", "--model", file, "--listen", "127.0.0.1:0"]), file);
    }
}

#[test]
fn an_engine_serves_a_unix_socket_and_removes_it_at_the_end() {
    let _turn = turn();
    let mut engine = Engine::start_at(ADRIATICUM, "unix:here.sock");
    let socket = engine.folder().join("here.sock");
    let status = Status::over_socket(&socket).expect("an engine behind the socket");
    assert!(status.is_idle() && status.get("context") == 8192, "{status:?}");
    assert_eq!(engine.stop().code(), Some(0));
    assert!(!socket.exists());
}
