//! The commands: their output, their errors and their exit codes.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testbed::{
    Behaviour, Connection, FakeRuntime, Installation, Output, Request, on_postgres, unreachable_url, wait_for,
};

use crate::ADRIATICUM;

fn keys(installation: &Installation) -> Vec<Value> {
    serde_json::from_str(&installation.run_ok(&["keys", "list", "--json"])).unwrap()
}

fn id_of(key: &str) -> String {
    key["adria_".len()..][..12].to_owned()
}

/// Fails with that code and one error message that contains every part of `says`.
fn refuses(output: &Output, code: i32, says: &[&str]) {
    assert_eq!(output.code, Some(code), "{output:?}");
    assert_eq!(output.stdout, "", "{output:?}");
    assert!(!output.stderr.contains("panicked"), "{output:?}");
    says.iter().for_each(|part| assert!(output.stderr.contains(part), "without {part}: {output:?}"));
}

/// Fails with one sentence on one line, and nothing else. A service writes it as a line of its log.
fn complains(output: &Output, says: &[&str]) {
    refuses(output, 1, says);
    let is_log_line = serde_json::from_str::<Value>(&output.stderr).is_ok_and(|line| line["level"] == "ERROR");
    assert!(is_log_line || output.stderr.starts_with("adriaticum: "), "{output:?}");
    assert_eq!(output.stderr.lines().count(), 1, "{output:?}");
}

#[test]
fn a_key_is_shown_once_and_listed_without_its_secret() {
    let installation = ADRIATICUM.install();
    assert_eq!(keys(&installation), Vec::<Value>::new());
    assert!(installation.run_ok(&["keys", "list"]).contains("adriaticum keys create NAME"));

    let output = installation.run(&["keys", "create", "first key"]);
    let key = output.stdout.trim_end().to_owned();
    assert_eq!((output.code, output.stdout.as_str()), (Some(0), format!("{key}\n").as_str()));
    assert!(output.stderr.contains(&id_of(&key)) && !output.stderr.contains(&key), "{}", output.stderr);
    let weak = installation.key_with("second", &["--without-completions"]);

    let listed = keys(&installation);
    assert_eq!(listed.len(), 2);
    for (row, key, name, permissions) in
        [(&listed[0], &key, "first key", json!(["completions"])), (&listed[1], &weak, "second", json!([]))]
    {
        assert_eq!((&row["id"], &row["name"]), (&json!(id_of(key)), &json!(name)));
        assert_eq!((&row["permissions"], &row["state"]), (&permissions, &json!("active")));
        for time in ["last_used_at", "expires_at", "revoked_at"] {
            assert_eq!(row.get(time), Some(&Value::Null), "{row}");
        }
        assert!(row["created_at"].as_str().unwrap().ends_with('Z'), "{row}");
    }
    let shown = [installation.run_ok(&["keys", "list"]), installation.run_ok(&["keys", "list", "--json"])].concat();
    assert!(!shown.contains(&key[19..]) && !shown.contains(&weak[19..]), "{shown}");
}

#[test]
fn keys_are_renamed_and_revoked_by_their_id() {
    let installation = ADRIATICUM.install();
    let (key, other) = (installation.key(), installation.key());
    let id = id_of(&key);
    installation.run_ok(&["keys", "rename", &id, "  другое имя 🗝 "]);
    assert_eq!(keys(&installation)[0]["name"], "другое имя 🗝");
    assert_eq!(keys(&installation)[1]["name"], "test");
    // Also with the prefix that it has in the key.
    installation.run_ok(&["keys", "rename", &format!("adria_{id}"), "again"]);
    assert_eq!(keys(&installation)[0]["name"], "again");

    assert!(installation.run_ok(&["keys", "revoke", &id]).contains(&id));
    let revoked = keys(&installation);
    assert_eq!((&revoked[0]["state"], &revoked[1]["state"]), (&json!("revoked"), &json!("active")));
    assert!(revoked[0]["revoked_at"].is_string());
    // Revoking again changes nothing.
    installation.run_ok(&["keys", "revoke", &id]);
    assert_eq!(keys(&installation), revoked);
    assert_eq!(keys(&installation)[1]["id"], json!(id_of(&other)));
}

