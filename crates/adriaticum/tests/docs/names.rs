//! The names on pages exist: links and headings, settings, variables, commands with their flags, error codes. The pages
//! of settings and commands equal the program's output.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use regex::Regex;

use crate::book::{Page, commands, pages, root};
use testbed::Output;

use crate::ADRIATICUM;

/// Names of other programs that look like our settings.
const FOREIGN_SETTINGS: &[&str] = &["search.formats"];

#[test]
fn every_link_leads_somewhere() {
    let pages = pages();
    let anchors: BTreeMap<_, _> = pages.iter().map(|page| (root().join(&page.name), page.anchors())).collect();
    let mut looked_at = 0;
    for page in &pages {
        let folder = root().join(&page.name).parent().unwrap().to_owned();
        for link in page.links().iter().filter(|link| !link.contains("://") && !link.starts_with("mailto:")) {
            let (path, anchor) =
                link.split_once('#').map_or((link.as_str(), None), |(path, anchor)| (path, Some(anchor)));
            let target = if path.is_empty() { root().join(&page.name) } else { folder.join(path) };
            let target = target.canonicalize().unwrap_or_else(|_| panic!("{}: {link} is not there", page.name));
            if let Some(anchor) = anchor {
                let known = anchors.get(&target).is_some_and(|anchors| anchors.contains(anchor));
                assert!(known, "{}: {link}: no heading makes that anchor", page.name);
            }
            looked_at += 1;
        }
    }
    assert!(looked_at > 40, "too few links are found: {looked_at}");
}

/// A file in `crates/`, or a module with the name of its crate, and perhaps an item in it: `store::usage::groups`.
#[test]
fn every_file_and_module_that_is_named_exists() {
    let crates = root().join("crates");
    let module = Regex::new(r"^[a-z_]+(::\w+)+$").unwrap();
    let mut looked_at = 0;
    for page in pages() {
        for span in page.spans() {
            let is_there = if module.is_match(&span) {
                let mut names = span.split("::");
                has_module(&crates.join(names.next().unwrap()).join("src"), &names.collect::<Vec<_>>())
            } else if span.starts_with("crates/") && !span.contains('*') {
                root().join(&span).exists()
            } else {
                continue;
            };
            assert!(is_there, "{}: {span} is not there", page.name);
            looked_at += 1;
        }
    }
    assert!(looked_at > 50, "too few names are found: {looked_at}");
}

/// Whether a path of modules exists in a folder, and its last file has the items at its end.
fn has_module(folder: &Path, names: &[&str]) -> bool {
    let has_items = |text: &str, items: &[&str]| items.iter().all(|item| text.contains(item));
    match names.split_first() {
        Some((name, rest)) if has_module(&folder.join(name), rest) => true,
        Some((name, rest)) => match std::fs::read_to_string(folder.join(format!("{name}.rs"))) {
            Ok(text) => has_items(&text, rest),
            Err(_) => ["lib.rs", "main.rs", "mod.rs"]
                .into_iter()
                .filter_map(|root| std::fs::read_to_string(folder.join(root)).ok())
                .any(|text| has_items(&text, names)),
        },
        None => folder.is_dir(),
    }
}

#[test]
fn every_page_of_the_documentation_is_in_its_index() {
    let pages = pages();
    let index = pages.iter().find(|page| page.name == "docs/README.md").unwrap();
    let links: BTreeSet<_> = index.links().into_iter().collect();
    for name in pages.iter().filter_map(|page| page.name.strip_prefix("docs/")).filter(|name| *name != "README.md") {
        assert!(links.contains(name), "docs/README.md does not link {name}");
    }
}

#[test]
fn the_pages_of_settings_and_commands_are_what_the_program_prints() {
    for (page, command) in [("docs/configuration.md", "config"), ("docs/commands.md", "man")] {
        let page = std::fs::read_to_string(root().join(page)).unwrap();
        let printed = ADRIATICUM.install().run_ok(&[command, "--markdown"]);
        assert!(page == printed, "run `make docs`");
    }
}

#[test]
fn every_column_of_the_requests_export_is_described() {
    let text = std::fs::read_to_string(root().join("docs/usage.md")).unwrap();
    let table = text.split("The columns of requests,").nth(1).unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `")).map(|line| line.split('|').nth(1).unwrap());
    let described: Vec<_> = rows.flat_map(|names| names.split(',')).map(|name| name.trim().trim_matches('`')).collect();
    assert_eq!(described, format::REQUEST_COLUMNS);
}

