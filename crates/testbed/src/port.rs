//! Ports for programs that cannot be told to take any free one.

use std::net::TcpListener;

/// A port that is free now.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