#[test]
fn a_key_shows_when_it_was_last_used() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let (used, unused) = (service.key(), service.key());
    service.chat(&used, "hello").completion();
    let listed = keys(&service);
    let last_used =
        |key: &str| listed.iter().find(|row| row["id"] == json!(id_of(key))).unwrap()["last_used_at"].clone();
    assert!(last_used(&used).is_string() && last_used(&unused).is_null(), "{listed:?}");
}

#[test]
fn an_expiry_is_counted_from_now() {
    let installation = ADRIATICUM.install();
    for (expires, days) in [("30d", 30), ("12h", 0), ("1year", 365)] {
        installation.key_with(expires, &["--expires", expires]);
        let row = keys(&installation).into_iter().find(|row| row["name"] == expires).unwrap();
        let at = humantime::parse_rfc3339(row["expires_at"].as_str().unwrap()).unwrap();
        let left = at.duration_since(SystemTime::now()).unwrap();
        assert!(left.abs_diff(Duration::from_secs(days * 86_400)) < Duration::from_secs(86_400), "{row}");
        assert_eq!(row["state"], "active");
    }
    installation.key_with("gone", &["--expires", "1ms"]);
    assert_eq!(keys(&installation).last().unwrap()["state"], "expired");
}

/// Every accepted expiry can be listed.
#[test]
fn an_expiry_in_the_far_future_is_refused_or_listed() {
    let installation = ADRIATICUM.install();
    for expires in ["7900y", "9000y", "100000y", "500000000000y"] {
        let output = installation.run(&["keys", "create", "far", "--expires", expires]);
        assert!(!output.stderr.contains("panicked"), "{expires}: {output:?}");
        assert!(matches!(output.code, Some(0..=2)), "{expires}: {output:?}");
        keys(&installation);
        installation.run_ok(&["keys", "list"]);
    }
}

#[test]
fn wrong_input_is_refused_and_changes_nothing() {
    let installation = ADRIATICUM.install();
    let id = id_of(&installation.key());
    let before = keys(&installation);
    let long = "x".repeat(101);
    let cases: &[(&[&str], i32, &[&str])] = &[
        (&["keys", "create"], 2, &["NAME"]),
        (&["keys", "create", ""], 2, &["1 to 100"]),
        (&["keys", "create", "  "], 2, &["1 to 100"]),
        (&["keys", "create", "a\nb"], 2, &["printable"]),
        (&["keys", "create", &long], 2, &["1 to 100"]),
        (&["keys", "create", "a", "b"], 2, &["unexpected"]),
        (&["keys", "create", "a", "--expires", "soon"], 2, &["--expires", "30d"]),
        (&["keys", "create", "a", "--expires=-1d"], 2, &["--expires"]),
        (&["keys", "create", "a", "--expires", ""], 2, &["--expires"]),
        (&["keys", "rename", &id], 2, &["NAME"]),
        (&["keys", "rename", &id, ""], 2, &["1 to 100"]),
        (&["keys", "rename", "short", "a"], 2, &["public id", "keys list"]),
        (&["keys", "rename", "000000000000", "a"], 1, &["no key 000000000000", "keys list"]),
        (&["keys", "revoke"], 2, &["ID"]),
        (&["keys", "revoke", "!!!!!!!!!!!!"], 2, &["public id"]),
        (&["keys", "revoke", "000000000000"], 1, &["no key 000000000000", "keys list"]),
        (&["keys", "revoke", &id.to_ascii_uppercase().replace(|c: char| c.is_ascii_digit(), "Z")], 1, &["no key"]),
        (&["usage", "--since", "yesterday"], 2, &["--since"]),
        (&["usage", "--json", "--csv"], 2, &["cannot be used with"]),
        (&["usage", "--limit", "3"], 2, &["--requests"]),
        (&["usage", "--requests", "--limit=-1"], 2, &["--limit"]),
        (&["frobnicate"], 2, &["frobnicate"]),
        (&[], 2, &["Usage"]),
    ];
    for (arguments, code, says) in cases {
        refuses(&installation.run(arguments), *code, says);
    }
    assert_eq!(keys(&installation), before);
}

