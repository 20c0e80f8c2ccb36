//! Output for operators: `check`, the log, and the same timings of a request in every place.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::{Value, json};
use testbed::{Behaviour, FakeRuntime, Output, Request, Service};

use crate::ADRIATICUM;
use crate::collector::Collector;

fn assert_json_lines(log: &str) {
    for line in log.lines() {
        let parsed = serde_json::from_str::<Value>(line);
        assert!(parsed.is_ok_and(|line| line["level"].is_string() && line["message"].is_string()), "{line}");
    }
}

/// A whole GGUF file with one small tensor, of an architecture that does not exist.
fn unknown_architecture() -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let mut file = [b"GGUF", &3_u32.to_le_bytes()[..], &1_u64.to_le_bytes(), &1_u64.to_le_bytes()].concat();
    file.extend([text("general.architecture"), 8_u32.to_le_bytes().to_vec(), text("quagga")].concat());
    file.extend([text("token_embd.weight"), 1_u32.to_le_bytes().to_vec(), 32_u64.to_le_bytes().to_vec()].concat());
    file.extend([&0_u32.to_le_bytes()[..], &0_u64.to_le_bytes()].concat());
    file.resize(file.len().next_multiple_of(32) + 32 * 4, 0);
    file
}

fn cut_off() -> Vec<u8> {
    let mut file = unknown_architecture();
    file.truncate(file.len() - 64);
    file
}

fn serve_model(bytes: &[u8]) -> Service {
    let mut installation = ADRIATICUM.install();
    let file = installation.folder().join("model.gguf");
    std::fs::write(&file, bytes).unwrap();
    installation.set("model", file.to_str().unwrap());
    let log = std::fs::File::create(installation.folder().join("log")).unwrap();
    let mut command = installation.command(&["serve"]);
    Service::start_as(installation, command.stderr(log))
}

#[test]
fn a_model_that_cannot_be_loaded_is_named_with_its_fault() {
    for (bytes, fault) in [
        (b"To whom it may concern: this is no model.".to_vec(), "is not a GGUF file"),
        (cut_off(), "is cut off or damaged"),
        (unknown_architecture(), "a model of the architecture \"quagga\""),
    ] {
        let service = serve_model(&bytes);
        let key = service.key();
        let refused = ADRIATICUM.wait_for("the refusal", || {
            let response = service.chat(&key, "hello");
            Some(response).filter(|response| !response.error().message.contains("being loaded"))
        });
        assert_eq!((refused.status, refused.error().message.as_str()), (503, "The model could not be loaded."));
        let (_, readiness) = service.get_ops("/readyz");
        assert!(readiness.contains("The model could not be loaded"), "{readiness}");
        let log = service.log();
        assert!(log.replace('\\', "").contains(fault), "{log}");
        assert_json_lines(&log);
        let output = service.run(&["check"]);
        let line = output.stdout.lines().find(|line| line.contains("model "));
        assert!(line.is_some_and(|line| line.starts_with("FAIL") && line.contains(fault)), "{output:?}");
    }
}

#[test]
fn all_wrong_settings_are_listed_together() {
    let installation = ADRIATICUM.install();
    installation.configure("grunding = \"off\"\n[api]\nmax_requests = 0\ndrain = \"soon\"\n");
    for command in ["check", "serve", "config"] {
        let output = installation.run(&["--set", "log=loud", command]);
        assert_eq!(output.code, Some(1), "{output:?}");
        for name in ["grunding", "api.max_requests", "api.drain", "log"] {
            assert!(output.stderr.contains(&format!("`{name}`")), "without {name}: {output:?}");
        }
        assert_eq!(output.stderr.lines().count(), 4, "{output:?}");
        if command == "serve" {
            assert_json_lines(&output.stderr);
        }
    }
}

#[test]
fn a_log_is_json_from_the_first_line_to_the_last() {
    let mut installation = ADRIATICUM.install();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    installation.set("api.listen", &taken.local_addr().unwrap().to_string());
    let output = Output::from_command(installation.command(&["serve"]).env("ADRIATICUM_API_LISTN", "127.0.0.1:1"));
    assert!(output.stderr.contains("ADRIATICUM_API_LISTN") && output.stderr.contains("api.listen"), "{output:?}");
    assert_json_lines(&output.stderr);
}