#[test]
fn every_setting_and_variable_in_the_docs_exists() {
    let config = ADRIATICUM.install().run_ok(&["config"]);
    let names = config.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(" = "));
    let names: BTreeSet<_> = names.map(|(name, _)| name).collect();
    let parts: BTreeSet<_> = names.iter().filter_map(|name| name.split_once('.')).map(|(part, _)| part).collect();
    let setting = Regex::new(r"^([a-z]+)\.[a-z_]+$").unwrap();
    let variable = Regex::new(r"\bADRIATICUM_([A-Z0-9_]+)").unwrap();
    let variables: BTreeSet<_> = names.iter().map(|name| name.replace('.', "_").to_ascii_uppercase()).collect();
    let mut seen = 0;
    for page in pages() {
        for span in page.spans().iter().filter(|span| !FOREIGN_SETTINGS.contains(&span.as_str())) {
            if setting.captures(span).is_some_and(|found| parts.contains(&found[1])) {
                let is_a_file = [".rs", ".md", ".toml", ".db"].iter().any(|end| span.ends_with(end));
                assert!(is_a_file || names.contains(span.as_str()), "{}: {span} is no setting", page.name);
                seen += 1;
            }
        }
        for found in variable.captures_iter(&page.text) {
            assert!(variables.contains(&found[1]), "{}: {} is no variable", page.name, &found[0]);
            seen += 1;
        }
    }
    assert!(seen > 60, "too few names are found: {seen}");
}

/// The help of the program's commands, each read once.
#[derive(Default)]
struct Help(BTreeMap<Vec<String>, String>);

impl Help {
    fn help(&mut self, command: &[String]) -> &str {
        self.0.entry(command.to_vec()).or_insert_with(|| {
            let mut arguments: Vec<_> = command.iter().map(String::as_str).collect();
            arguments.push("--help");
            let Output { code, stdout, .. } = ADRIATICUM.install().run(&arguments);
            assert_eq!(code, Some(0), "{arguments:?}");
            stdout
        })
    }

    fn has_command(&mut self, command: &[String], word: &str) -> bool {
        let listed = self.help(command).split_once("Commands:").map_or("", |(_, listed)| listed);
        let listed = listed.split("\n\n").next().unwrap_or_default();
        listed.lines().any(|line| line.split_whitespace().next() == Some(word))
    }

    fn has_flag(&mut self, command: &[String], flag: &str) -> bool {
        let help = self.help(command);
        help.split(|c: char| c.is_whitespace() || c == ',').any(|word| word == flag)
    }

    /// Checks that the words after the program's name are a command with known flags.
    fn check_command(&mut self, page: &Page, text: &str, words: &[&str]) {
        let mut command = Vec::new();
        let mut is_first = true;
        for word in words.iter().take_while(|word| !word.starts_with('#') && !["|", "&&", ">"].contains(word)) {
            if let Some(flag) = word.strip_prefix("--") {
                let name = format!("--{}", flag.split('=').next().unwrap_or_default());
                assert!(self.has_flag(&command, &name), "{}: {text}: {command:?} has no {name}", page.name);
            } else if is_first && self.has_command(&command, word) {
                command.push((*word).to_owned());
            } else if !command.is_empty() {
                is_first = false; // what follows are values
            }
        }
        assert!(!command.is_empty() || words.iter().all(|word| word.starts_with('-')), "{}: {text}", page.name);
    }
}

#[test]
fn every_command_and_flag_in_the_docs_exists() {
    let mut help = Help::default();
    let mut seen = 0;
    for page in pages() {
        let in_blocks = page.blocks().into_iter().flat_map(|block| commands(&block));
        for text in in_blocks.chain(page.spans()) {
            let whole = text.replace("\\\n", " ");
            for line in whole.lines() {
                let words: Vec<_> = line.split_whitespace().collect();
                let program = words.iter().position(|word| *word == "adriaticum" || word.ends_with("$(adriaticum"));
                if let Some(at) = program.filter(|at| at + 1 < words.len() && is_run(&words[..*at])) {
                    let behind: Vec<_> =
                        words[at + 1..].iter().map(|word| word.trim_end_matches([')', ';', ',', '.'])).collect();
                    help.check_command(&page, &text, &behind);
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 60, "too few commands are found: {seen}");
}

/// Whether a program's name after these words is a command: they are none, variables, or the end of another command.
fn is_run(before: &[&str]) -> bool {
    before
        .last()
        .is_none_or(|word| word.contains('=') || ["|", "&&", "until", "if", "do", "docker", "exec"].contains(word))
}

#[test]
fn every_error_code_has_its_section() {
    let pages = pages();
    let errors = pages.iter().find(|page| page.name == "docs/errors.md").unwrap();
    let anchors = errors.anchors();
    let description = std::fs::read_to_string(root().join("docs/openapi.json")).unwrap();
    let description: serde_json::Value = serde_json::from_str(&description).unwrap();
    let codes = &description["components"]["schemas"]["Error"]["properties"]["error"]["properties"]["code"]["enum"];
    let codes: Vec<&str> = codes.as_array().unwrap().iter().map(|code| code.as_str().unwrap()).collect();
    assert!(codes.len() >= 8, "{codes:?}");
    for code in codes {
        assert!(anchors.iter().any(|anchor| anchor.ends_with(code)), "docs/errors.md has no section about {code}");
    }
}
