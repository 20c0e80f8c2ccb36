//! The networks by which clients are counted.

use std::net::IpAddr;

use admission::Client;
use ipnet::IpNet;

/// Prefixes of the networks that clients are counted by, the largest first. A customer gets one IPv4 address or a few
/// neighbours, and an IPv6 network of one of these sizes.
const IPV4_PREFIXES: [u8; 2] = [24, 32];
const IPV6_PREFIXES: [u8; 3] = [48, 56, 64];

/// The network that one client is given: an IPv4 address, or the /64 of an IPv6 address. A client that has one address
/// of a /64 has them all.
pub fn network(address: IpAddr) -> IpAddr {
    NetworkClient::new(address).0
}

/// A client that is known by its address alone. Its parties are the networks that contain the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NetworkClient(IpAddr);

impl NetworkClient {
    pub fn new(address: IpAddr) -> Self {
        let address = address.to_canonical();
        let prefix = if address.is_ipv4() { 32 } else { 64 };
        Self(containing(address, prefix).addr())
    }

    /// The smallest of its networks.
    pub fn address(self) -> IpAddr {
        self.0
    }
}

impl Client for NetworkClient {
    type Party = IpNet;

    fn parties(&self) -> impl Iterator<Item = IpNet> {
        let prefixes: &[u8] = if self.0.is_ipv4() { &IPV4_PREFIXES } else { &IPV6_PREFIXES };
        prefixes.iter().map(|prefix| containing(self.0, *prefix))
    }
}

/// The network of this size that contains an address.
fn containing(address: IpAddr, prefix: u8) -> IpNet {
    IpNet::new_assert(address, prefix).trunc()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_addresses_of_a_64_are_one_client_and_ipv4_within_ipv6_is_ipv4() {
        for (address, client, networks) in [
            (
                "2001:db8:1:203:4:5:6:7",
                "2001:db8:1:203::",
                &["2001:db8:1::/48", "2001:db8:1:200::/56", "2001:db8:1:203::/64"][..],
            ),
            (
                "2001:db8:1:2ff:ffff:ffff:ffff:ffff",
                "2001:db8:1:2ff::",
                &["2001:db8:1::/48", "2001:db8:1:200::/56", "2001:db8:1:2ff::/64"],
            ),
            ("192.0.2.7", "192.0.2.7", &["192.0.2.0/24", "192.0.2.7/32"]),
            ("::ffff:192.0.2.7", "192.0.2.7", &["192.0.2.0/24", "192.0.2.7/32"]),
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(network(address), client.parse::<IpAddr>().unwrap(), "{address}");
            let client = NetworkClient::new(address);
            assert_eq!(client.parties().map(|network| network.to_string()).collect::<Vec<_>>(), networks, "{address}");
        }
    }
}
