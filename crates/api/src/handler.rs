//! Handles one request. The lines are the steps of the diagram in ARCHITECTURE.md, and their order is the order in which
//! errors win. Every failure becomes the error envelope here, our own panics included.

use std::pin::pin;

use bytes::Bytes;
use http::Request;
use hyper::body::Incoming;
use store::Caller;
use transport::{Body, ClientConnection, Rejection, Response, Upload};

use crate::content_type::require_json;
use crate::error::ApiError;
use crate::record::RequestRecord;
use crate::worker::Worker;

pub(crate) async fn handle(worker: &Worker, connection: &ClientConnection, request: Request<Incoming>) -> Response {
    let (head, incoming) = request.into_parts();
    let mut record = RequestRecord::open(worker, Some(&head.headers));
    let mut upload = Upload::new(incoming, &head.headers);
    let result = worker
        .supervise(pin!(async {
            let (api, head) = (&worker.api, head);
            api.address.require_host(&head)?; // 404
            api.address.require_route(&head)?; // 404
            let is_fresh = upload.has_arrived();
            let caller = record.authenticate(&head.headers).await?; // 401, 503
            connection.identify();
            let caller = record.authorize(caller)?; // 403
            let body = upload.read(api.body_limits, &api.body_budget, caller.client()).await;
            let Body { bytes, permit: _permit } = body.map_err(ApiError::from_upload)?; // 413, 503, 400, 499
            require_json(&head.headers)?; // 400
            drop(head); // too large to keep during the completion
            complete(&mut record, bytes, is_fresh).await
        }))
        .await;
    record.close(result).await
}

/// Handles a request from the console's playground, for a caller who is signed in there.
pub async fn handle_playground(worker: &Worker, caller: Caller, body: Bytes) -> Response {
    let mut record = RequestRecord::open(worker, None);
    let result = worker
        .supervise(pin!(async {
            record.authorize(caller)?;
            complete(&mut record, body, false).await
        }))
        .await;
    record.close(result).await
}

/// The steps of every completion, from the network or the playground. `is_fresh` if the whole request had arrived when its
/// caller was looked up.
async fn complete(record: &mut RequestRecord<'_>, body: Bytes, is_fresh: bool) -> Result<Response, ApiError> {
    let chat = wire::parse_request(&body).map_err(|error| ApiError::invalid(error.to_string()))?; // 400
    drop(body);
    let admitted = record.admit(&chat, is_fresh).await?; // 503, 401, 403
    let facts = record.ground(&admitted, &chat).await?; // 503 search_unavailable, 401, 403
    let completion = record.complete(&admitted, &chat, &facts).await?; // 502, 400, 503
    record.persist(&completion).await // 503, or the receipt that a 200 is made of
}

/// Responds to a request for the API that was sent to a host which does not serve it.
pub fn reject_foreign_host(worker: &Worker, request: Request<Incoming>) -> Response {
    let (head, incoming) = request.into_parts();
    drop(Upload::new(incoming, &head.headers)); // drained, so that the client sees the response
    RequestRecord::open(worker, Some(&head.headers)).fail(worker.api.address.wrong_host())
}

/// Responds to a connection or a head that never became a request.
pub fn reject(worker: &Worker, why: Rejection) -> Response {
    RequestRecord::open(worker, None).fail(ApiError::from_rejection(why))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use chat::{Completion, FinishReason, TokenUsage};
    use http_body_util::BodyExt;
    use store::{Database, LedgerWriter, NewKey, RequestQuery, Store, Viewer};
    use tempfile::TempDir;

    use super::*;
    use crate::inference::GroundedCompletion;
    use crate::{Api, ApiAddress, ApiSettings};

    /// An API without runtimes, over a SQLite file.
    struct Setup {
        store: Arc<Store>,
        worker: Worker,
        writer: LedgerWriter,
        _folder: TempDir,
    }

    impl Setup {
        async fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let store = Arc::new(Store::open(&Database::Sqlite(folder.path().join("test.db"))).await.unwrap());
            let (ledger, writer) = store.start_ledger(Duration::from_secs(86_400)).unwrap();
            let settings = ApiSettings {
                address: ApiAddress::from_base_url("http://localhost/v1").unwrap(),
                max_requests: 1,
                max_body_memory: 1 << 20,
                body_idle_timeout: Duration::from_secs(1),
                request_log: None,
                tracer: None,
            };
            let api = Api::new(settings, store.clone(), ledger, None, None);
            Self { store, worker: Worker::new(api), writer, _folder: folder }
        }

        async fn caller(&self) -> Caller {
            let new =
                NewKey { name: chat::KeyName::parse("k").unwrap(), completions: true, expires_at: None, project: None };
            let key = self.store.keys().create(&Viewer::operator(), new, u64::MAX).await.unwrap();
            self.store.keys().authenticate(&key).await.unwrap().unwrap()
        }

        /// Stops the ledger; returns each row's id, status and code.
        async fn rows(self) -> Vec<(chat::RequestId, u16, Option<String>)> {
            self.writer.stop();
            let query = RequestQuery { limit: 10, ..RequestQuery::default() };
            let rows = self.store.usage().requests(&Viewer::operator(), &query).await.unwrap();
            rows.into_iter().map(|row| (row.request_id, row.status, row.code)).collect()
        }
    }

    #[tokio::test]
    async fn a_panic_becomes_a_503_and_a_row() {
        let setup = Setup::new().await;
        let caller = setup.caller().await;
        let mut record = RequestRecord::open(&setup.worker, None);
        let id = record.id;
        let result = setup
            .worker
            .supervise(pin!(async {
                record.authorize(caller)?;
                panic!("a secret of ours")
            }))
            .await;
        let response = record.close(result).await;
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["x-request-id"], id.to_string());
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body = String::from_utf8(body.to_vec()).unwrap();
        assert!(body.contains("service_unavailable") && !body.contains("secret"), "{body}");
        assert_eq!(setup.rows().await, [(id, 503, Some("service_unavailable".into()))]);
    }

    #[tokio::test]
    async fn an_abort_after_the_completion_was_recorded_is_not_to_be_retried() {
        let setup = Setup::new().await;
        let caller = setup.caller().await;
        let mut record = RequestRecord::open(&setup.worker, None);
        let id = record.id;
        assert!(record.authorize(caller).is_ok());
        let completion =
            Completion { text: "Hello".into(), finish_reason: FinishReason::Stop, usage: TokenUsage::default() };
        let completion = GroundedCompletion { completion, sources: Vec::new() };
        assert!(record.persist(&completion).await.is_ok());
        let response = record.close(Err(ApiError::stopping())).await;
        assert_eq!(
            (response.status().as_u16(), &response.headers()["x-should-retry"]),
            (503, &"false".parse().unwrap())
        );
        assert_eq!(setup.rows().await, [(id, 200, None)]);

        let setup = Setup::new().await;
        let response = RequestRecord::open(&setup.worker, None).close(Err(ApiError::stopping())).await;
        assert_eq!(response.headers()["x-should-retry"], "true", "nothing was run");
    }
}
