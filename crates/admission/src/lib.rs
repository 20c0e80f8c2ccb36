//! Fair admission to a limited number of slots: the pure rule, and the permit that holds slots.
//!
//! A client belongs to parties, from the largest to itself: a person and a key, or networks and an address. The largest
//! party may hold up to four times the number of free slots: alone it gets four fifths of all, and the next party finds
//! some free. The same rule applies to each smaller party, within the slots that the larger one may still take. A slot can
//! be a request, a connection or a byte; a request for several gets all or none. There is no queue: a request without
//! slots is refused.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;

/// A party may hold this many slots for each free one.
const HELD_PER_FREE: usize = 4;

/// A holder of slots. The client itself is its smallest party.
pub trait Client {
    type Party: Eq + Hash;

    /// The parties that its slots are counted for, at least one: the largest first, the client itself last.
    fn parties(&self) -> impl Iterator<Item = Self::Party>;
}

#[derive(Debug)]
pub struct FairShare<C: Client> {
    slots: usize,
    taken: usize,
    held: HashMap<C::Party, usize>,
}

impl<C: Client> FairShare<C> {
    pub fn new(slots: usize) -> Self {
        Self { slots, taken: 0, held: HashMap::new() }
    }

    /// Takes a slot for a client; `false` if it may not have one.
    pub fn enter(&mut self, client: &C) -> bool {
        self.enter_many(client, 1)
    }

    /// Takes slots for a client, as if one after the other; if it may not have all, takes none and returns `false`.
    pub fn enter_many(&mut self, client: &C, slots: usize) -> bool {
        let may = self.may_enter(client, slots);
        if may {
            self.add(client, slots);
        }
        may
    }

    /// If the last of the slots may be taken, so may those before it.
    fn may_enter(&self, client: &C, slots: usize) -> bool {
        let Some(others) = slots.checked_sub(1) else { return true };
        let mut room = (self.slots - self.taken).saturating_sub(others);
        client.parties().all(|party| {
            let (held, most) = (self.held(&party) + others, HELD_PER_FREE * room);
            // The members share the slots that this party can still take one by one.
            room = most.saturating_sub(held).div_ceil(HELD_PER_FREE + 1);
            held < most
        })
    }

    fn add(&mut self, client: &C, slots: usize) {
        if slots > 0 {
            self.taken += slots;
            client.parties().for_each(|party| *self.held.entry(party).or_default() += slots);
        }
    }

    pub fn leave(&mut self, client: &C) {
        self.leave_many(client, 1);
    }

    /// Returns slots, at most as many as the client holds.
    pub fn leave_many(&mut self, client: &C, slots: usize) {
        let slots = slots.min(self.held_by(client));
        self.taken -= slots;
        for party in client.parties() {
            if let Some(held) = self.held.get_mut(&party) {
                *held -= slots;
                if *held == 0 {
                    self.held.remove(&party);
                }
            }
        }
    }

    /// Transfers a slot from one client to another, regardless of their shares.
    pub fn transfer(&mut self, from: &C, to: &C) {
        if self.held_by(from) > 0 {
            self.leave(from);
            self.add(to, 1);
        }
    }

    /// The number of slots that a party holds.
    pub fn held(&self, party: &C::Party) -> usize {
        self.held.get(party).copied().unwrap_or(0)
    }

    /// The number of slots that the client itself holds.
    pub fn held_by(&self, client: &C) -> usize {
        client.parties().last().map_or(0, |party| self.held(&party))
    }
}

/// A fair share that threads can share.
pub struct Admission<C: Client>(Arc<Mutex<FairShare<C>>>);

impl<C: Client> Clone for Admission<C> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<C: Client> Admission<C> {
    pub fn new(slots: usize) -> Self {
        Self(Arc::new(Mutex::new(FairShare::new(slots))))
    }

    /// A slot for a client, held until the permit is dropped; `None` if it may not have one.
    pub fn enter(&self, client: C) -> Option<Permit<C>> {
        self.enter_many(client, 1)
    }

    /// A permit without slots, to be resized.
    pub fn empty(&self, client: C) -> Permit<C> {
        Permit { share: self.0.clone(), client, slots: 0 }
    }