/// A key that would never work is a mistake.
#[test]
fn an_expiry_of_zero_is_refused() {
    let installation = ADRIATICUM.install();
    refuses(&installation.run(&["keys", "create", "a", "--expires", "0s"]), 2, &["--expires"]);
    assert_eq!(keys(&installation).len(), 0);
}

#[test]
fn usage_without_requests_is_zero() {
    let installation = ADRIATICUM.install();
    assert_eq!(installation.rows(), Vec::<Value>::new());
    let sums = installation.usage();
    assert_eq!((&sums["requests"], &sums["total_tokens"]), (&json!(0), &Value::Null), "unmeasured is not zero");
    assert!(installation.run_ok(&["usage"]).contains("all"));
    installation.run_ok(&["usage", "--csv"]);
    installation.run_ok(&["usage", "--requests"]);
}

#[test]
fn settings_come_from_file_environment_and_flags_in_that_order() {
    let mut installation = ADRIATICUM.install();
    let file = "[api]\nmax_requests = 7\nmax_connections = 8\nhead_timeout = \"9s\"\n[runtime]\nurls = [\"http://a:1\", \"http://b:2/v1\"]\n";
    std::fs::write(installation.folder().join("adriaticum.toml"), file).unwrap();
    installation.set("api.max_connections", "80");
    installation.set("api.head_timeout", "90s");
    installation.set("api.listen", "127.0.0.1:9000");
    let config = installation.run_ok(&["--set", "api.head_timeout=900s", "config"]);
    let line = |name: &str| {
        let line =
            config.lines().find(|line| line.starts_with(&format!("{name} = "))).unwrap_or_else(|| panic!("{config}"));
        line.to_owned()
    };
    for (name, value, origin) in [
        ("api.max_requests", "7", "adriaticum.toml"),
        ("api.max_connections", "80", "ADRIATICUM_API_MAX_CONNECTIONS"),
        ("api.head_timeout", "900s", "flag"),
        ("runtime.urls", "http://a:1,http://b:2/v1", "adriaticum.toml"),
        ("api.body_timeout", "15s", "default"),
        ("api.base_url", "http://localhost:9000/v1", "default"),
        ("data_dir", installation.data().to_str().unwrap(), "ADRIATICUM_DATA_DIR"),
    ] {
        let line = line(name);
        assert!(line.contains(value) && line.contains(origin), "{value}, {origin}: {line}");
    }
    // Every documented name is printed, and the output is a valid configuration file.
    for name in [
        "data_dir", "database_url", "api.base_url", "api.listen", "console.base_url", "console.listen", "ops.listen",
        "runtime.urls", "model", "search.url", "grounding",
    ] {
        line(name);
    }
    let other = ADRIATICUM.install();
    std::fs::write(other.folder().join("other.toml"), &config).unwrap();
    let again = other.run_ok(&["--config", "other.toml", "config"]);
    assert!(
        again.lines().any(|line| line.starts_with("api.max_requests = ") && line.contains("other.toml")),
        "{again}"
    );
}

