//! A TCP proxy in front of a database server. It can cut its connections, and freeze them: a frozen connection passes
//! nothing and is not closed, as when a network loses every packet.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

pub(crate) struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    links: Mutex<Links>,
    thawed: Condvar,
}

#[derive(Default)]
struct Links {
    frozen: bool,
    open: Vec<TcpStream>,
}

impl Proxy {
    /// Listens for as long as the tests run.
    pub(crate) fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Self { address: listener.local_addr().unwrap(), state: Arc::default() };
        let state = proxy.state.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // Without a server the client's connection is closed.
                let Ok(server) = TcpStream::connect(server) else { continue };
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to, state) = (from.try_clone().unwrap(), to.try_clone().unwrap(), state.clone());
                    state.links.lock().unwrap().open.push(from.try_clone().unwrap());
                    thread::spawn(move || state.pass(from, to));
                }
            }
        });
        proxy
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes all connections. New ones are accepted.
    pub(crate) fn cut(&self) {
        for link in self.state.links.lock().unwrap().open.drain(..) {
            let _ = link.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn freeze(&self, frozen: bool) {
        self.state.links.lock().unwrap().frozen = frozen;
        self.state.thawed.notify_all();
    }
}

impl State {
    fn pass(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = [0; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let links = self.links.lock().unwrap();
            drop(self.thawed.wait_while(links, |links| links.frozen).unwrap());
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }
}