    /// Takes several slots, all or none.
    pub fn enter_many(&self, client: C, slots: usize) -> Option<Permit<C>> {
        let entered = self.0.lock().enter_many(&client, slots);
        entered.then(|| Permit { share: self.0.clone(), client, slots })
    }

    /// The number of slots that the client itself holds.
    pub fn held_by(&self, client: &C) -> usize {
        self.0.lock().held_by(client)
    }

    /// The numbers of taken slots and of all slots.
    pub fn usage(&self) -> (usize, usize) {
        let share = self.0.lock();
        (share.taken, share.slots)
    }
}

/// Slots that are taken for as long as this lives.
pub struct Permit<C: Client> {
    share: Arc<Mutex<FairShare<C>>>,
    client: C,
    slots: usize,
}

impl<C: Client> Permit<C> {
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Changes the number of slots; `false`, without a change, if there are not enough.
    pub fn resize(&mut self, slots: usize) -> bool {
        let resized = match slots.checked_sub(self.slots) {
            Some(more) => self.share.lock().enter_many(&self.client, more),
            None => {
                self.share.lock().leave_many(&self.client, self.slots - slots);
                true
            }
        };
        if resized {
            self.slots = slots;
        }
        resized
    }
}

impl<C: Client> Drop for Permit<C> {
    fn drop(&mut self) {
        if self.slots > 0 {
            self.share.lock().leave_many(&self.client, self.slots);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A key with or without a person.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    struct Key {
        person: Option<u8>,
        key: u8,
    }

    impl Client for Key {
        type Party = (&'static str, u8);

        fn parties(&self) -> impl Iterator<Item = Self::Party> {
            self.person.map(|person| ("person", person)).into_iter().chain([("key", self.key)])
        }
    }

    fn alone(key: u8) -> Key {
        Key { person: None, key }
    }

    fn owned(person: u8, key: u8) -> Key {
        Key { person: Some(person), key }
    }

    fn fill(share: &mut FairShare<Key>, client: Key) -> usize {
        (0..1000).filter(|_| share.enter(&client)).count()
    }

    #[test]
    fn a_greedy_client_leaves_slots_for_the_next() {
        let mut share = FairShare::new(100);
        assert_eq!(fill(&mut share, alone(1)), 80);
        assert!(share.enter(&alone(2)));
    }

    #[test]
    fn many_keys_of_a_person_get_no_more_than_one_key() {
        let mut share = FairShare::new(100);
        let held: Vec<usize> = (0..10).map(|key| fill(&mut share, owned(1, key))).collect();
        assert_eq!(held, [64, 13, 3, 0, 0, 0, 0, 0, 0, 0], "four fifths of all, then four fifths of the rest");
        assert_eq!(fill(&mut share, alone(99)), 16, "the same as beside a single key");
        assert!(share.enter(&owned(2, 100)));
    }

    #[test]
    fn a_single_slot_can_be_used() {
        for (first, second) in [(alone(1), alone(2)), (owned(1, 1), owned(1, 2)), (owned(1, 1), owned(2, 2))] {
            let mut share = FairShare::new(1);
            assert!(share.enter(&first));
            assert!(!share.enter(&second));
            share.leave(&first);
            assert!(share.enter(&second));
        }
    }

    #[test]
    fn a_permit_grows_and_shrinks_within_its_share_and_returns_all_of_it() {
        let admission = Admission::new(100);
        let mut permit = admission.enter_many(alone(1), 50).unwrap();
        assert!(admission.enter_many(alone(1), 31).is_none());
        assert!(!permit.resize(81), "more than four fifths");
        assert_eq!(admission.usage(), (50, 100), "a refusal changes nothing");
        assert!(permit.resize(80));
        assert!(admission.enter_many(alone(2), 17).is_none());
        assert!(admission.enter_many(alone(2), 16).is_some());
        assert!(permit.resize(10));
        assert_eq!((permit.slots(), admission.usage().0), (10, 10));
        let nothing = admission.enter_many(alone(3), 0).unwrap();
        drop((permit, nothing));
        assert_eq!(admission.usage().0, 0);
    }

    fn clients() -> impl Strategy<Value = Key> {
        (proptest::option::of(0..2u8), 0..3u8)
            .prop_map(|(person, key)| Key { person, key: key + 10 * person.unwrap_or(9) })
    }

    proptest! {
        #[test]
        fn slots_are_counted_exactly_and_never_exceeded(slots in 1..50usize, steps in proptest::collection::vec((clients(), any::<bool>()), 0..400)) {
            let mut share = FairShare::new(slots);
            let mut inside: Vec<Key> = Vec::new();
            for (client, comes) in steps {
                if comes {
                    let free = slots - inside.len();
                    let own = inside.iter().filter(|other| **other == client).count();
                    let group = inside.iter().filter(|other| client.person.is_some() && other.person == client.person);
                    let (group, entered) = (group.count().max(own), share.enter(&client));
                    if entered {
                        inside.push(client);
                    }
                    prop_assert!(!entered || group < HELD_PER_FREE * free);
                    // A client without slots gets one if its person may have one more.
                    prop_assert!(entered || own > 0 || group >= HELD_PER_FREE * free);
                    prop_assert!(entered || client.person.is_some() || own >= HELD_PER_FREE * free);
                } else if let Some(at) = inside.iter().position(|other| *other == client) {
                    share.leave(&inside.swap_remove(at));
                } else {
                    share.leave(&client);
                }
                prop_assert_eq!(share.taken, inside.len());
                prop_assert!(share.taken <= slots);
                for ((kind, name), held) in &share.held {
                    let is_party = |client: &&Key| client.parties().any(|party| party == (*kind, *name));
                    prop_assert_eq!(inside.iter().filter(is_party).count(), *held);
                }
            }
        }

        /// For any requests of its keys, a person gets at most as much as a single key: the next party finds free slots.
        #[test]
        fn a_person_with_many_keys_is_one_party(slots in 5..300usize, keys in proptest::collection::vec(0..20u8, 0..600)) {
            let (mut many, mut single) = (FairShare::new(slots), FairShare::new(slots));
            for key in keys {
                let entered = many.enter(&owned(1, key));
                let may = single.enter(&alone(1));
                prop_assert!(may || !entered);
                if may && !entered {
                    single.leave(&alone(1));
                }
            }
            prop_assert!(many.enter(&alone(99)));
        }

        /// Taking several slots is equivalent to taking them one by one, and a refusal takes none.
        #[test]
        fn many_slots_are_taken_as_if_one_by_one(slots in 1..200usize, steps in proptest::collection::vec((clients(), 0..60usize, any::<bool>()), 0..100)) {
            let (mut share, mut single) = (FairShare::new(slots), FairShare::new(slots));
            let mut inside: Vec<(Key, usize)> = Vec::new();
            for (client, wanted, comes) in steps {
                if comes {
                    let one_by_one = (0..wanted).take_while(|_| single.enter(&client)).count();
                    let entered = share.enter_many(&client, wanted);
                    prop_assert_eq!(entered, one_by_one == wanted);
                    match entered {
                        true => inside.push((client, wanted)),
                        false => single.leave_many(&client, one_by_one),
                    }
                } else if let Some(at) = inside.iter().position(|(other, _)| *other == client) {
                    let (client, held) = inside.swap_remove(at);
                    share.leave_many(&client, held);
                    single.leave_many(&client, held);
                }
                prop_assert_eq!(share.taken, inside.iter().map(|(_, held)| held).sum::<usize>());
                prop_assert_eq!(share.taken, single.taken);
                prop_assert_eq!(&share.held, &single.held);
            }
        }

        /// Beside greedy clients, the next one finds free bytes: beside two of them enough for the API's largest body,
        /// beside three enough for most bodies. The budget is the API's default.
        #[test]
        fn a_new_client_is_admitted_beside_greedy_ones(bodies in proptest::collection::vec((0..3u8, 1..262_144usize), 0..2000)) {
            for (greedy, room) in [(2, 262_144), (3, 200_000)] {
                let mut share = FairShare::new(32 << 20);
                for &(client, bytes) in bodies.iter().filter(|(client, _)| *client < greedy) {
                    share.enter_many(&alone(client), bytes);
                }
                prop_assert!(share.enter_many(&owned(1, 99), room));
            }
        }
    }
}
