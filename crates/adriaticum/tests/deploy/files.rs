//! Every setting in `deploy/` exists, every file parses, and examples are valid configurations.

use std::collections::BTreeSet;
use std::process::Command;

use regex::Regex;
use serde_json::Value;
use testbed::{Installation, Output};

use crate::ADRIATICUM;
use crate::folder::{deploy, files};

/// All settings: their names and their environment variables.
fn known(installation: &Installation) -> (BTreeSet<String>, BTreeSet<String>) {
    let config = installation.run_ok(&["config"]);
    let names = config.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(" = "));
    let names: BTreeSet<_> = names.map(|(name, _)| name.to_owned()).collect();
    let variables = names.iter().map(|name| format!("ADRIATICUM_{}", name.replace('.', "_").to_ascii_uppercase()));
    let variables = variables.collect();
    (names, variables)
}

#[test]
fn every_setting_in_the_files_exists() {
    let (names, variables) = known(&ADRIATICUM.install());
    let variable = Regex::new(r"ADRIATICUM_[A-Z0-9_]+").unwrap();
    let parts = "api|console|ops|runtime|database|engine|search|ledger";
    let name = Regex::new(&format!(r"(?:`|--set[ =])((?:{parts})\.[a-z_]+)\b")).unwrap();
    let mut seen = 0;
    for (path, text) in files() {
        for found in variable.find_iter(&text) {
            assert!(variables.contains(found.as_str()), "{}: {}", path.display(), found.as_str());
            seen += 1;
        }
        for found in name.captures_iter(&text).map(|found| found[1].to_owned()) {
            assert!(names.contains(&found), "{}: {found}", path.display());
            seen += 1;
        }
    }
    assert!(seen > 40, "the patterns match too little: {seen}");
}

#[test]
fn the_example_of_a_configuration_is_accepted() {
    let installation = ADRIATICUM.install();
    let example = deploy().join("systemd/adriaticum.toml");
    let output = installation.run(&["--config", example.to_str().unwrap(), "config"]);
    assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""), "{output:?}");
    assert!(output.stdout.contains("adriaticum.toml"), "{}", output.stdout);
}

#[test]
fn yaml_and_json_can_be_read() {
    let mut read = 0;
    for (path, text) in files() {
        let is_template = path.components().any(|part| part.as_os_str() == "templates");
        match path.extension().and_then(|end| end.to_str()) {
            Some("yaml" | "yml") if !is_template => {
                let parsed: Result<Value, _> = serde_saphyr::from_str(&text);
                assert!(parsed.as_ref().is_ok_and(Value::is_object), "{}: {parsed:?}", path.display());
                read += 1;
            }
            Some("json") => drop(serde_json::from_str::<Value>(&text).unwrap()),
            _ => {}
        }
    }
    assert!(read >= 3, "{read}");
}

/// Also checks the values, as the program gets them.
#[test]
fn the_environment_of_compose_replicas_is_a_valid_configuration() {
    let compose = std::fs::read_to_string(deploy().join("compose.yaml")).unwrap();
    let compose: Value = serde_saphyr::from_str(&compose).unwrap();
    let given = Regex::new(r"\$\{[A-Z_]+(?::-([^}]*)|:\?[^}]*)\}").unwrap();
    let installation = ADRIATICUM.install();
    let mut command = installation.command(&["config"]);
    for (name, value) in compose["services"]["replica-1"]["environment"].as_object().unwrap() {
        let value = given.replace_all(value.as_str().unwrap(), |found: &regex::Captures<'_>| {
            found.get(1).map_or("secret", |default| default.as_str()).to_owned()
        });
        command.env(name, &*value);
    }
    let output = Output::from_command(&mut command);
    assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""), "{output:?}");
    assert!(output.stdout.contains("database_url = \"postgres://***@database/adriaticum"), "{}", output.stdout);
}

#[test]
fn every_container_drops_its_privileges() {
    let compose = std::fs::read_to_string(deploy().join("compose.yaml")).unwrap();
    let compose: Value = serde_saphyr::from_str(&compose).unwrap();
    for (name, service) in compose["services"].as_object().unwrap() {
        assert_eq!(service["read_only"], true, "{name}");
        assert_eq!(service["cap_drop"], serde_json::json!(["ALL"]), "{name}");
        assert_eq!(service["security_opt"], serde_json::json!(["no-new-privileges:true"]), "{name}");
        assert!(service["user"].is_string(), "{name}");
    }
}

#[test]
#[ignore = "needs systemd-analyze; `tools/test` runs it where systemd is installed"]
fn systemd_accepts_the_units() {
    // Verified with the path of a binary that exists.
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files().into_iter().filter(|(path, _)| path.extension().is_some_and(|end| end == "service")) {
        let copy = folder.path().join(path.file_name().unwrap());
        std::fs::write(&copy, text.replace("/usr/local/bin/adriaticum", ADRIATICUM.binary())).unwrap();
        let verified = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&copy).output().unwrap();
        let said = String::from_utf8_lossy(&verified.stderr);
        let about_it = said.lines().filter(|line| line.contains("adriaticum")).collect::<Vec<_>>();
        assert!(about_it.is_empty(), "{}: {about_it:?}", path.display());
    }
}
