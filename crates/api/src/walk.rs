//! One request's walk, in the order in which errors win:
//!
//! host, route, key, permission, size, parse; then: is there a runtime, a healthy ledger, room; then ground, complete,
//! record, answer. Every failure becomes the error envelope here, our own panics included.

use std::panic::AssertUnwindSafe;

use admission::Permit;
use bytes::Bytes;
use chat::ChatRequest;
use futures_util::FutureExt;
use http::request::Parts;
use http::{HeaderValue, Request, Version, header};
use hyper::body::Incoming;
use runtimes::Availability;
use store::Caller;
use transport::{Rejection, Response, Upload};

use crate::api::Worker;
use crate::authentication::authenticate;
use crate::content_type::require_json;
use crate::error::{self, ApiError};
use crate::meter::{Cited, Meter, MeteredPoolClient};
use crate::report::Report;

/// Answers a request, whatever it is.
pub(crate) async fn handle(worker: &Worker, request: Request<Incoming>) -> Response {
    let (head, incoming) = request.into_parts();
    let mut report = Report::open(worker, Some(&head.headers));
    let upload = Upload::new(incoming, &head.headers);
    let last = is_last_of_its_connection(&head);

    let walked = to_its_end(worker, walk_on(&mut report, head, upload)).await;
    let mut answer = report.close(walked);
    if last {
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

/// Answers a request for the API that was sent to a host which does not serve it.
pub fn reject_foreign_host(worker: &Worker, request: Request<Incoming>) -> Response {
    let (head, incoming) = request.into_parts();
    drop(Upload::new(incoming, &head.headers)); // what is still being sent is drained
    Report::open(worker, Some(&head.headers)).close(Err(worker.api.address.wrong_host()))
}

/// Answers what never became a request.
pub fn reject(worker: &Worker, why: Rejection) -> Response {
    Report::open(worker, None).close(Err(ApiError::rejected(why)))
}

/// What the walk comes to; a fault of our own if there is a panic on the way; a refusal if the service stops before.
async fn to_its_end(
    worker: &Worker,
    walked: impl Future<Output = Result<Response, ApiError>>,
) -> Result<Response, ApiError> {
    let walked = AssertUnwindSafe(walked).catch_unwind();
    tokio::select! {
        biased;
        walked = walked => walked.unwrap_or_else(|panic| Err(ApiError::our_fault(panic_message(&*panic)))),
        () = worker.cut_off() => Err(ApiError::stopping()),
    }
}

/// Answers a request that a signed-in person makes at the console, as the API would, from the size of the body on.
pub async fn handle_playground(worker: &Worker, caller: &Caller, body: Bytes) -> Response {
    let mut report = Report::open(worker, None);
    let walked = to_its_end(worker, walk_with(&mut report, caller, async { Ok(body) })).await;
    report.close(walked)
}

async fn walk_on(report: &mut Report<'_>, head: Parts, upload: Upload) -> Result<Response, ApiError> {
    let api = &report.worker.api;
    api.address.require_host(&head)?;
    api.address.require_route(&head)?;
    let phase = report.trail.phase("authenticate");
    let caller = authenticate(&api.store, &head.headers).await;
    phase.end(caller.is_ok());
    let body = async {
        let body = upload.read(api.body_limits).await.map_err(ApiError::from_upload)?;
        require_json(&head.headers)?;
        Ok(body)
    };
    walk_with(report, &caller?, body).await
}

/// The walk of a caller who is known: from here on, a meter runs.
async fn walk_with(
    report: &mut Report<'_>,
    caller: &Caller,
    body: impl Future<Output = Result<Bytes, ApiError>>,
) -> Result<Response, ApiError> {
    let worker = report.worker;
    let mut meter = Meter::open(report, caller);
    match complete(worker, &mut meter, caller, body).await {
        Ok(cited) => {
            let receipt = meter.succeed(&cited.completion).await?;
            Ok(error::completed(&receipt, &cited))
        }
        Err(refusal) => {
            meter.fail(&refusal).await;
            Err(refusal)
        }
    }
}

async fn complete(
    worker: &Worker,
    meter: &mut Meter<'_, '_>,
    caller: &Caller,
    body: impl Future<Output = Result<Bytes, ApiError>>,
) -> Result<Cited, ApiError> {
    if !caller.may_complete() {
        return Err(ApiError::insufficient_permission());
    }
    let body = body.await?;
    let request: ChatRequest = wire::parse_request(&body).map_err(|invalid| ApiError::invalid(invalid.to_string()))?;
    let (pool_client, _permit) = admit(worker, caller)?;
    let facts = meter.find_facts(&request).await?;
    meter.complete(pool_client, &request, &facts).await
}

/// Is there a runtime, a ledger that works, and room? Asked before any work is done.
fn admit<'a>(worker: &'a Worker, caller: &Caller) -> Result<(&'a MeteredPoolClient, Permit<chat::KeyId>), ApiError> {
    let pool_client = worker.pool_client.as_ref().ok_or_else(ApiError::unconfigured)?;
    match pool_client.availability() {
        Availability::Available => {}
        Availability::Starting => return Err(ApiError::starting()),
        Availability::Unconfigured => return Err(ApiError::unconfigured()),
    }
    if !worker.api.ledger.is_healthy() {
        return Err(ApiError::unavailable("Usage cannot be recorded now, so no completions are run."));
    }
    let permit = worker.api.room.enter(caller.key()).ok_or_else(ApiError::no_room)?;
    Ok((pool_client, permit))
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
            request_log: None,
            tracer: None,
        };
        let api = Api::new(settings, store.clone(), ledger, None, None);
        let new = NewKey { name: "k".into(), completions: true, expires_at: None };
        let key = store.create_key(&Viewer::operator(), new).await.unwrap();
        let caller = store.authenticate(&key).await.unwrap().unwrap();

        let worker = Worker::new(api.clone());
        let mut report = Report::open(&worker, None);
        let id = report.arrival.id;
        let walked = to_its_end(&worker, async {
            let _meter = Meter::open(&mut report, &caller);
            panic!("a secret of ours")
        })
        .await;
        let answer = report.close(walked);
        assert_eq!(answer.status(), 503);
        assert_eq!(answer.headers()["x-request-id"], id.to_string());
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let body = String::from_utf8(body.to_vec()).unwrap();
        assert!(body.contains("service_unavailable") && !body.contains("secret"), "{body}");

        writer.stop();
        let query = RequestQuery { limit: 10, ..RequestQuery::default() };
        let rows = store.requests(&Viewer::operator(), &query).await.unwrap();
        let rows: Vec<_> = rows.iter().map(|row| (row.request_id, row.status, row.code.as_deref())).collect();
        assert_eq!(rows, [(id, 503, Some("service_unavailable"))]);
    }
}
