//! Two replicas behind nginx: rolling restarts under load, and nginx's own error responses.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use testbed::{Behaviour, Cluster, FakeRuntime, Response, Service, chat_body, free_port};

use crate::ADRIATICUM;
use crate::nginx::Nginx;

const PACE: Duration = Duration::from_millis(25);
const DRAIN: &str = "500ms";

struct Load {
    callers: u32,
    answers_after: Duration,
}

const QUICK_ANSWERS: Load = Load { callers: 8, answers_after: Duration::ZERO };
/// Longer than a replica drains.
const LONG_ANSWERS: Load = Load { callers: 150, answers_after: Duration::from_secs(3) };

fn replica(runtime: &FakeRuntime, shared: &[(&str, &str)]) -> (Service, SocketAddr) {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let setup = ADRIATICUM
        .service_with(&[runtime])
        .set("api.listen", &address.to_string())
        .set("console.listen", &address.to_string())
        .set("api.base_url", "https://api.example.com/v1")
        .set("console.base_url", "https://console.example.com")
        .set("trusted_proxies", "127.0.0.1")
        .set("api.drain", DRAIN);
    (shared.iter().fold(setup, |setup, (name, value)| setup.set(name, value)).start(), address)
}

fn client(nginx: &Nginx) -> reqwest::Client {
    let client = reqwest::Client::builder().no_proxy().tls_danger_accept_invalid_certs(true);
    let client = client.resolve("api.example.com", nginx.address()).resolve("console.example.com", nginx.address());
    client.timeout(Duration::from_secs(30)).build().unwrap()
}

/// The response to a body.
async fn post(client: &reqwest::Client, nginx: &Nginx, key: &str, body: String) -> Result<Response, reqwest::Error> {
    let url = format!("https://api.example.com:{}/v1/chat/completions", nginx.address().port());
    let request = client.post(url).header("Content-Type", "application/json").bearer_auth(key).body(body);
    let response = request.send().await?;
    let headers = response.headers().iter();
    let headers = headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
    Ok(Response { status: response.status().as_u16(), headers, body: response.bytes().await?.into() })
}

/// Stops a replica as a service manager does, and starts it again.
fn restart(service: &mut Service) {
    service.signal(Signal::TERM);
    assert_eq!(service.wait_for_exit().code(), Some(0));
    service.start_again();
    ADRIATICUM.wait_for("readiness", || (service.get_ops("/readyz").0 == 200).then_some(()));
}

/// The results of all callers so far.
#[derive(Default)]
struct Tally {
    ids: Mutex<Vec<String>>,
    failures: Mutex<Vec<String>>,
    done: AtomicBool,
}

impl Tally {
    fn completed(&self) -> usize {
        self.ids.lock().unwrap().len()
    }

    /// One caller: a request, a short wait, the next request.
    async fn call(&self, nginx: &Nginx, key: &str) {
        let client = client(nginx);
        while !self.done.load(Ordering::Relaxed) {
            match post(&client, nginx, key, chat_body("hello")).await {
                Ok(response) if response.status == 200 => self.ids.lock().unwrap().push(response.completion().id),
                Ok(response) => {
                    self.failures.lock().unwrap().push(String::from_utf8_lossy(&response.body).into_owned())
                }
                Err(error) => self.failures.lock().unwrap().push(format!("{error:?}")),
            }
            tokio::time::sleep(PACE).await;
        }
    }
}

#[test]
fn replicas_on_one_machine_are_restarted_and_no_request_fails() {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", folder.path().join("shared.db").display());
    no_request_fails_while_replicas_restart(&[("database_url", &file)], QUICK_ANSWERS);
}

/// nginx must use a restarted replica before its first answer, which may take longer than the next replica drains.
#[test]
fn replicas_are_restarted_under_long_answers_and_no_request_fails() {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", folder.path().join("shared.db").display());
    no_request_fails_while_replicas_restart(&[("database_url", &file)], LONG_ANSWERS);
}

#[test]
fn replicas_over_postgresql_are_restarted_and_no_request_fails() {
    let database = Cluster::shared().create_database();
    no_request_fails_while_replicas_restart(
        &[("database_url", &database), ("database.connections", "4")],
        QUICK_ANSWERS,
    );
}

fn no_request_fails_while_replicas_restart(shared: &[(&str, &str)], load: Load) {
    let runtime = FakeRuntime::start(Behaviour::EchoAfter(load.answers_after));
    let (mut one, first) = replica(&runtime, shared);
    let (mut other, second) = replica(&runtime, shared);
    let key = one.key();
    let (nginx, tally) = (Arc::new(Nginx::in_front_of(&[first, second])), Arc::new(Tally::default()));

    let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let callers = (0..load.callers).map(|index| {
        let (nginx, tally, key) = (nginx.clone(), tally.clone(), key.clone());
        // Spreads the callers' first requests.
        let begin = load.answers_after * index / load.callers;
        executor.spawn(async move {
            tokio::time::sleep(begin).await;
            tally.call(&nginx, &key).await
        })
    });
    let callers: Vec<_> = callers.collect();
    ADRIATICUM.wait_for("load", || (tally.completed() > 50).then_some(()));
    restart(&mut one);
    restart(&mut other);
    let enough = (tally.completed() + 50).max(300);
    ADRIATICUM.wait_for("load to the end", || (tally.completed() > enough).then_some(()));
    tally.done.store(true, Ordering::Relaxed);
    callers.into_iter().for_each(|caller| executor.block_on(caller).unwrap());

    let (mut ids, failures) = (tally.ids.lock().unwrap().clone(), tally.failures.lock().unwrap());
    let (failed, answered) = (failures.len(), ids.len());
    assert!(failures.is_empty(), "{failed} failed, {answered} were answered: {failures:#?}\n{}", nginx.errors());
    let mut recorded: Vec<_> = one.rows().iter().map(|row| row["request_id"].as_str().unwrap().to_owned()).collect();
    ids.sort_unstable();
    recorded.sort_unstable();
    assert_eq!(ids, recorded, "each exactly once, on any replica");
}

#[test]
fn nginx_forwards_host_and_address_and_refuses_with_the_apis_envelope() {
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let (mut service, address) = replica(&runtime, &[]);
    let key = service.key();
    let nginx = Nginx::in_front_of(&[address]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = client(&nginx);
        let send = |body: String| post(&client, &nginx, &key, body);
        let completed = send(chat_body("hello")).await.unwrap().completion();
        // The API refuses a large body; nginx refuses a very large one with the same error.
        let refused = send(" ".repeat(300_000)).await.unwrap().error();
        assert_eq!((refused.status, refused.code.as_str()), (413, "payload_too_large"));
        assert_eq!(service.wait_for_rows(2).len(), 2);
        let far_too_much = send(" ".repeat(3_000_000)).await.unwrap().error();
        assert_eq!((far_too_much.status, far_too_much.message), (413, refused.message));
        assert_ne!(far_too_much.request_id, completed.id);
        assert_eq!(service.rows().len(), 2, "{:?}", service.rows());

        // The console gets its host and the visitor's address.
        let console = format!("https://console.example.com:{}/sign-in", nginx.address().port());
        let page = client.get(&console).send().await.unwrap();
        assert!(page.headers().contains_key("strict-transport-security"));
        assert!(page.text().await.unwrap().contains("Sign in"));

        service.kill();
        let refused = send(chat_body("hello")).await.unwrap();
        assert_eq!(refused.error().code, "service_unavailable");
        assert_eq!(refused.header("retry-after"), Some("1"));
        let body: Value = refused.json();
        assert!(body["error"]["message"].as_str().unwrap().contains("No replica"), "{body}");
    });
}
