//! Models of the Hugging Face hub, of the catalogue, and at a URL.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::sandbox::{Sandbox, complains, hex_sha256, model};
use testbed::file_server::{FileServer, Request, Response};
use testbed::{Output, wait_for};

/// A hub with one repository, `owner/repo`, that holds these files.
fn hub(
    files: &'static [&'static str],
    breaks: impl Fn(usize, Response) -> Response + Send + Sync + 'static,
) -> FileServer {
    let entries: Vec<Value> = files
        .iter()
        .map(|path| {
            let bytes = model(path);
            json!({"type": "file", "oid": hex_sha256(&bytes)[..40], "size": bytes.len(), "path": path,
                   "lfs": {"oid": hex_sha256(&bytes), "size": bytes.len(), "pointerSize": 134}})
        })
        .collect();
    let readme = json!({"type": "file", "oid": "0", "size": 5, "path": "README.md"});
    let listing = Value::from([entries, vec![readme, json!({"type": "directory", "oid": "0", "path": "q4"})]].concat());
    FileServer::start(move |number, request: &Request| {
        if request.path == "/api/models/owner/repo/tree/main?recursive=true" {
            return Response::whole(listing.to_string().as_bytes());
        }
        let file = request.path.strip_prefix("/owner/repo/resolve/main/");
        match file.filter(|file| files.contains(file)) {
            Some(file) => breaks(number, Response::file(&model(file), request)),
            None => Response::status(404),
        }
    })
}

#[test]
fn a_model_of_the_hub_is_fetched_by_its_name_or_as_the_only_one() {
    for (files, from, file) in [
        (&["a.gguf", "q4/b.gguf"][..], "owner/repo/q4/b.gguf", "q4/b.gguf"),
        (&["a.gguf", "q4/b.gguf"], "owner/repo/a.gguf", "a.gguf"),
        (&["only.gguf"], "owner/repo", "only.gguf"),
    ] {
        let hub = hub(files, |_, response| response);
        let sandbox = Sandbox::at(&hub);
        let output = Output::from_command(sandbox.command(&["--from", from]).env("HF_TOKEN", "hf_test"));
        assert_eq!(output.code, Some(0), "{output:?}");
        assert!(output.stdout.starts_with(&format!("data/model.gguf: {file} (llama, ")), "{output:?}");
        assert!(output.stderr.contains(&format!("{file}: 100 %")), "{output:?}");
        sandbox.assert_holds(&model(file));
        let token = Some("Bearer hf_test".to_owned());
        assert!(hub.requests().iter().all(|request| request.authorization == token), "{:?}", hub.requests());
    }
}

