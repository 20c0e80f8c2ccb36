//! A fair share of a limited number of slots: the rule, purely, and the permit that holds slots.
//!
//! A client may hold up to four times the slots that are still free. Alone it gets four fifths of all; however many it
//! asks for, the next client finds some. A slot can be a request, a connection or a byte: what takes several gets all
//! of them or none. Nobody queues: there are slots, or there is a refusal.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;

/// A client may hold this many slots for each free one.
const HELD_PER_FREE: usize = 4;

#[derive(Debug)]
pub struct FairShare<Client> {
    slots: usize,
    taken: usize,
    held: HashMap<Client, usize>,
}

impl<Client: Eq + Hash> FairShare<Client> {
    pub fn new(slots: usize) -> Self {
        Self { slots, taken: 0, held: HashMap::new() }
    }

    /// Takes a slot for a client; `false` if it may not have one.
    pub fn enter(&mut self, client: Client) -> bool {
        self.enter_many(client, 1)
    }

    /// Takes slots for a client, as if one after the other; `false`, and none is taken, if it may not have them all.
    pub fn enter_many(&mut self, client: Client, slots: usize) -> bool {
        let Some(others) = slots.checked_sub(1) else { return true };
        let free = self.slots - self.taken;
        let held = self.held(&client);
        let may = slots <= free && held + others < HELD_PER_FREE * (free - others);
        if may {
            self.taken += slots;
            self.held.insert(client, held + slots);
        }
        may
    }

    pub fn leave(&mut self, client: &Client) {
        self.leave_many(client, 1);
    }

    /// Gives slots back, at most as many as the client holds.
    pub fn leave_many(&mut self, client: &Client, slots: usize) {
        if let Some(held) = self.held.get_mut(client) {
            let slots = slots.min(*held);
            self.taken -= slots;
            *held -= slots;
            if *held == 0 {
                self.held.remove(client);
            }
        }
    }

    /// Passes a slot from one client to another, whatever their shares.
    pub fn transfer(&mut self, from: &Client, to: Client) {
        if self.held(from) > 0 {
            self.leave(from);
            self.taken += 1;
            *self.held.entry(to).or_default() += 1;
        }
    }

    /// How many slots a client holds.
    pub fn held(&self, client: &Client) -> usize {
        self.held.get(client).copied().unwrap_or(0)
    }
}

/// A fair share that threads use together.
pub struct Admission<Client: Eq + Hash>(Arc<Mutex<FairShare<Client>>>);

impl<Client: Eq + Hash> Clone for Admission<Client> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<Client: Eq + Hash + Clone> Admission<Client> {
    pub fn new(slots: usize) -> Self {
        Self(Arc::new(Mutex::new(FairShare::new(slots))))
    }

    /// A slot for a client, held until the permit is dropped; `None` if there is none for it.
    pub fn enter(&self, client: Client) -> Option<Permit<Client>> {
        self.enter_many(client, 1)
    }

    /// Several slots, all or none.
    pub fn enter_many(&self, client: Client, slots: usize) -> Option<Permit<Client>> {
        let entered = self.0.lock().enter_many(client.clone(), slots);
        entered.then(|| Permit { share: self.0.clone(), client, slots })
    }

    /// How many slots a client holds.
    pub fn held(&self, client: &Client) -> usize {
        self.0.lock().held(client)
    }

    /// How many slots are taken, and how many there are.
    pub fn usage(&self) -> (usize, usize) {
        let share = self.0.lock();
        (share.taken, share.slots)
    }
}

/// Slots that are taken for as long as this lives.
pub struct Permit<Client: Eq + Hash> {
    share: Arc<Mutex<FairShare<Client>>>,
    client: Client,
    slots: usize,
}

