//! A lost or replaced index is an outage: requests that need facts are refused, and every report names the reason.

use testbed::{Behaviour, FakeRuntime, Installation, Response, Service, ServiceBuilder, on_postgres};

use crate::ADRIATICUM;

const FACTUAL: &str = "How long is the Velebit tunnel in metres?";
const CREATIVE: &str = "Write a short poem about the sea.";

fn add_documents(installation: &Installation) {
    let documents = installation.folder().join("handbook");
    std::fs::create_dir_all(&documents).unwrap();
    std::fs::write(documents.join("tunnel.md"), "# The Velebit tunnel\n\nThe Velebit tunnel is 5,821 m long.\n")
        .unwrap();
    installation.run_ok(&["index", "add", "handbook"]);
}

fn remove_index(installation: &Installation) {
    std::fs::remove_dir_all(installation.data().join("index")).unwrap();
}

/// Requests that need facts are refused; `/readyz`, `check` and `index list` name the reason.
fn assert_outage(service: &Service, key: &str, reason: &str) {
    // A running service asks the database every second which index it expects.
    let refused = ADRIATICUM.wait_for("the outage", || Some(service.chat(key, FACTUAL)).filter(|it| it.status == 503));
    assert_eq!(refused.error().code, "search_unavailable");
    service.chat(key, CREATIVE).completion();
    let (_, readiness) = service.get_ops("/readyz");
    assert!(readiness.contains(&format!("The search index is {reason}")), "{readiness}");
    for command in ["check", "index list"] {
        let output = service.run(&command.split(' ').collect::<Vec<_>>());
        assert_eq!(output.code, Some(1), "{output:?}");
        let printed = output.stdout + &output.stderr;
        assert!(printed.contains(&format!("the index is {reason}")), "{printed}");
        assert!(printed.contains("adriaticum index forget"), "{printed}");
    }
}

fn assert_grounded(service: &Service, key: &str) {
    let response = service.chat(key, FACTUAL);
    response.completion();
    assert!(response.header("link").is_some_and(|link| link.contains("tunnel.md")), "{response:?}");
    let (_, readiness) = service.get_ops("/readyz");
    assert!(!readiness.contains("The search index"), "{readiness}");
}

#[test]
fn a_lost_index_is_an_outage_until_it_is_restored_or_forgotten() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let mut service = ADRIATICUM.service_with(&[&runtime]).start();
    let key = service.key();
    service.chat(&key, FACTUAL).completion(); // there never was an index
    add_documents(&service);
    assert_grounded(&service, &key);

    let (index, moved) = (service.data().join("index"), service.folder().join("moved"));
    std::fs::rename(&index, &moved).unwrap();
    assert_outage(&service, &key, "gone");
    service.kill();
    service.start_again();
    assert!(service.banner().contains("Warning   requests that need facts get 503: the index is gone"));
    assert_outage(&service, &key, "gone");
    std::fs::rename(&moved, &index).unwrap();
    assert_grounded(&service, &key);

    remove_index(&service);
    assert_outage(&service, &key, "gone");
    add_documents(&service);
    assert_grounded(&service, &key);

    remove_index(&service);
    service.run_ok(&["index", "forget"]);
    ADRIATICUM.wait_for("an answer without an index", || (service.chat(&key, FACTUAL).status == 200).then_some(()));
    assert!(service.run_ok(&["check"]).contains("nothing is indexed"));
}

#[test]
fn another_index_is_an_outage_until_it_is_accepted() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let other = ADRIATICUM.install();
    let key = service.key();
    add_documents(&service);
    add_documents(&other);
    remove_index(&service);
    std::fs::rename(other.data().join("index"), service.data().join("index")).unwrap();
    assert_outage(&service, &key, "not the one that");
    let refused = service.run(&["index", "add", "handbook"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("not the one"), "{refused:?}");

    service.run_ok(&["index", "forget"]);
    ADRIATICUM.wait_for("the other index", || (service.chat(&key, FACTUAL).status == 200).then_some(()));
    assert_grounded(&service, &key);
    remove_index(&service);
    ADRIATICUM.wait_for("the outage", || (service.chat(&key, FACTUAL).status == 503).then_some(()));
}