#[test]
fn unknown_settings_name_the_nearest_known() {
    let installation = ADRIATICUM.install();
    let with_file = |text: &str| {
        std::fs::write(installation.folder().join("adriaticum.toml"), text).unwrap();
        installation.run(&["config"])
    };
    complains(&with_file("[api]\nlistn = \"127.0.0.1:1\"\n"), &["`api.listn`", "adriaticum.toml", "`api.listen`"]);
    complains(&with_file("grunding = \"off\"\n"), &["`grunding`", "`grounding`"]);
    refuses(&with_file("this is no TOML"), 1, &["adriaticum.toml"]);
    refuses(&with_file("[api]\nmax_requests = [1, 2]\n"), 1, &["`api.max_requests`"]);
    std::fs::remove_file(installation.folder().join("adriaticum.toml")).unwrap();

    complains(&installation.run(&["--set", "runtime.url=http://a", "config"]), &["`runtime.url`", "`runtime.urls`"]);
    refuses(&installation.run(&["--set", "api.listen", "config"]), 2, &["NAME=VALUE"]);
    complains(&installation.run(&["--config", "missing.toml", "config"]), &["missing.toml"]);
    let output = Output::from_command(installation.command(&["config"]).env("ADRIATICUM_API_LISTN", "127.0.0.1:1"));
    assert!(
        output.stderr.contains("ADRIATICUM_API_LISTN") && output.stderr.contains("`ADRIATICUM_API_LISTEN`"),
        "{output:?}"
    );
}

#[test]
fn wrong_values_are_reported_with_their_origin_and_format() {
    let installation = ADRIATICUM.install();
    for (name, value, says) in [
        ("api.listen", "localhost:8080", "127.0.0.1:8080"),
        ("api.listen", "8080", "127.0.0.1:8080"),
        ("ops.listen", "off", "127.0.0.1:8080"),
        ("api.drain", "soon", "5s"),
        ("trusted_proxies", "10.0.0.0/8,proxy.example", "proxy.example"),
        ("api.base_url", "http://localhost:8080", "/v1"),
        ("api.base_url", "localhost/v1", "URL"),
        ("api.max_requests", "0", "above 0"),
        ("api.max_requests", "many", "whole number"),
        ("api.max_connections", "-1", "whole number"),
        ("api.threads", "0", "above 0"),
        ("api.head_timeout", "0s", "above 0"),
        ("api.head_timeout", "10", "30s"),
        ("api.stop_timeout", "never", "30s"),
        ("runtime.urls", "localhost:8000", "http"),
        ("runtime.urls", "http://a/v1,ftp://b/v1", "ftp://b/v1"),
        ("runtime.timeout", "", "30s"),
        ("ledger.retention", "-1d", "90d"),
        ("database_url", "mysql://a/b", "sqlite:"),
        ("log", "loud", "debug"),
    ] {
        let variable = format!("ADRIATICUM_{}", name.replace('.', "_").to_ascii_uppercase());
        for command in ["config", "serve", "check"] {
            let output = Output::from_command(installation.command(&[command]).env(&variable, value));
            complains(&output, &[&format!("`{name}`"), &variable, says]);
        }
        let output = installation.run(&["--set", &format!("{name}={value}"), "config"]);
        complains(&output, &[&format!("`{name}`"), "flag", says]);
    }
}

#[test]
fn secrets_in_settings_are_never_printed() {
    let installation = ADRIATICUM.install();
    for (name, value) in [
        ("runtime.urls", "http://user:Quagga@localhost:8000/v1"),
        ("database_url", "postgres://user:Quagga@localhost/adriaticum"),
        ("database_url", "mysql://user:Quagga@localhost/adriaticum"),
        ("search.url", "searxng+http://user:Quagga@localhost/"),
        ("api.base_url", "ftp://user:Quagga@localhost/v1"),
        ("webhook.url", "https://hooks.example.com/services/Quagga?also=Quagga"),
        ("webhook.url", "hooks.example.com/services/Quagga"),
    ] {
        let output = installation.run(&["--set", &format!("{name}={value}"), "config"]);
        assert!(!format!("{output:?}").contains("Quagga"), "{output:?}");
    }
}

