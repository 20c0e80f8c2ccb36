//! The open connections of one listener: a fair share of slots for each peer, and the choice of an idle connection to
//! evict when a new one finds no slot.
//!
//! Until a request's sender is authenticated, its connection counts as idle: half-sent forms are evicted, too.
//!
//! An HTTP/2 connection has one slot for itself and its first request; every further concurrent request needs another,
//! as over HTTP/1.1 it would need another connection. So the slots bound the memory of all callers together, with keys
//! or without.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use admission::{Admission, Client, FairShare, Permit};
use ipnet::IpNet;
use parking_lot::Mutex;

use crate::activity::Activity;
use crate::network::NetworkClient;
use crate::proxies::TrustedProxies;

/// A connection that was idle for this long is also evicted for its own peer, and for a peer with a single slot less.
const LONG_IDLE: Duration = Duration::from_secs(5);

/// What a connection is counted for: its client's networks. A trusted proxy carries many clients, so each of its
/// connections is counted separately.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Peer {
    Network(NetworkClient),
    Proxied(u64),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Party {
    Network(IpNet),
    Proxied(u64),
}

impl Client for Peer {
    type Party = Party;

    fn parties(&self) -> impl Iterator<Item = Party> {
        let (networks, proxied) = match self {
            Self::Network(client) => (Some(client.parties()), None),
            Self::Proxied(number) => (None, Some(Party::Proxied(*number))),
        };
        networks.into_iter().flatten().map(Party::Network).chain(proxied)
    }
}

/// Maps addresses to the peers that their connections are counted for.
pub(crate) struct Peers<'a> {
    proxies: &'a TrustedProxies,
    proxied: u64,
}

impl<'a> Peers<'a> {
    pub(crate) fn new(proxies: &'a TrustedProxies) -> Self {
        Self { proxies, proxied: 0 }
    }

    pub(crate) fn peer(&mut self, address: IpAddr) -> Peer {
        if !self.proxies.contain(address) {
            return Peer::Network(NetworkClient::new(address));
        }
        self.proxied += 1;
        Peer::Proxied(self.proxied)
    }
}

/// The rule, without a clock: `idle` returns how long a connection has been idle, `None` if it is not.
#[derive(Debug)]
struct Table<C> {
    share: FairShare<Peer>,
    open: HashMap<Peer, Vec<C>>,
}

impl<C> Table<C> {
    fn new(slots: usize) -> Self {
        Self { share: FairShare::new(slots), open: HashMap::new() }
    }

    /// Opens a connection within its peer's share.
    fn open(&mut self, peer: &Peer, connection: C) -> bool {
        let may = self.share.enter(peer);
        if may {
            self.open.entry(peer.clone()).or_default().push(connection);
        }
        may
    }

    /// Opens a connection in place of an idle one, which is returned: the longest idle one of the peer that holds most
    /// slots, counting the networks that it is part of.
    fn replace(&mut self, peer: &Peer, connection: C, idle: impl Fn(&C) -> Option<Duration>) -> Option<C> {
        let (victim, index) = self.find_idle(peer, idle)?;
        let connections = self.open.get_mut(&victim)?;
        let replaced = connections.swap_remove(index);
        if connections.is_empty() {
            self.open.remove(&victim);
        }
        self.share.transfer(&victim, peer);
        self.open.entry(peer.clone()).or_default().push(connection);
        Some(replaced)
    }

    fn find_idle(&self, newcomer: &Peer, idle: impl Fn(&C) -> Option<Duration>) -> Option<(Peer, usize)> {
        let candidates = self.open.iter().filter_map(|(peer, connections)| {
            // The largest networks that do not contain both.
            let parties = peer.parties().zip(newcomer.parties()).find(|(theirs, ours)| theirs != ours);
            let min_idle = match parties.map(|(theirs, ours)| (self.share.held(&theirs), self.share.held(&ours))) {
                // After the eviction it still has at least as many as the newcomer.
                Some((held, wanted)) if held >= wanted + 2 => Duration::ZERO,
                Some((held, wanted)) if held <= wanted => return None,
                _ => LONG_IDLE,
            };
            let idle_times = connections.iter().map(&idle).enumerate();
            let (idle_time, index) = idle_times.filter_map(|(index, time)| Some((time?, index))).max()?;
            let held = peer.parties().map(|party| self.share.held(&party)).collect::<Vec<_>>();
            (idle_time >= min_idle).then_some(((held, idle_time), peer, index))
        });
        let (_, peer, index) = candidates.max_by(|(rank, ..), (other, ..)| rank.cmp(other))?;
        Some((peer.clone(), index))
    }

