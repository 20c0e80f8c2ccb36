//! Documents are found by the vectors of an embeddings server or of an embedding model, and by their words while there are
//! none.

use std::time::Instant;

use testbed::meaning::{Embedding, FakeEmbeddings, embedding_model};
use testbed::{Behaviour, FakeRuntime, Installation, Response, Service, ServiceBuilder, unreachable_url};

use crate::ADRIATICUM;

/// Has no word in common with the document that answers it.
const FACTUAL: &str = "Who is told when a baby comes in 2026?";
const BY_WORDS: &str = "Which office is told about parental time in 2026?";

fn documents(installation: &Installation) {
    let folder = installation.folder().join("handbook");
    std::fs::create_dir_all(&folder).unwrap();
    for (name, text) in [
        ("leave.md", "# Parental time\n\nInform the personnel office eight weeks before the birth.\n"),
        ("printing.md", "# Printing\n\nSheets that are stuck are pulled out slowly.\n"),
        ("access.md", "# Doors\n\nYour card opens all buildings.\n"),
    ] {
        std::fs::write(folder.join(name), text).unwrap();
    }
}

fn first_hit(installation: &Installation, question: &str) -> String {
    installation.run_ok(&["index", "search", question]).lines().next().unwrap_or_default().to_owned()
}

fn sources(response: &Response) -> String {
    response.header("link").unwrap_or_default().to_owned()
}

fn assert_first_source(service: &Service, key: &str, request: &str, document: &str) {
    ADRIATICUM.wait_for("the source", || sources(&service.chat(key, request)).contains(document).then_some(()));
}

#[test]
fn documents_are_found_by_the_vectors_of_a_server() {
    let (runtime, embeddings) = (FakeRuntime::start(Behaviour::Echo), FakeEmbeddings::start(Embedding::WELL));
    let mut installation = ADRIATICUM.install();
    installation.use_sentence_encoder();
    documents(&installation);
    installation.set("runtime.urls", &runtime.url());
    installation.set("search.embeddings", &embeddings.url().replace("http://", "http://:Quagga@"));
    installation.set("search.question_prefix", "query: ");
    installation.set("search.passage_prefix", "passage: ");
    installation.run_ok(&["index", "add", "handbook"]);
    for (question, document) in [("jam", "printing.md"), ("a badge", "access.md"), ("our baby", "leave.md")] {
        assert!(first_hit(&installation, question).contains(document), "{question}");
    }
    let texts = embeddings.texts();
    assert!(texts.iter().any(|text| text.starts_with("query: our baby")), "{texts:?}");
    assert!(texts.iter().any(|text| text.starts_with("passage: ") && text.contains("eight weeks")), "{texts:?}");
    assert!(embeddings.heads().iter().all(|head| head.to_ascii_lowercase().contains("authorization: bearer quagga")));
    let checked = installation.run(&["check"]);
    assert!(checked.stdout.contains("by words-1"), "{checked:?}");
    assert!(!installation.run_ok(&["config"]).contains("Quagga"));

    let service = ServiceBuilder::new(installation).start();
    let key = service.key();
    assert_first_source(&service, &key, FACTUAL, "leave.md");
    // While the server fails in any way, documents are found by words.
    for failure in [Embedding::Respond(500, "no".into()), Embedding::Respond(200, "{}".into()), Embedding::Constant] {
        embeddings.set(failure.clone());
        for _ in 0..3 {
            let response = service.chat(&key, BY_WORDS);
            response.completion();
            assert!(sources(&response).contains("leave.md"), "{failure:?}: {response:?}");
        }
    }
    embeddings.set(Embedding::WELL);
    assert_first_source(&service, &key, FACTUAL, "leave.md");
}

#[test]
fn a_server_that_hangs_costs_half_of_the_time_of_a_search_once() {
    let (runtime, embeddings) = (FakeRuntime::start(Behaviour::Echo), FakeEmbeddings::start(Embedding::WELL));
    let mut installation = ADRIATICUM.install();
    installation.use_sentence_encoder();
    documents(&installation);
    installation.set("runtime.urls", &runtime.url());
    installation.set("search.embeddings", &embeddings.url());
    installation.run_ok(&["index", "add", "handbook"]);
    let service = ServiceBuilder::new(installation).start();
    let key = service.key();
    assert_first_source(&service, &key, FACTUAL, "leave.md");
    embeddings.set(Embedding::Hang);
    let began = Instant::now();
    for _ in 0..10 {
        let response = service.chat(&key, BY_WORDS);
        response.completion();
        assert!(sources(&response).contains("leave.md"), "{response:?}");
    }
    // `search.timeout` is 5 s.
    assert!(began.elapsed().as_secs_f64() < 4.5, "{:?}", began.elapsed());
}

