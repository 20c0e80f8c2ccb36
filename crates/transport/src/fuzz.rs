//! Fuzzing of headers that proxies and clients write: an address counts only if a trusted proxy named it.

use std::net::IpAddr;
use std::str::FromStr;

use fuzzer::{Target, magnitude};
use http::{HeaderMap, HeaderValue};

use crate::{BaseUrl, TrustedProxies};

/// The leftmost address that trusted proxies vouch for: a second, independent implementation.
fn expected_client(peer: IpAddr, lists: &[&str], is_trusted: impl Fn(IpAddr) -> bool) -> IpAddr {
    let whole = lists.join(",");
    let mut client = peer;
    let mut rest: Option<&str> = (!lists.is_empty()).then_some(whole.as_str());
    while let Some(list) = rest.filter(|_| is_trusted(client)) {
        let (before, last) = list.rsplit_once(',').map_or((None, list), |(before, last)| (Some(before), last));
        let Some(address) = parse_address(last.trim()) else { break };
        (client, rest) = (address, before);
    }
    client
}

fn parse_address(text: &str) -> Option<IpAddr> {
    let address: IpAddr = match text.strip_prefix('[') {
        Some(rest) => {
            let (inside, port) = rest.split_once(']')?;
            if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_number::<u16>) {
                return None;
            }
            // With a port, a numeric zone may follow the address.
            let address = match inside.split_once('%') {
                Some((address, zone)) if !port.is_empty() && is_number::<u32>(zone) => address,
                _ => inside,
            };
            IpAddr::V6(address.parse().ok()?)
        }
        None => match text.parse() {
            Ok(address) => address,
            Err(_) => {
                let (address, _) = text.rsplit_once(':').filter(|(_, port)| is_number::<u16>(port))?;
                IpAddr::V4(address.parse().ok()?)
            }
        },
    };
    Some(address.to_canonical())
}

/// Digits only: Rust's parser also accepts a leading plus.
fn is_number<T: FromStr>(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<T>().is_ok()
}

#[test]
fn forwarded_for() {
    let corpus = [
        "203.0.113.9",
        "1.1.1.1, 203.0.113.9 , 10.2.2.2",
        "203.0.113.9:4711\n10.9.9.9",
        "[2001:db8::1]:4711,[fd00::1]",
        "::ffff:203.0.113.9, [::ffff:10.2.2.2]:80",
        "unknown, _hidden, \"[::1]\"",
        "203.0.113.9:+80, [::1]:+80, [fe80::1%+1]:80",
    ];
    let words = [
        "10.0.0.1", "10.9.9.9,", "fd00::1", "[", "]", ":", ",", "\n", "::ffff:", "%eth0", "0", "255", "[::1]:",
        "65536", "+",
    ];
    let trusted: TrustedProxies = "10.0.0.0/8,fd00::/8".parse().expect("networks");
    let is_trusted = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets()[0] == 10,
        IpAddr::V6(address) => address.octets()[0] == 0xfd,
    };
    Target::new("X-Forwarded-For").corpus(corpus).dictionary(words).linear().run_text(|text| {
        let lists: Vec<&str> = text.split('\n').filter(|list| HeaderValue::from_str(list).is_ok()).take(100).collect();
        let mut headers = HeaderMap::new();
        for list in &lists {
            headers.append("x-forwarded-for", HeaderValue::from_str(list).expect("checked"));
        }
        // A value that is not ASCII is invalid as a whole.
        let seen: Vec<&str> = lists.iter().map(|list| if headers_text(list) { *list } else { "?" }).collect();
        let mut shape = Vec::new();
        for peer in ["10.1.1.1", "198.51.100.7"] {
            let peer: IpAddr = peer.parse().expect("an address");
            let client = trusted.client(peer, &headers);
            assert_eq!(client, expected_client(peer, &seen, is_trusted), "{seen:?}");
            shape.push((client == peer, client.is_ipv6(), is_trusted(client)));
        }
        (shape, magnitude(lists.len()))
    });
}

fn headers_text(list: &str) -> bool {
    HeaderValue::from_str(list).is_ok_and(|value| value.to_str().is_ok())
}

#[test]
fn networks() {
    let corpus = ["10.0.0.0/8, fd00::/8 ,192.0.2.1", "::ffff:10.0.0.0/104", "0.0.0.0/0", "127.0.0.1,,"];
    let words = ["/", "8", "33", "129", ",", "::", "::ffff:", ".", "-1"];
    Target::new("trusted networks").corpus(corpus).dictionary(words).max_bytes(500).run_text(|text| {
        let networks = text.parse::<TrustedProxies>();
        let count = text.split(',').filter(|part| !part.trim().is_empty()).count();
        if networks.is_ok() && count == 0 {
            assert!(!networks.as_ref().is_ok_and(|none| none.contain(IpAddr::from([10, 0, 0, 1]))));
        }
        (networks.is_ok(), count.min(9))
    });
}

#[test]
fn base_urls() {
    let corpus =
        ["http://localhost:8080/v1", "https://api.example.org", "http://[::1]:8080/a/b/", "https://BÜCHER.example/"];
    let words = ["http://", "https://", "@", ":", "/", "?", "#", "[::1]", "..", "%2e", "\t", "\\", "user:pw@"];
    Target::new("base URLs").corpus(corpus).dictionary(words).max_bytes(300).run_text(|text| {
        let Ok(url) = BaseUrl::parse(text) else { return (false, 0) };
        let shown = url.to_string();
        let again = BaseUrl::parse(&shown).expect("what we show ourselves");
        assert_eq!((again.host, &again.origin, &again.path), (url.host, &url.origin, &url.path), "{shown}");
        assert!(!url.path.ends_with('/') && url.origin.starts_with("http"), "{shown}");
        (true, url.path.matches('/').count().min(9))
    });
}