#[test]
fn a_database_restored_without_its_index_grounds_nothing() {
    if on_postgres() {
        return; // the test with replicas below covers this
    }
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let service = ADRIATICUM.service_with(&[&runtime]).start();
    let key = service.key();
    add_documents(&service);
    service.run_ok(&["backup", "copy.db"]);
    let restored = service.folder().join("restored");
    std::fs::create_dir(&restored).unwrap();
    std::fs::copy(service.folder().join("copy.db"), restored.join("adriaticum.db")).unwrap();
    let restored = ADRIATICUM.service_with(&[&runtime]).data(restored).start();
    assert_outage(&restored, &key, "gone");
}

/// Each replica has a separate index folder.
#[test]
fn a_replica_without_its_copy_of_the_index_grounds_nothing() {
    if !on_postgres() {
        return; // only PostgreSQL is shared by replicas with separate data folders
    }
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let first = ADRIATICUM.service_with(&[&runtime]).start();
    let folder = first.folder().join("second");
    let second = ADRIATICUM.service_with(&[&runtime]).replica_of(&first).data(folder).start();
    let key = first.key();
    add_documents(&first);
    assert_grounded(&first, &key);
    assert_outage(&second, &key, "gone");
    add_documents(&second);
    assert_grounded(&second, &key);
    assert_grounded(&first, &key);
}

fn handbook(installation: &Installation) {
    let documents = installation.folder().join("handbook");
    std::fs::create_dir_all(&documents).unwrap();
    for (name, text) in [
        (
            "card.md",
            "# The campus card\n\nIt opens the doors of all buildings. If the reader flashes red, the rights on your access card have expired: hold it against the yellow column.\n",
        ),
        (
            "printing.md",
            "# Printing\n\nA page costs five cents. When paper is stuck, open the rear cover and pull it out slowly.\n",
        ),
        (
            "bicycles.md",
            "# Bicycles\n\nE-bikes are charged in the shed behind building C. The socket needs your card.\n",
        ),
        ("leave.md", "# Parental leave\n\nTell the personnel office eight weeks before the birth.\n"),
    ] {
        std::fs::write(documents.join(name), text).unwrap();
    }
}

fn sources(response: &Response) -> Vec<&str> {
    response.headers.iter().filter(|(name, _)| name == "link").map(|(_, value)| value.as_str()).collect()
}

#[test]
fn documents_are_found_by_meaning_and_only_for_requests_that_ask() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let mut installation = ADRIATICUM.install();
    installation.set("runtime.urls", &runtime.url());
    installation.use_sentence_encoder();
    handbook(&installation);
    installation.run_ok(&["index", "add", "handbook"]);
    let service = ServiceBuilder::new(installation).start();
    let key = service.key();
    for (request, document) in [
        ("my badge does not open the door any more", "card.md"),
        ("there is a paper jam message", "printing.md"),
        (PROBLEM, "leave.md"),
        ("Wo kann ich mein E-Bike laden?", "bicycles.md"),
        ("Gdje mogu napuniti bicikl?", "bicycles.md"),
    ] {
        let response = service.chat(&key, request);
        response.completion();
        let sources = sources(&response);
        assert!(sources.first().is_some_and(|source| source.contains(document)), "{request}: {sources:?}");
        let hits = service.run_ok(&["index", "search", request]);
        assert!(hits.lines().take(6).any(|line| line.contains(document)), "{hits}");
        assert!(hits.contains("in the prompt"), "{hits}");
        let explained = service.run_ok(&["grounding", "explain", request]);
        let (verdict, prompt) = explained.split_once("In the prompt:").unwrap_or_else(|| panic!("{explained}"));
        assert!(verdict.contains("The documents help: +") && prompt.contains(document), "{explained}");
    }
    for request in [
        "Write a limerick about a jammed printer.",
        "Translate into German: the door does not open.",
        "Thanks, that was quick!",
        "Schreib mir bitte ein Gedicht über Fahrräder.",
    ] {
        let response = service.chat(&key, request);
        response.completion();
        assert_eq!(sources(&response), [""; 0], "{request}");
        assert_eq!(service.rows()[0]["grounded"], false, "{request}");
    }
}

