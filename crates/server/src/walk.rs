//! One request's walk, in the order in which errors win:
//!
//! host, route, key, permission, size, parse; then: is there a runtime, a healthy ledger, room; then ground, complete,
//! record, answer. Every failure becomes the error envelope here, our own panics included.

use std::panic::AssertUnwindSafe;

use bytes::Bytes;
use chat::ChatRequest;
use futures_util::FutureExt;
use http::request::Parts;
use http::{HeaderValue, Request, Version, header};
use hyper::body::Incoming;
use runtimes::Availability;
use store::Caller;

use crate::admission::Permit;
use crate::answer::{self, Answer, Refusal};
use crate::api::Desk;
use crate::authentication::authenticate;
use crate::body::{self, Upload};
use crate::meter::{Arrival, Cited, Meter, MeteredLane};

/// Answers a request, whatever it is.
pub(crate) async fn walk(desk: &Desk, request: Request<Incoming>) -> Answer {
    let arrival = Arrival::now();
    let (head, incoming) = request.into_parts();
    let upload = Upload::new(incoming, &head.headers);
    let last = is_last_of_its_connection(&head);

    let mut answer = or_our_fault(arrival, async {
        let walked = walk_on(desk, arrival, head, upload).await;
        walked.unwrap_or_else(|refusal| refusal.into_answer(arrival.id))
    })
    .await;
    if last {
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

/// The answer, or that of a fault of our own if there is a panic on the way to it.
async fn or_our_fault(arrival: Arrival, answer: impl Future<Output = Answer>) -> Answer {
    let answered = AssertUnwindSafe(answer).catch_unwind().await;
    answered.unwrap_or_else(|panic| Refusal::our_fault(panic_message(&*panic)).into_answer(arrival.id))
}

/// Answers a request that a signed-in person makes at the console, as the API would, from the size of the body on.
pub async fn play(desk: &Desk, caller: &Caller, body: Bytes) -> Answer {
    let arrival = Arrival::now();
    or_our_fault(arrival, async {
        let walked = walk_with(desk, arrival, caller, async { Ok(body) }).await;
        walked.unwrap_or_else(|refusal| refusal.into_answer(arrival.id))
    })
    .await
}

async fn walk_on(desk: &Desk, arrival: Arrival, head: Parts, upload: Upload) -> Result<Answer, Refusal> {
    let api = &desk.api;
    api.address.accept_host(&head)?;
    api.address.accept_route(&head)?;
    let caller = authenticate(&api.store, &head.headers).await?;
    let body = async {
        let body = upload.read(api.body_timeouts).await?;
        body::accept_type(&head.headers)?;
        Ok(body)
    };
    walk_with(desk, arrival, &caller, body).await
}

/// The walk of a caller who is known: from here on, a meter runs.
async fn walk_with(
    desk: &Desk,
    arrival: Arrival,
    caller: &Caller,
    body: impl Future<Output = Result<Bytes, Refusal>>,
) -> Result<Answer, Refusal> {
    let mut meter = Meter::open(&desk.api, arrival, caller);
    match complete(desk, &mut meter, caller, body).await {
        Ok(cited) => {
            let receipt = meter.succeed(&cited.completion).await?;
            Ok(answer::completed(&receipt, &cited))
        }
        Err(refusal) => {
            meter.fail(&refusal).await;
            Err(refusal)
        }
    }
}

async fn complete(
    desk: &Desk,
    meter: &mut Meter,
    caller: &Caller,
    body: impl Future<Output = Result<Bytes, Refusal>>,
) -> Result<Cited, Refusal> {
    if !caller.may_complete() {
        return Err(Refusal::insufficient_permission());
    }
    let body = body.await?;
    let request: ChatRequest = wire::parse_request(&body).map_err(|invalid| Refusal::invalid(invalid.to_string()))?;
    let (lane, _permit) = admit(desk, caller)?;
    let facts = meter.find_facts(&request).await?;
    meter.complete(lane, &request, &facts).await
}

/// Is there a runtime, a ledger that works, and room? Asked before any work is done.
fn admit<'a>(desk: &'a Desk, caller: &Caller) -> Result<(&'a MeteredLane, Permit<chat::KeyId>), Refusal> {
    let lane = desk.lane.as_ref().ok_or_else(Refusal::unconfigured)?;
    match lane.availability() {
        Availability::Available => {}
        Availability::Starting => return Err(Refusal::starting()),
        Availability::Unconfigured => return Err(Refusal::unconfigured()),
    }
    if !desk.api.ledger.is_healthy() {
        return Err(Refusal::unavailable("Usage cannot be recorded now, so no completions are run."));
    }
    let permit = desk.api.room.enter(caller.key()).ok_or_else(Refusal::no_room)?;
    Ok((lane, permit))
}

/// Whether nothing more is read from this connection. A chunked request may have carried a `Content-Length` as well,
/// which another server on the way could have believed: whatever follows it must not be taken for a request. And a
/// client that still waits for `100 Continue` may or may not send its body.
fn is_last_of_its_connection(head: &Parts) -> bool {
    head.version <= Version::HTTP_11
        && (head.headers.contains_key(header::TRANSFER_ENCODING) || head.headers.contains_key(header::EXPECT))
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", text.unwrap_or("no message"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use http_body_util::BodyExt;
    use store::{Database, NewKey, RequestQuery, Store, Viewer};

    use super::*;
    use crate::{Api, ApiAddress, ApiSettings};

    #[tokio::test]
    async fn a_panic_of_our_own_is_answered_logged_and_recorded() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(&Database::Sqlite(folder.path().join("test.db"))).await.unwrap());
        let (ledger, writer) = store.start_ledger(Duration::from_secs(86_400)).unwrap();
        let settings = ApiSettings {
            address: ApiAddress::from_base_url("http://localhost/v1").unwrap(),
            max_requests: 1,
            body_idle: Duration::from_secs(1),
        };
        let api = Api::new(settings, store.clone(), ledger, None, None);
        let new = NewKey { name: "k".into(), completions: true, expires_at: None };
        let key = store.create_key(&Viewer::operator(), new).await.unwrap();
        let caller = store.authenticate(&key).await.unwrap().unwrap();

        let arrival = Arrival::now();
        let answer = or_our_fault(arrival, async {
            let _meter = Meter::open(&api, arrival, &caller);
            panic!("a secret of ours")
        })
        .await;
        assert_eq!(answer.status(), 503);
        assert_eq!(answer.headers()["x-request-id"], arrival.id.to_string());
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let body = String::from_utf8(body.to_vec()).unwrap();
        assert!(body.contains("service_unavailable") && !body.contains("secret"), "{body}");

        writer.stop();
        let query = RequestQuery { limit: 10, ..RequestQuery::default() };
        let rows = store.requests(&Viewer::operator(), &query).await.unwrap();
        let rows: Vec<_> = rows.iter().map(|row| (row.request_id, row.status, row.code.as_deref())).collect();
        assert_eq!(rows, [(arrival.id, 503, Some("service_unavailable"))]);
    }
}
