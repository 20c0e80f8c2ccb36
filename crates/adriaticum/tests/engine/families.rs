//! Models of other families, and hostile model files.

use std::path::PathBuf;

use testbed::gguf::GgufFile;
use testbed::zoo::Species;
use testbed::{Conversation, all_at_once};

use crate::embedded::{EmbeddedBuilder, EmbeddedService};
use crate::{ADRIATICUM, run_alone};

struct ModelFile {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl ModelFile {
    fn new(model: &GgufFile) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        std::fs::write(&path, model.bytes()).unwrap();
        Self { _folder: folder, path }
    }

    fn serve(&self) -> EmbeddedBuilder {
        EmbeddedBuilder::serving(&self.path).set("engine.cells", "2048")
    }
}

fn tiny(species: &str) -> GgufFile {
    Species::named(species).model(1)
}

fn ask(service: &EmbeddedService, key: &str, question: &str) -> testbed::Response {
    service.complete(key, &Conversation::user(question).temperature(0.0).max_tokens(12))
}

#[test]
fn a_request_that_overflows_the_model_fails_alone() {
    let _alone = run_alone();
    const ROW: usize = 64;
    const TILDE: usize = 4 + b'~' as usize;
    // A tilde in a message makes its activations overflow.
    let model = tiny("olmo2").change("token_embd.weight", |at, weight| if at / ROW == TILDE { 3e38 } else { weight });
    let file = ModelFile::new(&model);
    let service = file.serve().start();
    let key = service.key();
    let questions: Vec<_> = (0..8).map(|at| format!("Question number {at}: what is it?")).collect();
    let expected: Vec<_> =
        questions.iter().map(|question| ask(&service, &key, question).completion().content).collect();
    let overflowing = questions.iter().map(|question| format!("{question} ~~~"));
    let all: Vec<_> = questions.iter().cloned().zip(overflowing).flat_map(<[String; 2]>::from).collect();
    let answers = all_at_once(&all, |question| ask(&service, &key, question));
    for (pair, expected) in answers.chunks(2).zip(expected) {
        assert_eq!(pair[0].completion().content, expected);
        assert_eq!(pair[1].status, 502, "{:?}", pair[1]);
    }
    assert!(service.log().contains("logits that are not finite"));
}

#[test]
fn models_that_cannot_be_served_are_refused_in_one_sentence() {
    let _alone = run_alone();
    let template = |text: &str| tiny("llama").text("tokenizer.chat_template", text);
    let loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    let doubles = "{% set ns = namespace(x='x') %}{% for a in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}";
    for (what, model, fault) in [
        ("a diffusion model", tiny("dream"), "(diffusion)"),
        ("a template that loops", template(loops), "cannot be used"),
        ("a template that doubles", template(doubles), "waiting for another file"),
        ("a template that is none", template("{% if %}"), "cannot be used"),
        ("no context", tiny("llama").number("llama.context_length", 0), "(without a context)"),
        ("no heads", tiny("llama").number("llama.attention.head_count", 0), "waiting for another file"),
    ] {
        let file = ModelFile::new(&model);
        let service = file.serve().start_unloaded();
        ADRIATICUM.wait_for(&format!("a refusal of {what}"), || {
            let log = service.log();
            (log.contains(fault) && log.contains("waiting for another file")).then_some(())
        });
        let key = service.key();
        let response = ask(&service, &key, "Hello!");
        response.expect_error("service_unavailable");
        assert_eq!(response.header("retry-after"), None, "{what}: waiting would not help");
    }
}

#[test]
fn roles_that_are_marked_by_text_are_reported() {
    let _alone = run_alone();
    let text =
        "{% for m in messages %}{{ '### ' + m['role'] + ':\\n' + m['content'] + '\\n' }}{% endfor %}### assistant:\n";
    let file = ModelFile::new(&tiny("llama").text("tokenizer.chat_template", text));
    let service = file.serve().start();
    assert!(service.log().contains("messages of these roles by text alone"), "{}", service.log());
    let output = file.serve().installation().run(&["check"]);
    let model = output.stdout.lines().find(|line| line.contains("by text alone"));
    assert!(model.is_some_and(|line| line.contains("user") && line.contains("assistant")), "{output:?}");
    let file = ModelFile::new(&tiny("llama"));
    let marked = file.serve().start();
    assert!(!marked.log().contains("by text alone"));
}

/// The cached part of a prompt shows whether another caller has sent its beginning.
#[test]
fn prefixes_are_shared_within_the_scope_that_is_set() {
    let _alone = run_alone();
    let file = ModelFile::new(&tiny("llama"));
    let question = "The same long question, word for word, of two people who do not know of each other.";
    for (sharing, shares) in [("everyone", true), ("key", false)] {
        let service = file.serve().set("engine.sharing", sharing).start();
        let (one, other) = (service.key(), service.key());
        ask(&service, &one, question).completion();
        let shared = || service.status().get("shared_tokens");
        let before = shared();
        ask(&service, &other, question).completion();
        assert_eq!(shared() > before, shares, "{sharing}");
        let before = shared();
        ask(&service, &one, question).completion();
        assert!(shared() > before, "{sharing}");
    }
}
