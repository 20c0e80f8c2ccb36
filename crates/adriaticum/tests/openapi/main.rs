//! The OpenAPI description: the file that is checked in describes the code, it is public, and the service conforms to it,
//! which Schemathesis tests with valid and invalid requests.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod description;
mod edges;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use testbed::{Behaviour, Connection, FakeRuntime, Program, Request, Service};

pub(crate) const ADRIATICUM: Program = Program::new(env!("CARGO_BIN_EXE_adriaticum"));
/// If set, `docs/openapi.json` is written.
const REWRITE: &str = "REWRITE_OPENAPI";
const BASE_URL: &str = "http://localhost:8080/v1";
const EXAMPLES: &str = "200";
/// The same requests in every run.
const SEED: &str = "7";

/// The console's address.
fn console(service: &Service) -> SocketAddr {
    let origin = service.banner_value("Console").unwrap();
    format!("127.0.0.1:{}", origin.rsplit_once(':').unwrap().1).parse().unwrap()
}

/// The description that the console serves.
fn served(service: &Service) -> Value {
    let request = Request::chat("", "").without("Authorization").method("GET").target("/openapi.json");
    Connection::connect(console(service)).send(request.bytes()).response().json()
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json")
}

#[test]
fn the_file_describes_the_code() {
    let description = format!("{:#}\n", description::document(BASE_URL));
    if std::env::var_os(REWRITE).is_some() {
        std::fs::write(file(), &description).unwrap();
    }
    let kept = std::fs::read_to_string(file()).unwrap();
    assert!(kept == description, "docs/openapi.json is out of date: run `make docs`");
}

#[test]
fn the_description_is_public_and_matches_the_file() {
    let served = served(&ADRIATICUM.service().set("api.base_url", BASE_URL).start());
    let kept: Value = serde_json::from_str(&std::fs::read_to_string(file()).unwrap()).unwrap();
    assert!(kept == served);
}

#[test]
fn the_description_names_the_base_url_that_callers_use() {
    let service = ADRIATICUM.service().set("api.base_url", "https://api.localhost/base/v1/").start();
    assert_eq!(served(&service)["servers"][0]["url"], "https://api.localhost/base/v1");
}

#[test]
fn the_service_conforms_to_its_description() {
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
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{report}{}", String::from_utf8_lossy(&output.stderr));
    println!("{report}");
    // The requests have reached the service, and valid ones the runtime.
    assert!(runtime.requests().len() >= 50, "{} completions: {report}", runtime.requests().len());
    let refused = service.rows().iter().filter(|row| row["status"] == 400).count();
    assert!(refused >= 50, "{refused} refusals: {report}");
}

/// The program, which `tools/prepare --tests` installs into the user's cache.
fn schemathesis() -> PathBuf {
    let program = testbed::cache_folder().join("schemathesis/bin/schemathesis");
    assert!(program.exists(), "{} is missing: `tools/prepare --tests` installs it", program.display());
    program
}
