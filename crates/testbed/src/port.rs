//! Ports for programs that cannot choose a free one themselves.

use std::net::TcpListener;

/// A port that is free now.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