#[test]
fn an_interrupted_download_from_the_hub_is_resumed() {
    let size = model("only.gguf").len();
    let hub = hub(&["only.gguf"], move |number, response| match number {
        // The listing comes first.
        1 => response.cut_after(size / 4),
        2 => response.stall_after(size / 4),
        _ => response,
    });
    let sandbox = Sandbox::at(&hub);
    let first = sandbox.start(&["--from", "owner/repo"]);
    wait_for("half of the model", || {
        hub.requests().get(2).is_some_and(|request| request.sent == size / 4).then_some(())
    });
    let half =
        |name: &String| fs::metadata(sandbox.data().join(name)).is_ok_and(|file| file.len() as usize == size / 4 * 2);
    wait_for("half of the model on disk", || sandbox.files().iter().any(half).then_some(()));
    kill_process(Pid::from_child(&first), Signal::TERM).unwrap();
    first.wait_with_output().unwrap();

    let output = sandbox.fetch(&["--from", "owner/repo"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    sandbox.assert_holds(&model("only.gguf"));
    let gets = hub.requests().into_iter().filter(|request| request.method == "GET" && request.path.contains("resolve"));
    let gets: Vec<_> = gets.map(|request| request.from).collect();
    assert_eq!(gets, [None, Some(size / 4), Some(size / 4 * 2)]);
}

#[test]
fn a_hub_that_ignores_the_range_sends_the_whole_file() {
    let whole = model("only.gguf");
    let hub = hub(&["only.gguf"], move |number, response| match number {
        1 => response.cut_after(1000),
        _ => Response::whole(&whole),
    });
    let sandbox = Sandbox::at(&hub);
    let output = sandbox.fetch(&["--from", "owner/repo"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    sandbox.assert_holds(&model("only.gguf"));
}

#[test]
fn a_file_missing_on_the_hub_is_reported_with_existing_ones() {
    const SPLIT: &str = "big-00001-of-00003.gguf";
    let cases = [
        (&["a.gguf", "b.gguf"][..], "owner/repo", &["holds more than one", "owner/repo/FILE: a.gguf, b.gguf."][..]),
        (&["a.gguf", "b.gguf"], "owner/repo/c.gguf", &["does not hold c.gguf", "a.gguf, b.gguf."]),
        (&[], "owner/repo", &["owner/repo holds no GGUF file"]),
        (&[SPLIT], "owner/repo", &[SPLIT, "is one of 3 pieces"]),
        (&["a.gguf"], "owner/other", &["no repository owner/other", "HF_TOKEN"]),
        (&["a.gguf"], "owner/other/a.gguf", &["no file owner/other/a.gguf here", "no repository owner/other"]),
    ];
    for (files, from, says) in cases {
        let hub = hub(files, |_, response| response);
        let sandbox = Sandbox::at(&hub);
        complains(&sandbox.fetch(&["--from", from]), says);
        assert!(sandbox.files().is_empty(), "{:?}", sandbox.files());
        assert_eq!(hub.requests().len(), 1, "{from}");
    }
}

#[test]
fn a_failing_hub_is_reported() {
    let unreachable = Sandbox::new();
    complains(
        &unreachable.fetch(&["--from", "owner/repo"]),
        &["the hub at http://127.0.0.1:9 cannot be reached", "Connection refused", "HF_ENDPOINT", "--from PATH"],
    );
    for (status, says) in [(401, "HF_TOKEN"), (403, "HF_TOKEN"), (410, "the server answers 410")] {
        let hub = hub(&["a.gguf"], move |_, _| Response::status(status));
        let sandbox = Sandbox::at(&hub);
        complains(&sandbox.fetch(&["--from", "owner/repo"]), &["a.gguf could not be downloaded", says]);
    }
    let wrong = hub(&["a.gguf"], |_, _| Response::whole(&model("b.gguf")));
    let sandbox = Sandbox::at(&wrong);
    complains(&sandbox.fetch(&["--from", "owner/repo"]), &["a.gguf is not the expected file", "SHA-256", "not kept"]);
    assert!(sandbox.files().is_empty());
}

#[test]
fn a_listing_may_have_pages_and_the_token_may_come_from_the_hubs_own_file() {
    let entry =
        |path: &str| json!([{"type": "file", "oid": path, "size": model(path).len(), "path": path}]).to_string();
    let hub = FileServer::start(move |_, request: &Request| match request.path.as_str() {
        "/mirror/api/models/owner/repo/tree/main?recursive=true" => {
            let next = "Link: </mirror/more?cursor=2>; rel=\"next\"";
            Response::whole(entry("a.gguf").as_bytes()).with(next.into())
        }
        "/mirror/more?cursor=2" => Response::whole(entry("b c.gguf").as_bytes()),
        "/mirror/owner/repo/resolve/main/b%20c.gguf" => Response::file(&model("b c.gguf"), request),
        _ => Response::status(404),
    });
    let sandbox = Sandbox::at(&hub);
    let kept = sandbox.data().parent().unwrap().join("hub");
    fs::create_dir_all(&kept).unwrap();
    fs::write(kept.join("token"), "hf_kept\n").unwrap();
    let mut command = sandbox.command(&["--from", "owner/repo/b c.gguf"]);
    command.env("HF_ENDPOINT", format!("{}/mirror/", hub.url())).env("HF_HOME", &kept).env_remove("HF_TOKEN");
    let output = Output::from_command(&mut command);
    assert_eq!(output.code, Some(0), "{output:?}");
    sandbox.assert_holds(&model("b c.gguf"));
    let token = Some("Bearer hf_kept".to_owned());
    assert!(hub.requests().iter().all(|request| request.authorization == token), "{:?}", hub.requests());
}

#[test]
fn a_token_goes_to_no_other_server() {
    let entry = json!([{"type": "file", "oid": "1", "size": 1, "path": "a.gguf"}]).to_string();
    let other = FileServer::start(|_, _| Response::whole(b"[]"));
    let elsewhere = format!("Link: <{}/more>; rel=\"next\"", other.url());
    let hub = FileServer::start(move |_, request: &Request| match request.path.contains("/tree/") {
        true => Response::whole(entry.as_bytes()).with(elsewhere.clone()),
        false => Response::file(&model("a.gguf"), request),
    });
    let sandbox = Sandbox::at(&hub);
    let output = Output::from_command(sandbox.command(&["--from", "owner/repo"]).env("HF_TOKEN", "hf_test"));
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(other.requests().is_empty(), "{:?}", other.requests());
}

#[test]
fn a_model_of_the_catalogue_is_fetched_by_its_name() {
    const FILE: &str = "qwen2.5-0.5b-instruct-q4_k_m.gguf";
    let served = FileServer::start(move |_, request: &Request| {
        let folder = "/Qwen/Qwen2.5-0.5B-Instruct-GGUF/resolve/main/";
        match request.path.as_str() {
            "/api/models/Qwen/Qwen2.5-0.5B-Instruct-GGUF/tree/main?recursive=true" => {
                let entry = |name: &str| json!({"type": "file", "oid": "0", "size": 1, "path": name});
                Response::whole(json!([entry(FILE), entry("other.gguf")]).to_string().as_bytes())
            }
            path if path.strip_prefix(folder) == Some(FILE) => Response::file(&model(FILE), request),
            _ => Response::status(404),
        }
    });
    let sandbox = Sandbox::at(&served);
    let output = sandbox.fetch(&["qwen2.5-0.5b"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    sandbox.assert_holds(&model(FILE));
    complains(&sandbox.fetch(&["gpt-9"]), &["there is no model gpt-9", "`adriaticum model list`"]);
}

#[test]
fn a_model_is_fetched_from_a_url_and_its_digest_is_checked() {
    let served = FileServer::start(|_, request: &Request| match request.path.as_str() {
        "/files/a.gguf" => Response::file(&model("a"), request),
        _ => Response::status(404),
    });
    let url = format!("{}/files/a.gguf", served.url());
    for digest in ["", &format!("#sha256={}", hex_sha256(&model("a")))] {
        let sandbox = Sandbox::new();
        let output = sandbox.fetch(&["--from", &format!("{url}{digest}")]);
        assert_eq!(output.code, Some(0), "{output:?}");
        sandbox.assert_holds(&model("a"));
    }
    let sandbox = Sandbox::new();
    complains(
        &sandbox.fetch(&["--from", &format!("{url}#sha256=00")]),
        &["a.gguf is not the expected file", "not kept"],
    );
    complains(&sandbox.fetch(&["--from", &format!("{}/none.gguf", served.url())]), &["none.gguf", "404"]);
    assert_eq!(sandbox.files(), [""; 0]);
}

#[test]
fn the_catalogue_says_what_fits_this_machine() {
    let output = Sandbox::new().model(&["list"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.stdout.contains("smollm2-135m") && output.stdout.contains("Apache-2.0"), "{output:?}");
    let rows: Value = serde_json::from_str(&Sandbox::new().model(&["list", "--json"]).stdout).unwrap();
    let default = rows.as_array().unwrap().iter().find(|row| row["name"] == "smollm2-135m").unwrap();
    assert_eq!((&default["fits"], &default["licence"]), (&json!(true), &json!("Apache-2.0")));
}