    /// Closes a connection, unless it was replaced before.
    fn close(&mut self, peer: &Peer, is_it: impl Fn(&C) -> bool) {
        let Some(connections) = self.open.get_mut(peer) else { return };
        let Some(index) = connections.iter().position(is_it) else { return };
        connections.swap_remove(index);
        if connections.is_empty() {
            self.open.remove(peer);
        }
        self.share.leave(peer);
    }
}

/// The slots of a listener.
#[derive(Clone)]
pub(crate) struct ConnectionSlots {
    table: Arc<Mutex<Table<Arc<Activity>>>>,
    evictions: Evictions,
}

/// Evicted connections that are not closed yet, by the peer of the newcomer.
#[derive(Clone)]
struct Evictions {
    any: Admission<Peer>,
    /// One for each peer, so that peers that reconnect all the time do not keep out an occasional one such as a probe.
    first: Admission<Peer>,
}

impl Evictions {
    fn new(evictions: usize) -> Self {
        Self { any: Admission::new(evictions), first: Admission::new(evictions) }
    }

    fn enter(&self, peer: &Peer) -> Option<Permit<Peer>> {
        let first = || (self.first.held_by(peer) == 0).then(|| self.first.enter(peer.clone())).flatten();
        self.any.enter(peer.clone()).or_else(first)
    }
}

impl ConnectionSlots {
    pub(crate) fn new(connections: usize, evictions: usize) -> Self {
        Self { table: Arc::new(Mutex::new(Table::new(connections))), evictions: Evictions::new(evictions) }
    }

    /// A slot for a new connection, and whether an idle one was evicted for it; `None` if no slot is free and no idle
    /// connection can be evicted.
    pub(crate) fn open(&self, peer: &Peer) -> Option<(ConnectionSlot, bool)> {
        let activity = Arc::new(Activity::new());
        let mut table = self.table.lock();
        let is_free = table.open(peer, activity.clone());
        if !is_free {
            let eviction = self.evictions.enter(peer)?;
            table.replace(peer, activity.clone(), |activity| activity.idle_time())?.evict(eviction);
        }
        Some((ConnectionSlot { activity, admitted: Some((self.clone(), peer.clone())) }, !is_free))
    }

    /// How many connections have no request.
    pub(crate) fn unused(&self) -> usize {
        let table = self.table.lock();
        table.open.values().flatten().filter(|activity| !activity.has_requests()).count()
    }
}

/// The slot of an open connection, and its activity.
pub(crate) struct ConnectionSlot {
    pub(crate) activity: Arc<Activity>,
    /// `None` for a connection beyond the limit, whose client only gets a rejection.
    admitted: Option<(ConnectionSlots, Peer)>,
}

impl ConnectionSlot {
    pub(crate) fn beyond_limit() -> Self {
        Self { activity: Arc::new(Activity::new()), admitted: None }
    }

    /// A slot for one more concurrent request.
    pub(crate) fn enter_request(&self) -> Option<RequestSlot> {
        let may = self.admitted.as_ref().is_none_or(|(slots, peer)| slots.table.lock().share.enter(peer));
        may.then(|| RequestSlot(self.admitted.clone()))
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        if let Some((slots, peer)) = &self.admitted {
            slots.table.lock().close(peer, |activity| Arc::ptr_eq(activity, &self.activity));
        }
    }
}

/// The slot of a further request on a connection.
pub(crate) struct RequestSlot(Option<(ConnectionSlots, Peer)>);

