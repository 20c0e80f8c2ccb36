//! Dependencies and releases: only what deny.toml allows, listed in a bill of materials, in a reproducible archive.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::book::root;
use testbed::Output;

use crate::ADRIATICUM;

fn tool(name: &str, arguments: &[&str]) -> Output {
    Output::from_command(Command::new(root().join("tools").join(name)).args(arguments).current_dir(root()))
}

#[test]
fn every_dependency_is_one_that_is_allowed() {
    let output = tool("deny", &[]);
    assert_eq!(output.code, Some(0), "{output:?}");
}

#[test]
fn a_disallowed_dependency_is_reported() {
    let rules = std::fs::read_to_string(root().join("deny.toml")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (registry, nowhere) = ("github.com/rust-lang/crates.io-index", "registry.example/index");
    for (rule, instead, reported) in [
        ("\"MPL-2.0\",", "", "cssparser"),
        ("\"bitflags@1.3.2\"", "\"nothing@1.3.2\"", "bitflags"),
        (registry, nowhere, "clap"),
        ("deny = [", "deny = [ { crate = \"clap\", reason = \"a test\" },", "clap"),
    ] {
        assert!(rules.contains(rule), "{rule}");
        let file = folder.path().join("deny.toml");
        std::fs::write(&file, rules.replace(rule, instead)).unwrap();
        let output = tool("deny", &["--config", file.to_str().unwrap()]);
        assert_eq!(output.code, Some(1), "{rule}: {output:?}");
        assert!(output.stderr.contains(reported), "{rule}: {output:?}");
    }
}

#[test]
fn the_bill_of_materials_names_what_is_linked_and_nothing_else() {
    let output = tool("sbom", &[]);
    assert_eq!(output.code, Some(0), "{output:?}");
    let bill: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(bill["bomFormat"], "CycloneDX");
    let components = bill["components"].as_array().unwrap();
    let names: BTreeSet<_> = components.iter().map(|component| component["name"].as_str().unwrap()).collect();
    assert!(["rusqlite", "hyper", "store"].iter().all(|name| names.contains(name)), "{names:?}");
    assert!(
        ["proptest", "testbed", "tungstenite", "windows-sys"].iter().all(|name| !names.contains(name)),
        "{names:?}"
    );
    let described: BTreeSet<_> = components.iter().map(|component| component["bom-ref"].as_str().unwrap()).collect();
    for dependency in bill["dependencies"].as_array().unwrap() {
        for on in dependency["dependsOn"].as_array().unwrap() {
            assert!(described.contains(on.as_str().unwrap()), "{on} is not described");
        }
    }
}

#[test]
fn archives_are_reproducible() {
    let folder = tempfile::tempdir().unwrap();
    let archives = [("one", "022", "UTC"), ("two", "077", "Asia/Tokyo")].map(|(name, umask, zone)| {
        let to = folder.path().join(name);
        let release = format!("umask {umask}; exec tools/release --binary \"$0\" --to \"$1\"");
        let mut shell = Command::new("bash");
        shell.args(["-c", &release, ADRIATICUM.binary(), to.to_str().unwrap()]);
        let output =
            Output::from_command(shell.current_dir(root()).env("TZ", zone).env("SOURCE_DATE_EPOCH", "1700000000"));
        assert_eq!(output.code, Some(0), "{output:?}");
        to
    });
    let sums = archives.each_ref().map(|to| std::fs::read_to_string(to.join("SHA256SUMS")).unwrap());
    assert_eq!(sums[0], sums[1]);
    let checked =
        Output::from_command(Command::new("sha256sum").args(["--check", "SHA256SUMS"]).current_dir(&archives[1]));
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert_has_everything(&archives[1]);
}

fn assert_has_everything(folder: &Path) {
    let archive = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let archive = archive.into_iter().find(|path| path.extension().is_some_and(|end| end == "gz")).unwrap();
    let listed = Output::from_command(Command::new("tar").args(["--list", "--file"]).arg(archive)).stdout;
    let listed: BTreeSet<_> = listed.lines().filter_map(|line| line.split_once('/')).map(|(_, path)| path).collect();
    for path in [
        "adriaticum", "LICENSE", "README.md", "CHANGELOG.md", "docs/README.md", "man/adriaticum.1",
        "man/adriaticum-keys-create.1", "completions/adriaticum.bash", "completions/_adriaticum",
        "completions/adriaticum.fish", "deploy/compose.yaml", "adriaticum.cdx.json",
    ] {
        assert!(listed.contains(path), "{path} is not in {listed:?}");
    }
}