#[test]
fn an_index_without_vectors_gets_them_when_its_folders_are_added_again() {
    let mut installation = ADRIATICUM.install();
    handbook(&installation);
    installation.run_ok(&["index", "add", "handbook"]);
    let by_words = installation.run_ok(&["index", "search", "pregnancy", "--json"]);
    assert_eq!(by_words.trim(), "[]");
    installation.use_sentence_encoder();
    let unchanged = installation.run_ok(&["index", "search", "pregnancy", "--json"]);
    assert_eq!(unchanged.trim(), "[]", "no passage has a vector yet");
    assert!(installation.run_ok(&["index", "add", "handbook"]).contains("4 changed"));
    assert!(installation.run_ok(&["index", "add", "handbook"]).contains("4 unchanged"));
    let found = installation.run_ok(&["index", "search", "pregnancy"]);
    assert!(found.lines().next().unwrap().contains("leave.md"), "{found}");
}

#[test]
fn a_damaged_encoder_leaves_search_by_words() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let mut installation = ADRIATICUM.install();
    installation.set("runtime.urls", &runtime.url());
    installation.use_sentence_encoder();
    add_documents(&installation);
    let encoder = installation.data().join("sentence-encoder.whl");
    let bytes = std::fs::read(&encoder).unwrap();
    std::fs::write(&encoder, &bytes[..bytes.len() / 2]).unwrap();
    let service = ServiceBuilder::new(installation).start();
    let response = service.chat(&service.key(), FACTUAL);
    response.completion();
    assert!(sources(&response)[0].contains("tunnel.md"));
    assert!(service.log().contains("documents are found by their words alone"), "{}", service.log());
}

/// Needs no facts by its score.
const PROBLEM: &str = "we are expecting a baby";

#[test]
fn if_search_fails_only_requests_that_need_facts_fail() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let mut installation = ADRIATICUM.install();
    installation.set("runtime.urls", &runtime.url());
    installation.use_sentence_encoder();
    add_documents(&installation);
    handbook(&installation);
    installation.run_ok(&["index", "add", "handbook"]);
    let service = ServiceBuilder::new(installation).start();
    let key = service.key();
    assert!(!sources(&service.chat(&key, PROBLEM)).is_empty());
    remove_index(&service);
    let refused = ADRIATICUM.wait_for("the outage", || Some(service.chat(&key, FACTUAL)).filter(|it| it.status == 503));
    assert_eq!(refused.error().code, "search_unavailable");
    let response = service.chat(&key, PROBLEM);
    response.completion();
    assert_eq!(sources(&response), [""; 0]);
}

#[test]
fn a_search_says_why_a_document_is_not_among_the_passages() {
    let mut installation = ADRIATICUM.install();
    handbook(&installation);
    installation.use_sentence_encoder();
    installation.run_ok(&["index", "add", "handbook"]);
    let reason = |document: &str| {
        let found =
            installation.run_ok(&["index", "search", "parental leave before the birth", "--document", document]);
        found.lines().last().unwrap().to_owned()
    };
    assert!(reason("handbook/leave.md").contains("it is found, in place 1"), "{}", reason("handbook/leave.md"));
    assert!(reason("handbook/bicycles.md").contains("too far from the best"), "{}", reason("handbook/bicycles.md"));
    assert!(reason("elsewhere.md").contains("in no folder that is indexed"));
    std::fs::write(installation.folder().join("handbook/new.md"), "Parents get leave.").unwrap();
    assert!(reason("handbook/new.md").contains("it is not in the index. `adriaticum index add"));
}
