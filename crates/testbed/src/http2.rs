//! An HTTP/2 client with prior knowledge, which is hyper's.

use std::net::SocketAddr;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::Response;

/// A request whose target is absolute: its authority becomes `:authority`.
pub type Http2Request = hyper::Request<Full<Bytes>>;

/// A connection, driven in the background by a Tokio runtime of its own.
pub struct Http2Client {
    runtime: tokio::runtime::Runtime,
    sender: SendRequest<Full<Bytes>>,
}

impl Http2Client {
    pub fn connect(address: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let sender = runtime.block_on(async {
            let socket = tokio::net::TcpStream::connect(address).await.unwrap();
            let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(socket)).await.unwrap();
            tokio::spawn(connection);
            sender
        });
        Self { runtime, sender }
    }

    /// A valid request with that key and body.
    pub fn request(key: &str, body: impl Into<Bytes>) -> Http2Request {
        hyper::Request::post("http://localhost/v1/chat/completions")
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {key}"))
            .body(Full::new(body.into()))
            .unwrap()
    }

    /// The responses to requests that are all sent at once, in the requests' order.
    pub fn send(&self, requests: Vec<Http2Request>) -> Vec<Response> {
        let asking: Vec<_> = requests
            .into_iter()
            .map(|request| {
                let response = self.sender.clone().send_request(request);
                self.runtime.spawn(async move {
                    let (head, body) = response.await.unwrap().into_parts();
                    let headers =
                        head.headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()));
                    let headers = headers.collect();
                    Response {
                        status: head.status.as_u16(),
                        headers,
                        body: body.collect().await.unwrap().to_bytes().into(),
                    }
                })
            })
            .collect();
        asking.into_iter().map(|asking| self.runtime.block_on(asking).unwrap()).collect()
    }

    /// Sends a request and resets its stream as soon as `until` returns.
    pub fn send_and_give_up(&self, request: Http2Request, until: impl FnOnce()) {
        let asking = self.runtime.spawn(self.sender.clone().send_request(request));
        until();
        asking.abort();
    }
}
