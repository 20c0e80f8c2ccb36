//! A relay between clients and a service, which records every exchange and its time. Unlike the ledger it also sees
//! requests without a valid key.

use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde_json::Value;
use testbed::{Connection, Response, Service, read_request};

use crate::ADRIATICUM;

/// Listens for as long as the tests run: a thread per connection, each ended by its client.
pub(crate) struct Relay {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Exchange>>>,
}

/// One request and its response.
#[derive(Debug, Clone)]
pub(crate) struct Exchange {
    pub(crate) at: Instant,
    pub(crate) request: Value,
    pub(crate) response: Arc<Response>,
}

impl Relay {
    pub(crate) fn in_front_of(service: &Service) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Self { address: listener.local_addr().unwrap(), seen: Arc::default() };
        let (behind, seen) = (service.address(), relay.seen.clone());
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let seen = seen.clone();
                std::thread::spawn(move || serve(&socket, behind, &seen));
            }
        });
        relay
    }

    /// The base URL for clients.
    pub(crate) fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// The exchanges whose last message starts with `beginning`, in order.
    pub(crate) fn exchanges(&self, beginning: &str) -> Vec<Exchange> {
        let is_meant = |seen: &&Exchange| last_message(&seen.request).is_some_and(|text| text.starts_with(beginning));
        self.seen.lock().unwrap().iter().filter(is_meant).cloned().collect()
    }
}

fn last_message(request: &Value) -> Option<&str> {
    request["messages"].as_array()?.last()?["content"].as_str()
}

fn serve(socket: &TcpStream, behind: SocketAddr, seen: &Mutex<Vec<Exchange>>) {
    socket.set_nodelay(true).unwrap();
    let mut reader = BufReader::new(socket);
    while let Some((head, body)) = read_request(&mut reader) {
        let at = Instant::now();
        let response =
            Arc::new(Connection::connect(behind).with_timeout(ADRIATICUM.timeout()).send(&head).send(&body).response());
        let request = serde_json::from_slice(&body).unwrap_or_else(|error| panic!("{error}: {head}"));
        seen.lock().unwrap().push(Exchange { at, request, response: response.clone() });
        let mut bytes = format!("HTTP/1.1 {} Relayed\r\n", response.status).into_bytes();
        for (name, value) in &response.headers {
            bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&response.body);
        if (&*socket).write_all(&bytes).is_err() {
            return;
        }
    }
}
