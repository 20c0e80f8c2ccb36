//! The playground's request as a program: each program sends exactly the messages, whatever they contain.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use testbed::{Behaviour, FakeRuntime};

use crate::ADRIATICUM;
use crate::browser::Page;
use crate::people::Console;

/// Text that breaks out of a literal, or changes within it, if it is quoted incorrectly.
const HOSTILE: [&str; 10] = [
    "it's \"quoted\", \\back\\slashed\\n, and ends in \\",
    "$HOME ${HOME} `id` $(id) !! ~ * ?",
    "line\nline\n\n\ttab \u{1b}[31m \u{1} \u{8} \u{c} \u{7f}",
    "👨‍👩‍👧 é 東京 \u{1f30a}",
    "</script><!-- <template> ]]>",
    "\u{202e}evil\u{2066} \u{2028}\u{2029}\u{feff}",
    "{request} {arguments} {base_url} $& $1 $$ %s {0}",
    "r#\"raw\"# ''' \"\"\" `${x}`",
    "'; echo stolen; ' \" ; \" #",
    "\\u0041 \\x41 \\N{DASH} \\u{41} \\'",
];

#[test]
fn each_program_sends_exactly_the_conversation_on_the_screen() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let console = Console::with_service(ADRIATICUM.service_with(&[&runtime]).start());
    let mut page = console.person("Ada", "developer");
    let key = Console::make_key(&mut page, "Programs");
    page.go("/playground");
    (2..HOSTILE.len()).for_each(|_| page.press("#add"));
    for (at, text) in HOSTILE.iter().enumerate() {
        page.put(&format!(".turn:nth-child({}) textarea", at + 1), text);
    }
    page.put("[name=temperature]", "0.5");
    let folder = tempfile::tempdir().unwrap();
    let clients = clients(folder.path());
    let python = clients.join("python/bin/python");
    for (language, interpreter, file) in [
        ("curl", Path::new("sh"), "ask.sh"),
        ("Python", &python, "ask.py"),
        ("JavaScript", Path::new("node"), "ask.mjs"),
    ] {
        std::fs::write(folder.path().join(file), program(&mut page, language)).unwrap();
        let mut command = Command::new(interpreter);
        command.arg(file).current_dir(folder.path()).env("ADRIATICUM_API_KEY", &key).env("NO_PROXY", "*");
        let output = command.output().unwrap();
        let (printed, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{language}: {errors}");
        assert!(!printed.contains("stolen\n") && !errors.contains("stolen"), "{language}: {printed} {errors}");
        let request = runtime.requests().pop().unwrap();
        let contents: Vec<_> = request["messages"].as_array().unwrap().iter().map(|each| &each["content"]).collect();
        assert_eq!(contents, HOSTILE, "{language}");
        assert_eq!((&request["temperature"], &request["max_tokens"]), (&json!(0.5), &json!(248)), "{language}");
    }
    assert_eq!(runtime.requests().len(), 3, "one request each");
    assert_eq!(page.errors(), Vec::<String>::new());
}

#[test]
fn rust_literals_have_the_intended_text() {
    let console = Console::start();
    let mut page = console.person("Ada", "developer");
    page.go("/playground");
    let module = "import(document.querySelector('script[type=module]').src.replace('playground.js', 'snippets.js'))";
    let literals = page.eval(&format!("{module}.then(({{ rustText }}) => {}.map(rustText))", json!(HOSTILE)));
    let lines = literals.as_array().unwrap().iter().map(Value::as_str).map(Option::unwrap);
    let prints: String =
        lines.map(|literal| format!("    println!(\"{{}}\", {literal}.escape_unicode());\n")).collect();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("literals.rs"), format!("fn main() {{\n{prints}}}\n")).unwrap();
    let compiled = Command::new("rustc").args(["--edition=2024", "literals.rs"]).current_dir(folder.path()).output();
    let compiled = compiled.unwrap();
    assert!(compiled.status.success(), "{prints}\n{}", String::from_utf8_lossy(&compiled.stderr));
    let printed = Command::new(folder.path().join("literals")).output().unwrap().stdout;
    let expected: Vec<_> = HOSTILE.iter().map(|text| text.escape_unicode().to_string()).collect();
    assert_eq!(String::from_utf8(printed).unwrap().lines().collect::<Vec<_>>(), expected);
}

/// The program that the page shows in that language.
fn program(page: &mut Page, language: &str) -> String {
    page.press(&format!("[name=language][value={language}]"));
    page.eval("document.getElementById('code').textContent").as_str().unwrap().to_owned()
}

/// The folder with the clients. JavaScript in `folder` finds them through a link.
fn clients(folder: &Path) -> std::path::PathBuf {
    let installed = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/clients")).output().unwrap();
    assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
    let clients = std::path::PathBuf::from(String::from_utf8(installed.stdout).unwrap().trim());
    std::os::unix::fs::symlink(clients.join("node/node_modules"), folder.join("node_modules")).unwrap();
    clients
}
