//! The promises of docs/backup.md about `backup --all` and `restore`: database, index and settings are restored unchanged,
//! or nothing is.

use std::path::Path;

use testbed::{Behaviour, Cluster, FakeRuntime, Installation, Service};

use crate::ADRIATICUM;

const FACTUAL: &str = "How long is the Velebit tunnel in metres?";

fn add_documents(installation: &Installation) {
    let documents = installation.folder().join("handbook");
    std::fs::create_dir_all(&documents).unwrap();
    let text = "# The Velebit tunnel\n\nThe Velebit tunnel is 5,821 m long.\n";
    std::fs::write(documents.join("tunnel.md"), text).unwrap();
    installation.run_ok(&["index", "add", "handbook"]);
}

fn assert_grounded(service: &Service, key: &str) {
    let response = service.chat(key, FACTUAL);
    response.completion();
    assert!(response.header("link").is_some_and(|link| link.contains("tunnel.md")), "{response:?}");
}

/// Every file below a folder, by name.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().map(Result::unwrap) {
        match entry.path().is_dir() {
            true => found.extend(files(&entry.path())),
            false => found.push((entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())),
        }
    }
    found.sort();
    found
}

#[test]
fn an_archive_restores_database_index_and_settings_on_an_empty_folder() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).set("runtime.key", "Quagga").set("search.tokens", "900").start();
    let key = service.key();
    add_documents(&service);
    assert_grounded(&service, &key);
    let printed = service.run_ok(&["backup", "--all", "all.zip"]);
    assert!(printed.contains("1 request") && printed.contains("the index"), "{printed}");
    let again = service.run(&["backup", "--all", "all.zip"]);
    assert!(again.code == Some(1) && again.stderr.contains("not overwritten"), "{again:?}");
    let occupied = service.run(&["restore", "all.zip"]);
    assert!(occupied.code == Some(1) && occupied.stderr.contains("is not overwritten"), "{occupied:?}");

    let data = service.folder().join("restored");
    let printed = service.run_ok(&["--data-dir", "restored", "restore", "all.zip"]);
    assert!(printed.contains("1 request") && printed.contains("check --deep"), "{printed}");
    let settings = std::fs::read_to_string(data.join("adriaticum.toml")).unwrap();
    assert!(settings.contains("search.tokens = \"900\"\n") && settings.contains("# runtime.key"), "{settings}");
    assert!(!settings.contains("Quagga"), "{settings}");
    settings.parse::<toml::Table>().unwrap();

    let restored = ADRIATICUM.service_with(&[&runtime]).data(data).start();
    assert_eq!(restored.rows().len(), 1);
    assert!(restored.run_ok(&["check", "--deep"]).contains("the index holds 1 document"));
    assert_grounded(&restored, &key);
}

#[test]
fn a_damaged_archive_restores_nothing() {
    let installation = ADRIATICUM.install();
    installation.key();
    add_documents(&installation);
    installation.run_ok(&["backup", "--all", "all.zip"]);
    let whole = std::fs::read(installation.folder().join("all.zip")).unwrap();
    installation.run_ok(&["--data-dir", "good", "restore", "all.zip"]);
    let good = files(&installation.folder().join("good"));
    let restore = |name: &str, bytes: &[u8]| {
        std::fs::write(installation.folder().join("bad.zip"), bytes).unwrap();
        let output = installation.run(&["--data-dir", name, "restore", "bad.zip"]);
        (output, files(&installation.folder().join(name)))
    };
    for cut in [0, 1, whole.len() / 3, whole.len() / 2, whole.len() - 1] {
        let (output, left) = restore("cut", &whole[..cut]);
        assert!(output.code == Some(1) && output.stderr.contains("not a complete archive"), "{output:?}");
        assert!(left.is_empty(), "{left:?}");
    }
    let mut refused = 0;
    for n in 0..24 {
        let mut changed = whole.clone();
        changed[whole.len() * n / 24] ^= 0x10;
        let name = format!("changed{n}");
        let (output, left) = restore(&name, &changed);
        match output.code {
            Some(0) => assert!(left == good, "the restored files equal the backed-up ones"),
            _ => {
                assert!(output.stderr.contains("Nothing was changed") && left.is_empty(), "{output:?}");
                refused += 1;
            }
        }
    }
    assert!(refused > 12, "{refused}");
}

#[test]
fn an_archive_beside_postgres_reports_that_it_has_no_database() {
    let mut installation = ADRIATICUM.install();
    installation.set("database_url", &Cluster::shared().create_database());
    add_documents(&installation);
    let printed = installation.run_ok(&["backup", "--all", "all.zip"]);
    assert!(printed.contains("NOT in it") && printed.contains("pg_dump"), "{printed}");
    let printed = installation.run_ok(&["--data-dir", "restored", "restore", "all.zip"]);
    assert!(printed.contains("pg_restore"), "{printed}");
    assert!(installation.run_ok(&["--data-dir", "restored", "index", "list"]).contains("handbook"));
}

#[test]
fn no_archive_is_made_while_the_index_is_missing() {
    let installation = ADRIATICUM.install();
    add_documents(&installation);
    std::fs::remove_dir_all(installation.data().join("index")).unwrap();
    let output = installation.run(&["backup", "--all", "all.zip"]);
    assert!(output.code == Some(1) && output.stderr.contains("the index is gone"), "{output:?}");
    let left = files(installation.folder()).into_iter().filter(|(name, _)| name.starts_with("all.zip")).count();
    assert_eq!(left, 0);
}
