//! The pages as parsed Markdown: their commands, links, headings and code spans.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// The repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// One file of Markdown.
pub(crate) struct Page {
    /// Its path from the repository's root.
    pub(crate) name: String,
    pub(crate) text: String,
}

/// Every page of the documentation.
pub(crate) fn pages() -> Vec<Page> {
    let mut pages = Vec::new();
    for folder in ["", "docs", "deploy", "bench"] {
        for entry in std::fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "md") {
                let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
                pages.push(Page { name, text: std::fs::read_to_string(path).unwrap() });
            }
        }
    }
    pages.sort_by(|one, other| one.name.cmp(&other.name));
    pages
}

impl Page {
    /// Whether its commands are for users of the program.
    pub(crate) fn is_for_users(&self) -> bool {
        self.name == "README.md" || self.name.starts_with("docs/")
    }

    fn events(&self) -> Parser<'_> {
        Parser::new_ext(&self.text, Options::ENABLE_TABLES)
    }

    /// Blocks of shell commands.
    pub(crate) fn blocks(&self) -> Vec<String> {
        let mut blocks = Vec::new();
        let mut block: Option<String> = None;
        for event in self.events() {
            match event {
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))) if &*language == "sh" => {
                    block = Some(String::new());
                }
                Event::Text(text) => block.iter_mut().for_each(|block| block.push_str(&text)),
                Event::End(TagEnd::CodeBlock) => blocks.extend(block.take()),
                _ => {}
            }
        }
        blocks
    }

    /// Code spans within sentences.
    pub(crate) fn spans(&self) -> Vec<String> {
        let spans = self.events().filter_map(|event| match event {
            Event::Code(text) => Some(text.into_string()),
            _ => None,
        });
        spans.collect()
    }

    pub(crate) fn links(&self) -> Vec<String> {
        let links = self.events().filter_map(|event| match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => Some(dest_url.into_string()),
            _ => None,
        });
        links.collect()
    }

    /// The anchors that code hosts make of its headings.
    pub(crate) fn anchors(&self) -> BTreeSet<String> {
        let mut anchors = BTreeSet::new();
        let mut heading: Option<String> = None;
        for event in self.events() {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::Text(text) | Event::Code(text) => heading.iter_mut().for_each(|so_far| so_far.push_str(&text)),
                Event::End(TagEnd::Heading(_)) => anchors.extend(heading.take().map(|heading| anchor(&heading))),
                _ => {}
            }
        }
        anchors
    }
}

fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>().to_lowercase()
}

/// The commands of a block; the shell decides which lines belong together.
pub(crate) fn commands(block: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut command = String::new();
    for line in block.lines() {
        if command.is_empty() && (line.trim().is_empty() || line.trim_start().starts_with('#')) {
            continue;
        }
        command.push_str(line);
        command.push('\n');
        if is_whole(&command) {
            commands.push(std::mem::take(&mut command));
        }
    }
    assert!(command.is_empty(), "the shell does not understand {command}");
    commands
}

fn is_whole(command: &str) -> bool {
    let looked_at = Command::new("bash").args(["-n", "-c", command]).output().unwrap();
    // An unterminated here-document is only a warning.
    looked_at.status.success() && looked_at.stderr.is_empty() && !command.trim_end().ends_with('\\')
}

#[test]
fn a_command_may_span_lines() {
    let block = "# first\na \\\n  b\n\ncat <<'END'\nc\nEND\nfor x in 1; do\n  d\ndone\necho '{\n}'  # e\n";
    let found = commands(block);
    assert_eq!(found, ["a \\\n  b\n", "cat <<'END'\nc\nEND\n", "for x in 1; do\n  d\ndone\n", "echo '{\n}'  # e\n"]);
    assert_eq!(anchor("What the `[n]` marks mean, and how"), "what-the-n-marks-mean-and-how");
}
