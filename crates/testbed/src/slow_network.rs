//! A slow network in front of a server: responses arrive late, so that a test can act before they do.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Relays connections for as long as the tests run: two threads for each.
pub struct SlowNetwork {
    address: SocketAddr,
    delay_micros: Arc<AtomicU64>,
}

impl SlowNetwork {
    /// Relays to that server, at first without a delay.
    pub fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let network = Self { address: listener.local_addr().unwrap(), delay_micros: Arc::default() };
        let delay_micros = network.delay_micros.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(server) else { continue };
                [&client, &server].iter().for_each(|socket| socket.set_nodelay(true).unwrap());
                let (requests, responses) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let delay_micros = delay_micros.clone();
                thread::spawn(move || relay(requests, server, || {}));
                thread::spawn(move || {
                    relay(responses, client, || {
                        thread::sleep(Duration::from_micros(delay_micros.load(Ordering::Relaxed)));
                    });
                });
            }
        });
        network
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Delays all bytes that the server sends from now on.
    pub fn set_delay(&self, delay: Duration) {
        self.delay_micros.store(delay.as_micros() as u64, Ordering::Relaxed);
    }
}

fn relay(mut from: TcpStream, mut to: TcpStream, before_each: impl Fn()) {
    let mut bytes = [0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        before_each();
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}