#[test]
fn an_address_in_use_is_reported_in_one_sentence() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut installation = ADRIATICUM.install();
    for setting in ["api.listen", "console.listen", "ops.listen"] {
        installation.set(setting, &address);
        complains(&installation.run(&["serve"]), &[&address, setting, "Stop the program"]);
        installation.set(setting, "203.0.113.1:1");
        complains(&installation.run(&["serve"]), &["203.0.113.1:1", setting]);
        installation.set(setting, "127.0.0.1:0");
    }
}

#[test]
fn an_unusable_data_folder_is_reported_in_one_sentence() {
    let mut installation = ADRIATICUM.install();
    let file = installation.folder().join("file");
    std::fs::write(&file, "not a folder").unwrap();
    installation.set_data(file.join("data"));
    for command in [&["serve"][..], &["keys", "list"], &["keys", "create", "a"], &["usage"]] {
        complains(&installation.run(command), &["data folder", "data_dir"]);
    }
    let output = installation.run(&["check"]);
    assert_eq!(output.code, Some(1));
    assert!(output.stdout.lines().any(|line| line.starts_with("FAIL") && line.contains("data_dir")), "{output:?}");
}

#[test]
fn files_are_readable_by_their_owner_only_in_any_folder() {
    let mut installation = ADRIATICUM.install();
    complains(&installation.run(&["--data-dir", "", "keys", "list"]), &["`data_dir`", "folder"]);
    let shared = installation.folder().join("shared");
    std::fs::create_dir(&shared).unwrap();
    installation.set_data(shared.clone());
    installation.key();
    for file in std::fs::read_dir(shared).unwrap().map(Result::unwrap) {
        let mode = file.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{}: {mode:o}", file.path().display());
    }
}

#[test]
fn a_file_that_is_no_database_is_reported_in_one_sentence() {
    let mut installation = ADRIATICUM.install();
    installation.use_sqlite();
    std::fs::create_dir(installation.data()).unwrap();
    std::fs::write(
        installation.data().join("adriaticum.db"),
        "this is no database, but long enough to be read as one".repeat(99),
    )
    .unwrap();
    for command in [&["serve"][..], &["keys", "list"], &["usage"]] {
        complains(&installation.run(command), &["adriaticum.db"]);
    }
}

/// The exit code and the lines of `check`: mark, part, and some words of each.
fn checks(output: &Output, code: i32, lines: &[(&str, &str, &str)]) {
    assert_eq!(output.code, Some(code), "{output:?}");
    for (mark, part, words) in lines {
        let said = |line: &str| line.starts_with(mark) && line.contains(part) && line.contains(words);
        assert!(output.stdout.lines().any(said), "without {mark} {part} {words}:\n{}", output.stdout);
    }
}

#[test]
fn check_reports_what_would_fail_and_how_to_fix_it() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let mut installation = ADRIATICUM.install();
    let database = if on_postgres() { "postgres://127.0.0.1" } else { "adriaticum.db" };
    let good = [("ok", "settings", ""), ("ok", "storage", database), ("ok", "api", "free")];
    checks(
        &installation.run(&["check"]),
        1,
        &[&good[..], &[("FAIL", "runtime", "ADRIATICUM_RUNTIME_URLS"), ("note", "storage", "keys create")]].concat(),
    );

    installation.set("runtime.urls", &runtime.url());
    installation.key();
    checks(
        &installation.run(&["check"]),
        0,
        &[&good[..], &[("ok", "storage", "API keys: 1"), ("ok", "runtime", "measures tokens")]].concat(),
    );
    checks(&installation.run(&["check", "--deep"]), 0, &[("ok", "storage", "intact")]);
    runtime.set_behaviour(Behaviour::completion("x", "stop", None));
    checks(&installation.run(&["check"]), 0, &[("note", "runtime", "null")]);
    runtime.set_behaviour(Behaviour::Respond(500, "{}".into()));
    checks(&installation.run(&["check"]), 1, &[("FAIL", "runtime", "500")]);
    runtime.set_health_behaviour(Behaviour::Close);
    checks(&installation.run(&["check"]), 1, &[("FAIL", "runtime", &runtime.url())]);
    let unreachable = unreachable_url();
    installation.set("runtime.urls", &unreachable);
    checks(&installation.run(&["check"]), 1, &[("FAIL", "runtime", &unreachable)]);

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    installation.set("api.listen", &taken.local_addr().unwrap().to_string());
    checks(&installation.run(&["check"]), 1, &[("FAIL", "api", "api.listen")]);
}