impl<Client: Eq + Hash + Clone> Permit<Client> {
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Changes how many slots it holds; `false` if there are not enough, and then it holds as many as before.
    pub fn resize(&mut self, slots: usize) -> bool {
        let resized = match slots.checked_sub(self.slots) {
            Some(more) => self.share.lock().enter_many(self.client.clone(), more),
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

impl<Client: Eq + Hash> Drop for Permit<Client> {
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

    #[test]
    fn a_greedy_client_leaves_a_slot_for_the_next() {
        let mut share = FairShare::new(100);
        let greedy = (0..1000).filter(|_| share.enter("greedy")).count();
        assert_eq!(greedy, 80);
        assert!(share.enter("newcomer"));
    }

    #[test]
    fn a_single_slot_can_be_used() {
        let mut share = FairShare::new(1);
        assert!(share.enter("a"));
        assert!(!share.enter("b"));
        share.leave(&"a");
        assert!(share.enter("b"));
    }

    #[test]
    fn a_permit_grows_and_shrinks_within_its_share_and_returns_all_of_it() {
        let admission = Admission::new(100);
        let mut permit = admission.enter_many("a", 50).unwrap();
        assert!(admission.enter_many("a", 31).is_none());
        assert!(!permit.resize(81), "more than four fifths");
        assert_eq!(admission.usage(), (50, 100), "a refusal changes nothing");
        assert!(permit.resize(80));
        assert!(admission.enter_many("b", 17).is_none());
        assert!(admission.enter_many("b", 16).is_some());
        assert!(permit.resize(10));
        assert_eq!((permit.slots(), admission.usage().0), (10, 10));
        let nothing = admission.enter_many("c", 0).unwrap();
        drop((permit, nothing));
        assert_eq!(admission.usage().0, 0);
    }

    proptest! {
        #[test]
        fn slots_are_counted_exactly_and_never_exceeded(slots in 1..50usize, steps in proptest::collection::vec((0..5u8, any::<bool>()), 0..400)) {
            let mut share = FairShare::new(slots);
            let mut inside = Vec::new();
            for (client, comes) in steps {
                if comes {
                    let held = inside.iter().filter(|&&other| other == client).count();
                    let free = slots - inside.len();
                    prop_assert_eq!(share.enter(client), free > 0 && held < HELD_PER_FREE * free);
                    if share.taken > inside.len() {
                        inside.push(client);
                    }
                } else if let Some(at) = inside.iter().position(|&other| other == client) {
                    share.leave(&inside.swap_remove(at));
                } else {
                    share.leave(&client);
                }
                prop_assert_eq!(share.taken, inside.len());
                prop_assert!(share.taken <= slots);
                prop_assert_eq!(share.held.values().sum::<usize>(), inside.len());
            }
        }

        /// Several slots at once are what as many single ones would be, and a refusal takes none.
        #[test]
        fn many_slots_are_taken_as_if_one_by_one(slots in 1..200usize, steps in proptest::collection::vec((0..4u8, 0..60usize, any::<bool>()), 0..100)) {
            let (mut share, mut single) = (FairShare::new(slots), FairShare::new(slots));
            let mut inside: Vec<(u8, usize)> = Vec::new();
            for (client, wanted, comes) in steps {
                if comes {
                    let one_by_one = (0..wanted).take_while(|_| single.enter(client)).count();
                    let entered = share.enter_many(client, wanted);
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

        /// However many bytes greedy clients ask for, the next one finds room: beside two of them for the largest body
        /// of the API, beside three for most others. The budget is the API's default.
        #[test]
        fn a_newcomer_finds_room_beside_greedy_clients(bodies in proptest::collection::vec((0..3u8, 1..262_144usize), 0..2000)) {
            for (greedy, room) in [(2, 262_144), (3, 200_000)] {
                let mut share = FairShare::new(32 << 20);
                for &(client, bytes) in bodies.iter().filter(|(client, _)| *client < greedy) {
                    share.enter_many(client, bytes);
                }
                prop_assert!(share.enter_many(99, room));
            }
        }
    }
}
