//! Handles one request. The lines are the steps of the diagram in ARCHITECTURE.md, and their order is the order in which
//! errors win. Every failure becomes the error envelope here, our own panics included.

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Request, Version, header};
use hyper::body::Incoming;
use store::Caller;
use transport::{Rejection, Response, Upload};

use crate::admit::admit;
use crate::authentication::Authorized;
use crate::content_type::require_json;
use crate::error::ApiError;
use crate::record::RequestRecord;
use crate::worker::Worker;

pub(crate) async fn handle(worker: &Worker, request: Request<Incoming>) -> Response {
    let (head, incoming) = request.into_parts();
    let closes_connection = closes_connection(&head);
    let mut record = RequestRecord::open(worker, Some(&head.headers));
    let upload = Upload::new(incoming, &head.headers);
    let steps = async {
        let api = &worker.api;
        api.address.require_host(&head)?; // 404
        api.address.require_route(&head)?; // 404
        let caller = record.authenticate(&head.headers).await?; // 401, 503
        let caller = record.authorize(caller)?; // 403
        let body = upload.read(api.body_limits).await.map_err(ApiError::from_upload)?; // 413, 400, 499
        require_json(&head.headers)?; // 400
        complete(&mut record, &caller, &body).await
    };
    let result = worker.supervise(steps).await;
    let mut response = record.close(result).await;
    if closes_connection {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Handles a request from the console's playground, for a caller who is signed in there.
pub async fn handle_playground(worker: &Worker, caller: Caller, body: Bytes) -> Response {
    let mut record = RequestRecord::open(worker, None);
    let steps = async {
        let caller = record.authorize(caller)?;
        complete(&mut record, &caller, &body).await
    };
    let result = worker.supervise(steps).await;
    record.close(result).await
}

/// The steps that every completion takes, wherever the request came from.
async fn complete(record: &mut RequestRecord<'_>, caller: &Authorized, body: &[u8]) -> Result<Response, ApiError> {
    let chat = wire::parse_request(body).map_err(|error| ApiError::invalid(error.to_string()))?; // 400
    let admitted = admit(record.worker, caller)?; // 503
    let facts = record.ground(&chat).await?; // 503 search_unavailable
    let completion = record.complete(&admitted, &chat, &facts).await?; // 502, 400, 503
    record.persist(&completion).await // 503, or the receipt that a 200 is made of
}

/// Responds to a request for the API that was sent to a host which does not serve it.
pub fn reject_foreign_host(worker: &Worker, request: Request<Incoming>) -> Response {
    let (head, incoming) = request.into_parts();
    drop(Upload::new(incoming, &head.headers)); // drained, so that the client sees the response
    RequestRecord::open(worker, Some(&head.headers)).fail(worker.api.address.wrong_host())
}

/// Responds to what never became a request.
pub fn reject(worker: &Worker, why: Rejection) -> Response {
    RequestRecord::open(worker, None).fail(ApiError::from_rejection(why))
}

/// Whether the connection must be closed after the response. A chunked request may have carried a `Content-Length` as
/// well, which another server on the way could have believed: what follows must not be taken for a request. And a
/// client that still waits for `100 Continue` may or may not send its body.
fn closes_connection(head: &Parts) -> bool {
    head.version <= Version::HTTP_11
        && (head.headers.contains_key(header::TRANSFER_ENCODING) || head.headers.contains_key(header::EXPECT))
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
    async fn a_panic_becomes_a_503_and_a_row() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(&Database::Sqlite(folder.path().join("test.db"))).await.unwrap());
        let (ledger, writer) = store.start_ledger(Duration::from_secs(86_400)).unwrap();
        let settings = ApiSettings {
            address: ApiAddress::from_base_url("http://localhost/v1").unwrap(),
            max_requests: 1,
            body_idle_timeout: Duration::from_secs(1),
            request_log: None,
            tracer: None,
        };
        let api = Api::new(settings, store.clone(), ledger, None, None);
        let new = NewKey { name: chat::KeyName::parse("k").unwrap(), completions: true, expires_at: None };
        let key = store.create_key(&Viewer::operator(), new).await.unwrap();
        let caller = store.authenticate(&key).await.unwrap().unwrap();

        let worker = Worker::new(api.clone());
        let mut record = RequestRecord::open(&worker, None);
        let id = record.id;
        let steps = async {
            record.authorize(caller)?;
            panic!("a secret of ours")
        };
        let result = worker.supervise(steps).await;
        let response = record.close(result).await;
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["x-request-id"], id.to_string());
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body = String::from_utf8(body.to_vec()).unwrap();
        assert!(body.contains("service_unavailable") && !body.contains("secret"), "{body}");

        writer.stop();
        let query = RequestQuery { limit: 10, ..RequestQuery::default() };
        let rows = store.requests(&Viewer::operator(), &query).await.unwrap();
        let rows: Vec<_> = rows.iter().map(|row| (row.request_id, row.status, row.code.as_deref())).collect();
        assert_eq!(rows, [(id, 503, Some("service_unavailable"))]);
    }
}