#[test]
fn check_counts_an_unusable_data_folder_once() {
    let mut installation = ADRIATICUM.install();
    let file = installation.folder().join("a-file");
    std::fs::write(&file, "").unwrap();
    installation.set_data(file);
    installation.set("model", "model.gguf");
    installation.set("grounding", "always");
    let output = installation.run(&["check"]);
    checks(
        &output,
        1,
        &[("FAIL", "storage", "a-file"), ("note", "model", "data folder"), ("note", "search", "data folder")],
    );
    assert!(output.stdout.contains("1 check failed."), "{output:?}");
}

#[test]
fn a_key_can_be_revoked_by_its_full_text_with_a_warning() {
    let installation = ADRIATICUM.install();
    let key = installation.key();
    let output = installation.run(&["keys", "revoke", &key]);
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.stdout.contains("Revoked") && !output.stdout.contains(&key), "{output:?}");
    assert!(output.stderr.contains("history") && !output.stderr.contains(&key), "{output:?}");
    assert_eq!(keys(&installation)[0]["state"], "revoked");
}

#[test]
fn check_recognizes_a_running_service() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let address = service.address().to_string();
    let ops = service.ops_address().to_string();
    let set = [format!("--set=api.listen={address}"), format!("--set=ops.listen={ops}")];
    let output = service.run(&[&set[0], &set[1], "check"]);
    checks(&output, 0, &[("note", "api", &address), ("note", "ops", &ops)]);
}

#[test]
fn version_and_help_are_printed() {
    let installation = ADRIATICUM.install();
    let output = installation.run(&["--version"]);
    assert_eq!(
        (output.code, output.stdout.as_str()),
        (Some(0), concat!("adriaticum ", env!("CARGO_PKG_VERSION"), "\n"))
    );
    let help = installation.run_ok(&["--help"]);
    for command in ["serve", "keys", "usage", "check", "config"] {
        assert!(help.contains(command), "{help}");
    }
}

/// `adriaticum config | head -1` must not end in a panic, nor may a service whose banner cannot be written.
#[test]
fn unwritable_output_is_reported_in_one_sentence_and_does_not_prevent_serving() {
    let mut installation = ADRIATICUM.install();
    let full = || File::options().write(true).open("/dev/full").unwrap();
    for arguments in [&["config"][..], &["keys", "list"], &["keys", "list", "--json"], &["usage"], &["check"]] {
        let output = installation.command(arguments).stdout(full()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), stderr.lines().count()), (Some(1), 1), "{arguments:?}: {stderr}");
    }
    // It cannot print its address, so it gets one that nothing else here uses.
    let address = TcpListener::bind("127.0.0.78:0").unwrap().local_addr().unwrap();
    installation.set("api.listen", &address.to_string());
    let mut serving = installation.command(&["serve"]).stdout(full()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("the service", || TcpStream::connect(address).ok());
    Connection::connect(address).send(Request::chat("nonsense", "").bytes()).response().expect_error("invalid_api_key");
    kill_process(Pid::from_child(&serving), Signal::TERM).unwrap();
    assert_eq!(serving.wait().unwrap().code(), Some(0));
}

#[test]
fn a_csv_has_its_header_also_without_rows() {
    let csv = ADRIATICUM.install().run_ok(&["usage", "--requests", "--csv"]);
    assert!(csv.starts_with("request_id,"), "{csv:?}");
}
