//! Every command on a page for users is run with a running service, page by page from top to bottom, or is in a list of
//! exceptions with a reason.

use std::os::unix::fs::symlink;
use std::process::Command;

use store::{Database, Email, NewAccount, PersonName, Store};

use crate::book::{Page, commands, pages, root};
use testbed::{Behaviour, Cluster, FakeRuntime, Output, Service};

use crate::ADRIATICUM;

/// Beginnings of commands that are not run, with the reason. Each must be on a page.
const NOT_RUN: &[(&str, &str)] = &[
    ("make ", "builds the program"),
    ("ADRIATICUM_RUNTIME_URLS=http://10.0.0.5:8000/v1 make run", "builds the program"),
    ("docker ", "downloads images"),
    ("curl -sS --retry 30", "needs the container of the command before it"),
    ("curl -sS 'http://127.0.0.1:9200", "needs the container of the command before it"),
    ("ADRIATICUM_SEARCH_URL=", "needs a search server in a container"),
    ("adriaticum model fetch", "downloads a model"),
    ("adriaticum engine", "needs a model; the engine's own tests run it"),
    ("adriaticum migrate --to postgres://", "has a placeholder URL; the form with $DATABASE_URL is run"),
    ("systemctl ", "needs systemd"),
    ("tools/bare", "builds everything in a separate system"),
    ("tools/release", "builds the program; another test runs it with a built one"),
    ("minisign -G", "a release needs it; the test of releases signs and verifies one"),
    ("minisign -V", "a release needs it; the test of releases signs and verifies one"),
    ("jq -r '.components", "needs an unpacked release"),
    ("git checkout COMMIT", "builds the program"),
];

/// The shell prints this before each command's number.
const MARK: &str = "@command ";

fn reason_not_to_run(command: &str) -> Option<&'static (&'static str, &'static str)> {
    NOT_RUN.iter().find(|(beginning, _)| command.starts_with(beginning))
}

#[test]
fn every_command_runs_or_is_excepted_for_a_reason() {
    let mut output = 0;
    let mut excepted = Vec::new();
    for page in pages().iter().filter(|page| page.is_for_users()) {
        let commands: Vec<_> = page.blocks().iter().flat_map(|block| commands(block)).collect();
        let (not_run, run): (Vec<_>, Vec<_>) = commands.into_iter().partition(|each| reason_not_to_run(each).is_some());
        excepted.extend(not_run.iter().filter_map(|command| reason_not_to_run(command)));
        if !run.is_empty() {
            Stage::set(page).run(page, &run);
            output += run.len();
        }
    }
    assert!(output > 40, "too few commands are found: {output}");
    for exception in NOT_RUN {
        assert!(excepted.contains(&exception), "no page has a command that begins with {:?}", exception.0);
    }
}

/// A service with an echoing runtime and an account for Ada, and its operator's shell.
struct Stage {
    service: Service,
    _runtime: FakeRuntime,
    variables: Vec<(String, String)>,
}

impl Stage {
    fn set(page: &Page) -> Self {
        let runtime = FakeRuntime::start(Behaviour::Echo);
        let service = ADRIATICUM.service_with(&[&runtime]).start();
        let folder = service.folder();
        let program = ADRIATICUM.binary();
        for place in ["bin", "target/quick", "target/release"] {
            std::fs::create_dir_all(folder.join(place)).unwrap();
            symlink(program, folder.join(place).join("adriaticum")).unwrap();
        }
        symlink(root().join("crates"), folder.join("crates")).unwrap();
        make_account(&service);
        let key = service.key_with("docs", &[]);
        let mut variables = vec![
            ("HOME".into(), folder.to_str().unwrap().to_owned()),
            ("PATH".into(), format!("{}:{}", folder.join("bin").display(), std::env::var("PATH").unwrap())),
            ("ADRIATICUM_API_LISTEN".into(), service.address().to_string()),
            ("ADRIATICUM_CONSOLE_LISTEN".into(), Self::console(&service)),
            ("ADRIATICUM_OPS_LISTEN".into(), service.ops_address().to_string()),
            ("KEY_ID".into(), key["adria_".len()..][..12].to_owned()),
            ("API_KEY".into(), key),
            ("LINK_ID".into(), make_link(&service)),
        ];
        if page.text.contains("$DATABASE_URL") {
            let cluster = Cluster::shared();
            variables.push(("DATABASE_URL".into(), cluster.create_database()));
            variables.push(("NEW_DATABASE_URL".into(), cluster.create_database()));
        }
        Self { service, _runtime: runtime, variables }
    }

    fn console(service: &Service) -> String {
        let origin = service.banner_value("Console").unwrap();
        format!("127.0.0.1:{}", origin.rsplit_once(':').unwrap().1)
    }

    /// Runs a page's commands in one shell, as its reader would, with the addresses that this service has instead of
    /// the usual ones. Each must succeed.
    fn run(&self, page: &Page, commands: &[String]) {
        let numbered = commands.iter().enumerate().map(|(at, command)| format!("echo '{MARK}{at}' >&2\n{command}"));
        let script = numbered
            .collect::<String>()
            .replace("localhost:8080", &self.service.address().to_string())
            .replace("localhost:8081", &Self::console(&self.service))
            .replace("localhost:9464", &self.service.ops_address().to_string());
        let mut shell = Command::new("bash");
        shell.args(["-euo", "pipefail", "-c", &script]).current_dir(self.service.folder());
        for (name, value) in self.service.command(&[]).get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        shell.envs(self.variables.iter().cloned());
        let output = Output::from_command(&mut shell);
        let last = output.stderr.lines().filter_map(|line| line.strip_prefix(MARK)?.parse::<usize>().ok()).next_back();
        let command = last.map_or("", |last| &commands[last]);
        assert_eq!(output.code, Some(0), "{}: {command}\n{}\n{}", page.name, output.stdout, output.stderr);
        // curl succeeds also when it prints an error response.
        assert!(!output.stdout.contains(r#"{"error":"#), "{}:\n{}", page.name, output.stdout);
    }
}

/// An open invitation, by its id.
fn make_link(service: &Service) -> String {
    service.run_ok(&["accounts", "invite", "Bob"]);
    let links: serde_json::Value = serde_json::from_str(&service.run_ok(&["accounts", "links", "--json"])).unwrap();
    links[0]["id"].as_str().unwrap().to_owned()
}

fn make_account(service: &Service) {
    let database = Database::Sqlite(service.data().join("adriaticum.db"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Store::open(&database).await.unwrap();
        let token = store.links().create_setup().await.unwrap().unwrap();
        let email: Email = "ada@example.com".parse().unwrap();
        let ada = NewAccount {
            email,
            name: PersonName::parse("Ada").unwrap(),
            password: "not a hash, because no test signs in".into(),
        };
        assert!(store.links().use_link(&token, &ada, "127.0.0.1").await.is_ok());
    });
}