impl Drop for RequestSlot {
    fn drop(&mut self) {
        if let Some((slots, peer)) = &self.0 {
            slots.table.lock().share.leave(peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn peer(number: u64) -> Peer {
        Peer::Proxied(number)
    }

    #[test]
    fn the_addresses_of_one_network_count_together_and_a_proxys_connections_alone() {
        let proxies: TrustedProxies = "2001:db8:9::/48".parse().unwrap();
        let mut peers = Peers::new(&proxies);
        let mut admitted = |prefix: &str| {
            let mut table = Table::new(10);
            let addresses = (0..20).map(|last| format!("{prefix}:{last}").parse().unwrap());
            addresses.filter(|address| table.open(&peers.peer(*address), ())).count()
        };
        assert_eq!(admitted("2001:db8::7"), 6, "one network takes the full share of a part of larger networks");
        assert_eq!(admitted("2001:db8:9::7"), 10, "clients of a proxy");
    }

    #[test]
    fn idle_connections_of_the_peer_with_most_slots_are_evicted_the_longest_idle_first() {
        let mut table = Table::new(16);
        for (number, connections) in [(1, 40), (2, 40)] {
            for connection in 0..connections {
                table.open(&peer(number), (number, connection));
            }
        }
        let held: Vec<_> = [1, 2].iter().map(|number| table.share.held_by(&peer(*number))).collect();
        assert_eq!(held, [13, 3]);
        // As on the ops listener: two peers hold all slots, and a probe arrives.
        let idle = |connection: &(u64, i32)| (connection.1 != 5).then(|| Duration::from_secs(connection.1 as u64));
        while table.open(&peer(4), (4, 5)) {} // busy
        assert_eq!(table.replace(&peer(3), (3, 0), idle), Some((1, 12)));
        assert_eq!(table.replace(&peer(3), (3, 1), idle), Some((1, 11)));
        table.close(&peer(1), |connection| *connection == (1, 12));
        assert_eq!((table.share.held_by(&peer(1)), table.share.held_by(&peer(3))), (11, 2), "already closed");
    }

    /// Every address of an attacker's /48 has one connection, like the newcomers.
    #[test]
    fn a_large_network_is_one_peer_and_its_connections_are_evicted_for_others_and_for_each_other() {
        let network = |text: &str| Peer::Network(NetworkClient::new(text.parse().unwrap()));
        let mut table = Table::new(20);
        let opened = (0..40).filter(|number| table.open(&network(&format!("2001:db8:1:{number:x}00::1")), *number));
        assert_eq!(opened.count(), 16);
        while table.open(&network("192.0.2.1"), 100) {}
        while table.open(&network("198.51.100.1"), 100) {}
        let idle = |connection: &i32| (*connection < 100).then(|| Duration::from_secs(1));
        assert!(table.replace(&network("203.0.113.1"), 101, idle).is_some());
        assert!(table.replace(&network("2001:db8:2::1"), 101, idle).is_some());
        assert!(table.replace(&network("2001:db8:1:ffff::1"), 101, idle).is_none(), "one of them, as each has");
    }

    #[test]
    fn peers_that_flood_leave_an_eviction_for_one_that_does_not() {
        let evictions = Evictions::new(8);
        let mut flood = Vec::new();
        for round in 0..40 {
            flood.extend(evictions.enter(&peer(round % 4)));
        }
        assert!(flood.len() < 16, "{} of 16", flood.len());
        assert!(evictions.enter(&peer(9)).is_some());
        drop(flood);
        assert_eq!(evictions.any.usage().0 + evictions.first.usage().0, 0);
    }

    #[test]
    fn a_peer_that_has_no_more_than_the_newcomer_loses_a_connection_only_after_a_long_pause() {
        let mut table = Table::new(4);
        for number in 0..4 {
            assert!(table.open(&peer(number), number));
        }
        assert_eq!(table.replace(&peer(9), 9, |_| Some(LONG_IDLE / 2)), None);
        assert_eq!(table.replace(&peer(0), 10, |_| Some(LONG_IDLE * 2)), Some(0), "its own");
        assert!(table.replace(&peer(9), 9, |_| Some(LONG_IDLE)).is_some());
    }

    proptest! {
        /// For any sequence of connections: the slots are never exceeded. An evicted connection was idle, and either its
        /// peer still has at least as many slots as the newcomer, or it was idle for long. A newcomer is refused only if
        /// no connection may be evicted.
        #[test]
        fn newcomers_get_in_unless_everything_is_in_use(
            slots in 1..20usize,
            steps in proptest::collection::vec((0..6u64, any::<bool>(), proptest::option::of(0..8u64)), 0..200),
        ) {
            let mut table = Table::new(slots);
            let mut open: Vec<(u64, usize, Option<Duration>)> = Vec::new();
            for (id, (number, comes, idle)) in steps.into_iter().enumerate() {
                let idle = idle.map(Duration::from_secs);
                if !comes {
                    if let Some(at) = open.iter().position(|(other, ..)| *other == number) {
                        let (number, id, _) = open.swap_remove(at);
                        table.close(&peer(number), |other| *other == id);
                    }
                } else if table.open(&peer(number), id) {
                    open.push((number, id, idle));
                } else {
                    let held = |number: u64| open.iter().filter(|(other, ..)| *other == number).count();
                    let idle_of = |id: &usize| open.iter().find(|(_, other, _)| other == id).unwrap().2;
                    let may_make_way = |(owner, _, time): &(u64, usize, Option<Duration>)| time.is_some_and(|time| {
                        held(*owner) >= held(number) + 2
                            || time >= LONG_IDLE && (*owner == number || held(*owner) > held(number))
                    });
                    match table.replace(&peer(number), id, idle_of) {
                        Some(replaced) => {
                            let at = open.iter().position(|(_, other, _)| *other == replaced).unwrap();
                            prop_assert!(may_make_way(&open[at]));
                            open[at] = (number, id, idle);
                        }
                        None => prop_assert!(!open.iter().any(may_make_way)),
                    }
                }
                prop_assert!(open.len() <= slots);
                for number in 0..6 {
                    let held = open.iter().filter(|(other, ..)| *other == number).count();
                    prop_assert_eq!(table.share.held_by(&peer(number)), held);
                }
            }
        }
    }
}
