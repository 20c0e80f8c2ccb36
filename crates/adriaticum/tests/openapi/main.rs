//! The API's description for machines: it is the one that is checked in, everybody may read it, and the service holds
//! to it, as Schemathesis sees it, which makes up requests from it, good and bad ones.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod edges;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use testbed::{Behaviour, Connection, FakeRuntime, Program, Request, Service};

pub(crate) const ADRIATICUM: Program = Program::new(env!("CARGO_BIN_EXE_adriaticum"));
/// Set it to have `docs/openapi.json` written anew.
const REWRITE: &str = "REWRITE_OPENAPI";
const EXAMPLES: &str = "200";
/// The same requests every time.
const SEED: &str = "7";

/// Where the console listens.
fn console(service: &Service) -> SocketAddr {
    let origin = service.banner_value("Console").unwrap();
    format!("127.0.0.1:{}", origin.rsplit_once(':').unwrap().1).parse().unwrap()
}

/// What the console gives to whoever asks.
fn served(service: &Service) -> Value {
    let request = Request::chat("", "").without("Authorization").method("GET").target("/openapi.json");
    Connection::connect(console(service)).send(request.bytes()).response().json()
}

#[test]
fn the_description_is_public_and_the_one_that_is_checked_in() {
    let served = served(&ADRIATICUM.service().set("api.base_url", "http://localhost:8080/v1").start());
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    if std::env::var_os(REWRITE).is_some() {
        std::fs::write(&file, format!("{served:#}\n")).unwrap();
    }
    let kept: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert!(kept == served, "docs/openapi.json is out of date: `make openapi` writes it anew");
}

#[test]
fn it_names_the_base_url_that_callers_use() {
    let service = ADRIATICUM.service().set("api.base_url", "https://api.localhost/base/v1/").start();
    assert_eq!(served(&service)["servers"][0]["url"], "https://api.localhost/base/v1");
}

#[test]
fn the_service_holds_to_its_description() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/openapi");
    let output = Command::new(schemathesis())
        .envs([("PYTHONPATH", here.as_os_str()), ("SCHEMATHESIS_HOOKS", "integers".as_ref())])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .arg("--config-file")
        .arg(here.join("schemathesis.toml"))
        .arg("run")
        .arg(format!("http://{}/openapi.json", console(&service)))
        .args(["--url", &format!("http://{}/v1", service.address())])
        .args(["--header", &format!("Authorization: Bearer {}", service.key())])
        .args(["--max-examples", EXAMPLES, "--seed", SEED])
        .args(["--generation-database", "none", "--continue-on-failure", "--no-color"])
        .current_dir(service.folder())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    println!("{told}");
    // Nothing was left out: whatever it made up has reached the service, and what was good a runtime.
    assert!(runtime.requests().len() >= 50, "{} completions: {told}", runtime.requests().len());
    let refused = service.rows().iter().filter(|row| row["status"] == 400).count();
    assert!(refused >= 50, "{refused} refusals: {told}");
}

/// The program, which `tools/prepare --tests` puts into the user's cache.
fn schemathesis() -> PathBuf {
    let program = testbed::cache_folder().join("schemathesis/bin/schemathesis");
    assert!(program.exists(), "{} is missing: `tools/prepare --tests` installs it", program.display());
    program
}
