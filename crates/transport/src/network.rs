//! Whom an address stands for where clients are counted.

use std::net::IpAddr;

/// The network that one client is given: an IPv4 address, or the /64 of an IPv6 address. Whoever has one address of a
/// /64 has them all.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) >> 64 << 64).into()),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_addresses_of_a_64_are_one_client_and_ipv4_within_ipv6_is_ipv4() {
        for (address, client) in [
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
            ("2001:db8:1:2:ffff:ffff:ffff:ffff", "2001:db8:1:2::"),
            ("2001:db8:1:3::1", "2001:db8:1:3::"),
            ("192.0.2.7", "192.0.2.7"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
        ] {
            assert_eq!(network(address.parse().unwrap()), client.parse::<IpAddr>().unwrap(), "{address}");
        }
    }
}