#[test]
fn another_model_has_all_folders_embedded_again() {
    let embeddings = FakeEmbeddings::start(Embedding::WELL);
    let mut installation = ADRIATICUM.install();
    installation.use_sentence_encoder();
    documents(&installation);
    installation.set("search.embeddings", &embeddings.url());
    installation.run_ok(&["index", "add", "handbook"]);
    assert!(installation.run_ok(&["index", "add", "handbook"]).contains("3 unchanged"));
    embeddings.set(Embedding::OTHER);
    let by_words = installation.run_ok(&["index", "search", "our baby", "--json"]);
    assert_eq!(by_words.trim(), "[]", "no passage has a vector of this model");
    assert!(installation.run_ok(&["index", "add", "handbook"]).contains("3 changed"));
    assert!(first_hit(&installation, "our baby").contains("leave.md"));
}

#[test]
fn a_server_that_cannot_be_used_is_named_and_nothing_is_lost() {
    let embeddings = FakeEmbeddings::start(Embedding::WELL);
    let mut installation = ADRIATICUM.install();
    installation.use_sentence_encoder();
    documents(&installation);
    installation.set("search.embeddings", &embeddings.url());
    installation.run_ok(&["index", "add", "handbook"]);
    for (failure, reason) in [
        (Embedding::Constant, "do not distinguish related texts from others"),
        (Embedding::Respond(401, String::new()), "refuses the credentials"),
        (Embedding::Respond(200, r#"{"data":[{"id":"m","embedding":[1e99]}]}"#.into()), "not the JSON"),
    ] {
        embeddings.set(failure);
        for command in [&["index", "add", "handbook"][..], &["index", "search", "our baby"], &["check"]] {
            let output = installation.run(command);
            assert_eq!(output.code, Some(1), "{output:?}");
            assert!((output.stdout + &output.stderr).contains(reason), "{command:?}: {reason}");
        }
    }
    embeddings.set(Embedding::WELL);
    assert!(first_hit(&installation, "our baby").contains("leave.md"));
    installation.set("search.embeddings", &unreachable_url());
    let output = installation.run(&["index", "add", "handbook"]);
    assert!(output.stderr.contains("it cannot be reached"), "{output:?}");
    installation.set("search.embeddings", "on-and-off");
    let output = installation.run(&["index", "list"]);
    assert!(output.stderr.contains("it must be on, off, the URL of an embeddings server"), "{output:?}");
}

#[test]
fn an_embedding_model_runs_in_the_embedded_engine() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let mut installation = ADRIATICUM.install();
    installation.use_sentence_encoder();
    documents(&installation);
    let model = installation.folder().join("meanings.gguf");
    std::fs::write(&model, embedding_model().bytes()).unwrap();
    installation.set("runtime.urls", &runtime.url());
    installation.set("search.embeddings", model.to_str().unwrap());
    installation.run_ok(&["index", "add", "handbook"]);
    for (question, document) in [("jam", "printing.md"), ("a badge", "access.md"), ("our baby", "leave.md")] {
        assert!(first_hit(&installation, question).contains(document), "{question}");
    }
    let service = ServiceBuilder::new(installation).start();
    let key = service.key();
    assert_first_source(&service, &key, FACTUAL, "leave.md");
}

#[test]
fn a_file_that_is_no_embedding_model_is_refused() {
    let mut installation = ADRIATICUM.install();
    installation.use_sentence_encoder();
    documents(&installation);
    let model = installation.folder().join("chat.gguf");
    std::fs::write(&model, testbed::zoo::Species::named("qwen2").model(1).bytes()).unwrap();
    installation.set("search.embeddings", model.to_str().unwrap());
    let output = installation.run(&["index", "add", "handbook"]);
    assert!(output.code == Some(1) && output.stderr.contains("is not an embedding model"), "{output:?}");
    installation.set("search.embeddings", "missing.gguf");
    let output = installation.run(&["index", "add", "handbook"]);
    assert!(output.code == Some(1) && output.stderr.contains("missing.gguf cannot be read"), "{output:?}");
}
