//! Invalid or missing model files: the service runs, reports the error, and loads the model as soon as there is one.

use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::process::Signal;
use testbed::Conversation;

use crate::embedded::{EmbeddedBuilder, EmbeddedService};
use crate::{ADRIATICUM, run_alone};

/// Replaces a file atomically.
fn replace(file: &Path, make: impl FnOnce(&Path)) {
    let next = file.with_extension("next");
    make(&next);
    fs::rename(next, file).unwrap();
}

fn assert_unconfigured(service: &EmbeddedService, key: &str) {
    let response = service.complete(key, &Conversation::user("Hello!"));
    response.expect_error("service_unavailable");
    assert_eq!(response.header("retry-after"), None, "waiting alone would not help: {response:?}");
}

#[test]
fn a_file_that_is_no_model_is_refused_and_a_good_one_in_its_place_is_served() {
    let _alone = run_alone();
    let mut beginning = Vec::new();
    fs::File::open(ADRIATICUM.default_model()).unwrap().take(1 << 20).read_to_end(&mut beginning).unwrap();
    let garbage: Vec<u8> = (0..100_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let cases = [
        ("text", b"To whom it may concern: this is not a model.\n".to_vec(), "is not a GGUF file"),
        ("nothing", Vec::new(), "is not a GGUF file"),
        ("garbage", garbage, "is not a GGUF file"),
        ("the beginning of a model", beginning, "is cut off or damaged"),
    ];
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    fs::write(&file, &cases[0].1).unwrap();
    let mut service = EmbeddedBuilder::serving(&file).start_unloaded();
    let key = service.key();
    for (at, (what, bytes, fault)) in cases.iter().enumerate() {
        if at > 0 {
            replace(&file, |next| fs::write(next, bytes).unwrap());
        }
        ADRIATICUM.wait_for(&format!("a refusal of {what}"), || {
            let complaint = format!("{} {fault}", file.display());
            let earlier = cases[..at].iter().filter(|(_, _, other)| other == fault).count();
            (service.log().matches(&complaint).count() == earlier + 1).then_some(())
        });
        ADRIATICUM.wait_for("the supervisor's word", || {
            (service.log().matches("waiting for another file").count() == at + 1).then_some(())
        });
        assert_unconfigured(&service, &key);
    }
    replace(&file, |next| symlink(ADRIATICUM.default_model(), next).unwrap());
    service.wait_until_loaded();
    service.signal(Signal::TERM);
    assert_eq!(service.wait_for_exit().code(), Some(0));
}

#[test]
fn a_missing_model_is_served_once_it_is_there() {
    let _alone = run_alone();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    let service = EmbeddedBuilder::serving(&file).start_unloaded();
    let key = service.key();
    assert_unconfigured(&service, &key);
    replace(&file, |next| symlink(ADRIATICUM.default_model(), next).unwrap());
    service.wait_until_loaded();
}