#[test]
fn check_distinguishes_its_own_service_from_another_and_sends_no_request() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let mut other = ADRIATICUM.install();
    other.set("runtime.urls", &runtime.url());
    let set = [
        format!("--set=api.listen={}", service.address()),
        format!("--set=console.listen={}", service.console_address()),
        format!("--set=ops.listen={}", service.ops_address()),
    ];
    let check = [&set[0], &set[1], &set[2], "check"];
    let own = service.run(&check);
    assert_eq!(own.code, Some(0), "{own:?}");
    assert_eq!(own.stdout.matches("in use by a running service").count(), 3, "{own:?}");
    let others = other.run(&check);
    assert_eq!(others.code, Some(1), "{others:?}");
    for setting in ["api.listen", "console.listen", "ops.listen"] {
        let failed = |line: &str| line.starts_with("FAIL") && line.contains(setting);
        assert!(others.stdout.lines().any(failed), "{others:?}");
    }
    service.chat(&service.key(), "hello").completion();
    let request = ADRIATICUM.wait_for("the request's line", || {
        let log = service.log();
        let requests: Vec<_> = log.lines().filter(|line| line.contains(r#""message":"request""#)).collect();
        (!requests.is_empty()).then(|| requests.iter().map(|line| line.to_string()).collect::<Vec<_>>())
    });
    assert_eq!(request.len(), 1, "{request:?}");
}

/// Permissions hold for root, too, once it has lost the capability to override them.
fn run_without_override(installation: &testbed::Installation, arguments: &[&str]) -> Output {
    let command = installation.command(arguments);
    if !rustix::process::geteuid().is_root() {
        return Output::from_command(&mut { command });
    }
    let mut confined = Command::new("setpriv");
    confined.arg("--bounding-set=-dac_override").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => confined.env(name, value),
            None => confined.env_remove(name),
        };
    }
    Output::from_command(confined.current_dir(installation.folder()))
}

#[test]
fn a_data_folder_without_permission_is_named_with_its_error() {
    let installation = ADRIATICUM.install();
    std::fs::create_dir(installation.data()).unwrap();
    std::fs::set_permissions(installation.data(), PermissionsExt::from_mode(0o555)).unwrap();
    let output = run_without_override(&installation, &["check"]);
    assert_eq!(output.code, Some(1), "{output:?}");
    let failed = |line: &str| line.starts_with("FAIL") && line.contains("storage") && line.contains("EACCES");
    assert!(output.stdout.lines().any(failed), "{output:?}");
}

#[test]
fn a_request_has_the_same_timings_in_every_output() {
    let (runtime, collector) = (FakeRuntime::start(Behaviour::Echo), Collector::new());
    let mut service = ADRIATICUM.service_with(&[&runtime]).set("otlp.endpoint", &collector.url()).start();
    let key = service.key();
    let ids: Vec<_> = (0..5).map(|_| service.chat(&key, "hello").completion().id).collect();
    service.send(&Request::chat(&key, "{}")).expect_error("invalid_request");
    // The time at which a commit was durable is written by the next commit, or within a second.
    let rows = ADRIATICUM.wait_for("times of all commits", || {
        let rows = service.rows();
        (rows.len() == 6 && rows.iter().all(|row| !row["persist_us"].is_null())).then_some(rows)
    });
    service.signal(rustix::process::Signal::TERM); // sends the spans
    service.wait_for_exit();
    let (log, spans) = (service.log(), collector.spans());
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for row in rows {
        let line = lines.iter().find(|line| line["request_id"] == row["request_id"] && line["message"] == "request");
        for time in ["queue_us", "search_us", "inference_us", "persist_us", "total_us"] {
            let logged = line.unwrap().get(time).unwrap_or(&Value::Null);
            assert_eq!(logged, &row[time], "{time} of {} in {ids:?}", json!(row));
        }
        let root = spans
            .iter()
            .find(|span| span.attribute("gen_ai.response.id") == row["request_id"].as_str().map(Into::into));
        let parts: Vec<_> = spans.iter().filter(|span| span.parent == root.unwrap().id).collect();
        for (name, time) in [("inference", "inference_us"), ("persist", "persist_us")] {
            let traced = parts.iter().find(|span| span.name == name).map(|span| span.micros());
            assert_eq!(traced, row[time].as_u64(), "{name} of {row}");
        }
    }
}
