//! The client's address: what a trusted proxy says in `X-Forwarded-For`, otherwise the peer's.
//!
//! The header grows at its right end, so it is read from there: as long as an address is a trusted proxy, the entry
//! before it counts. Any client could have written the entries further left; they are never used.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use http::HeaderMap;
use ipnet::{IpNet, Ipv4Net};

const FORWARDED_FOR: &str = "x-forwarded-for";

#[derive(Debug, Clone, Default)]
pub struct TrustedProxies(Arc<[IpNet]>);

impl TrustedProxies {
    pub(crate) fn contain(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
    }

    pub(crate) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = peer;
        // Several headers form one list; a value that is not text is an invalid entry.
        let lists = headers.get_all(FORWARDED_FOR).iter().map(|value| value.to_str().unwrap_or("?"));
        let named: Vec<_> = lists.flat_map(|list| list.split(',')).collect();
        for name in named.into_iter().rev() {
            if !self.contain(client) {
                break;
            }
            match address(name) {
                Some(before) => client = before,
                None => break, // the last known one
            }
        }
        client
    }
}

/// Addresses and networks, comma-separated.
impl FromStr for TrustedProxies {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let each = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        each.map(|part| network(part).ok_or_else(|| NetworkError(part.to_owned()))).collect::<Result<_, _>>().map(Self)
    }
}

/// The text is neither an address nor a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither an IP address nor a network such as 10.0.0.0/8")]
pub struct NetworkError(String);

/// An address as proxies write it: alone, with a port, in brackets. IPv4 within IPv6 is IPv4.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let address = match bare {
        Some(bare) => bare.parse().ok().filter(IpAddr::is_ipv6),
        None => text.parse().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|socket| socket.ip())),
    };
    address.map(|address| address.to_canonical())
}

