//! Resolves configured URLs to endpoints: a host name with several addresses is several members.
//!
//! Names are resolved periodically. If that fails, the last known addresses are kept.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use crate::url::RuntimeUrl;

const RESOLVE_TIMEOUT: Duration = Duration::from_secs(3);

/// A member's URL and, if its host has several addresses, its address. As text it is the member's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) url: RuntimeUrl,
    pub(crate) address: Option<IpAddr>,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            None => self.url.fmt(f),
            Some(address) => write!(f, "{} at {address}", self.url),
        }
    }
}

/// The last known addresses of each name.
#[derive(Debug, Default)]
pub(crate) struct Resolver(HashMap<String, Vec<IpAddr>>);

impl Resolver {
    /// Resolves the host names of these URLs, and forgets all others.
    pub(crate) async fn resolve(&mut self, urls: &[RuntimeUrl]) {
        self.0.retain(|name, _| urls.iter().any(|url| url.host_name() == Some(name)));
        let lookups: Vec<_> = urls.iter().filter_map(RuntimeUrl::host_name).map(|name| (name, resolve(name))).collect();
        for (name, found) in lookups {
            match found.await.unwrap_or_default() {
                found if found.is_empty() => tracing::debug!(name, "a runtime's name could not be resolved"),
                found => drop(self.0.insert(name.to_owned(), found)),
            }
        }
    }

    /// The endpoints of these URLs, without duplicates.
    pub(crate) fn endpoints(&self, urls: &[RuntimeUrl]) -> Vec<Endpoint> {
        let mut endpoints: Vec<Endpoint> = Vec::new();
        for url in urls {
            let addresses =
                url.host_name().and_then(|name| self.0.get(name)).map_or_else(Vec::new, |all| separate_servers(all));
            let of_this = match addresses.is_empty() {
                true => vec![Endpoint { url: url.clone(), address: None }],
                false => addresses.into_iter().map(|at| Endpoint { url: url.clone(), address: Some(at) }).collect(),
            };
            for endpoint in of_this {
                if endpoints.iter().all(|known| known.to_string() != endpoint.to_string()) {
                    endpoints.push(endpoint);
                }
            }
        }
        endpoints
    }
}

/// The addresses of a name that are separate servers; none if the name is a single server. A server may have an address
/// of each family, so only the larger family counts. All loopback addresses are one server.
fn separate_servers(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let mut addresses: Vec<_> = addresses.iter().copied().filter(|address| !address.is_loopback()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    let (v4, v6): (Vec<_>, Vec<_>) = addresses.into_iter().partition(IpAddr::is_ipv4);
    let more = if v6.len() > v4.len() { v6 } else { v4 };
    if more.len() > 1 { more } else { Vec::new() }
}

/// Starts immediately, so that several names are resolved concurrently.
fn resolve(name: &str) -> tokio::task::JoinHandle<Vec<IpAddr>> {
    let name = name.to_owned();
    tokio::spawn(async move {
        let found = tokio::time::timeout(RESOLVE_TIMEOUT, tokio::net::lookup_host((name.as_str(), 0))).await;
        found.ok().and_then(Result::ok).map_or_else(Vec::new, |found| found.map(|address| address.ip()).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(urls: &[&str], known: &[(&str, &[&str])]) -> Vec<String> {
        let urls: Vec<RuntimeUrl> = urls.iter().map(|url| url.parse().unwrap()).collect();
        let addresses = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let resolver = Resolver(known.iter().map(|(name, texts)| ((*name).to_owned(), addresses(texts))).collect());
        resolver.endpoints(&urls).iter().map(Endpoint::to_string).collect()
    }

    #[test]
    fn a_name_with_several_addresses_is_several_members() {
        let url = "http://llm:8000/v1";
        let cases: &[(&[&str], &[&str])] = &[
            (&[], &["http://llm:8000/v1"]),
            (&["10.0.0.1"], &["http://llm:8000/v1"]),
            (
                &["10.0.0.2", "10.0.0.1", "10.0.0.2"],
                &["http://llm:8000/v1 at 10.0.0.1", "http://llm:8000/v1 at 10.0.0.2"],
            ),
            // Two families of the same servers.
            (&["10.0.0.1", "fd00::1"], &["http://llm:8000/v1"]),
            (
                &["10.0.0.1", "fd00::1", "10.0.0.2", "fd00::2"],
                &["http://llm:8000/v1 at 10.0.0.1", "http://llm:8000/v1 at 10.0.0.2"],
            ),
            (&["fd00::2", "fd00::1"], &["http://llm:8000/v1 at fd00::1", "http://llm:8000/v1 at fd00::2"]),
            (&["127.0.0.1", "127.0.0.2", "::1"], &["http://llm:8000/v1"]),
        ];
        for (addresses, expected) in cases {
            assert_eq!(members(&[url], &[("llm", addresses)]), *expected, "{addresses:?}");
        }
    }

    #[test]
    fn duplicates_are_removed_and_the_order_is_kept() {
        let known: &[(&str, &[&str])] = &[("b", &["10.0.0.1", "10.0.0.2"])];
        assert_eq!(
            members(&["http://c/v1", "https://:KEY@b/v1", "http://c", "unix:/a", "http://10.0.0.1/v1"], known),
            ["http://c/v1", "https://b/v1 at 10.0.0.1", "https://b/v1 at 10.0.0.2", "unix:/a", "http://10.0.0.1/v1"]
        );
    }

    #[tokio::test]
    async fn names_that_cannot_be_resolved_keep_their_addresses() {
        let urls: Vec<RuntimeUrl> = vec!["http://unknown.invalid/v1".parse().unwrap()];
        let known: Vec<IpAddr> = vec!["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
        let mut resolver = Resolver(HashMap::from([("unknown.invalid".into(), known.clone()), ("gone".into(), known)]));
        resolver.resolve(&urls).await;
        assert_eq!(resolver.endpoints(&urls).len(), 2);
        assert_eq!(resolver.0.len(), 1, "a name that is not configured is forgotten");
    }
}