fn network(text: &str) -> Option<IpNet> {
    let network = text.parse::<IpAddr>().map(IpNet::from).or_else(|_| text.parse::<IpNet>()).ok()?;
    // Peers are compared as plain IPv4, so a network of IPv4 within IPv6 is converted, too.
    match (network.addr().to_canonical(), network.prefix_len().checked_sub(96)) {
        (IpAddr::V4(address), Some(length)) if network.addr().is_ipv6() => {
            Ipv4Net::new(address, length).ok().map(IpNet::V4)
        }
        _ => Some(network),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn client(trusted: &str, peer: &str, headers: &[&str]) -> String {
        let mut map = HeaderMap::new();
        for header in headers {
            map.append(FORWARDED_FOR, HeaderValue::from_bytes(header.as_bytes()).unwrap());
        }
        let trusted: TrustedProxies = trusted.parse().unwrap();
        trusted.client(peer.parse::<IpAddr>().unwrap().to_canonical(), &map).to_string()
    }

    #[test]
    fn the_first_untrusted_address_from_the_right_is_the_client() {
        let ours = "10.0.0.0/8, fd00::/8 ,192.0.2.1";
        let cases: &[(&str, &[&str], &str)] = &[
            ("198.51.100.7", &["203.0.113.9"], "198.51.100.7"),
            ("10.1.1.1", &[], "10.1.1.1"),
            ("10.1.1.1", &["203.0.113.9"], "203.0.113.9"),
            ("10.1.1.1", &["1.1.1.1, 203.0.113.9"], "203.0.113.9"),
            ("10.1.1.1", &["1.1.1.1", "203.0.113.9 , 10.2.2.2"], "203.0.113.9"),
            ("10.1.1.1", &["10.3.3.3, 10.2.2.2"], "10.3.3.3"),
            ("10.1.1.1", &["203.0.113.9, nonsense, 10.2.2.2"], "10.2.2.2"),
            ("10.1.1.1", &["nonsense"], "10.1.1.1"),
            ("10.1.1.1", &[""], "10.1.1.1"),
            ("10.1.1.1", &["203.0.113.9,"], "10.1.1.1"),
            ("10.1.1.1", &["203.0.113.9", "\u{e9}"], "10.1.1.1"),
            ("10.1.1.1", &["203.0.113.9:4711"], "203.0.113.9"),
            ("10.1.1.1", &["2001:db8::1"], "2001:db8::1"),
            ("10.1.1.1", &["[2001:db8::1]"], "2001:db8::1"),
            ("10.1.1.1", &["[2001:db8::1]:4711"], "2001:db8::1"),
            ("10.1.1.1", &["::ffff:203.0.113.9"], "203.0.113.9"),
            ("10.1.1.1", &["203.0.113.9, [::ffff:10.2.2.2]:80"], "203.0.113.9"),
            ("10.1.1.1", &["[203.0.113.9]"], "10.1.1.1"),
            ("10.1.1.1", &["203.0.113.9.example"], "10.1.1.1"),
            ("::ffff:10.1.1.1", &["203.0.113.9"], "203.0.113.9"),
            ("fd00::1", &["203.0.113.9"], "203.0.113.9"),
            ("192.0.2.1", &["203.0.113.9"], "203.0.113.9"),
            ("192.0.2.2", &["203.0.113.9"], "192.0.2.2"),
        ];
        for (peer, headers, expected) in cases {
            assert_eq!(client(ours, peer, headers), *expected, "{peer} {headers:?}");
        }
        assert_eq!(client("", "10.1.1.1", &["203.0.113.9"]), "10.1.1.1");
        assert_eq!(client("::ffff:10.0.0.0/104", "10.1.1.1", &["203.0.113.9"]), "203.0.113.9");
    }

    #[test]
    fn an_invalid_network_is_named_in_the_error() {
        for wrong in ["10.0.0.0/33", "localhost", "10.0.0.1:80", "10.0.0", "/8", "::1/129"] {
            let refused = format!("127.0.0.1,{wrong}").parse::<TrustedProxies>().unwrap_err();
            assert!(refused.to_string().contains(wrong), "{refused}");
        }
    }

    /// Addresses of both kinds, some trusted, and invalid entries.
    fn entry() -> impl Strategy<Value = String> {
        prop_oneof![
            any::<[u8; 4]>().prop_map(|bytes| IpAddr::from(bytes).to_string()),
            any::<[u8; 3]>().prop_map(|[a, b, c]| format!("10.{a}.{b}.{c}")),
            (any::<[u8; 16]>(), any::<u16>()).prop_map(|(bytes, port)| format!("[{}]:{port}", IpAddr::from(bytes))),
            "[ -~]{0,20}",
        ]
    }

    proptest! {
        #[test]
        fn headers_of_untrusted_peers_are_ignored(peer: [u8; 16], header in "[ -~]{0,60}") {
            let peer = IpAddr::from(peer).to_canonical();
            prop_assume!(!peer.to_string().starts_with("10."));
            prop_assert_eq!(client("10.0.0.0/8", &peer.to_string(), &[&header]), peer.to_string());
        }

        #[test]
        fn entries_before_the_client_change_nothing(before in proptest::collection::vec(entry(), 0..5), hops in 0..4usize) {
            let tail = format!("203.0.113.9{}", ", 10.9.9.9".repeat(hops));
            let list = before.into_iter().chain([tail]).collect::<Vec<_>>().join(",");
            prop_assert_eq!(client("10.0.0.0/8", "10.1.1.1", &[&list]), "203.0.113.9");
        }

        #[test]
        fn the_client_is_the_peer_or_one_that_a_trusted_proxy_named(entries in proptest::collection::vec(entry(), 0..6)) {
            let found = client("10.0.0.0/8", "10.1.1.1", &[&entries.join(",")]);
            let list = entries.join(",");
            let known: Vec<_> = list.split(',').rev().map_while(address).map(|each| each.to_string()).collect();
            let trusted = known.iter().take_while(|each| each.starts_with("10.")).count();
            let expected = known.get(trusted).or(known.last()).map_or("10.1.1.1", String::as_str);
            prop_assert_eq!(found, expected);
        }
    }
}
