//! A fair share of a limited number of slots: the rule, purely, and the permit that holds a slot.
//!
//! A client may hold up to four times the slots that are still free. Alone it gets four fifths of all; however many it
//! asks for, the next client finds a slot. Nobody queues: there is a slot, or there is a refusal.

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
        let free = self.slots - self.taken;
        let held = self.held(&client);
        let may = free > 0 && held < HELD_PER_FREE * free;
        if may {
            self.taken += 1;
            self.held.insert(client, held + 1);
        }
        may
    }

    /// How many slots a client holds.
    pub fn held(&self, client: &Client) -> usize {
        self.held.get(client).copied().unwrap_or(0)
    }

    pub fn leave(&mut self, client: &Client) {
        if let Some(held) = self.held.get_mut(client) {
            self.taken -= 1;
            *held -= 1;
            if *held == 0 {
                self.held.remove(client);
            }
        }
    }
}

/// A fair share that threads use together.
pub struct Admission<Client: Eq + Hash>(Arc<Mutex<FairShare<Client>>>);

impl<Client: Eq + Hash + Clone> Admission<Client> {
    pub fn new(slots: usize) -> Self {
        Self(Arc::new(Mutex::new(FairShare::new(slots))))
    }

    /// A slot for a client, held until the permit is dropped; `None` if there is none for it.
    pub fn enter(&self, client: Client) -> Option<Permit<Client>> {
        let entered = self.0.lock().enter(client.clone());
        entered.then(|| Permit { share: self.0.clone(), client })
    }

    /// How many slots are taken, and how many there are.
    pub fn usage(&self) -> (usize, usize) {
        let share = self.0.lock();
        (share.taken, share.slots)
    }
}

/// A slot that is taken for as long as this lives.
pub struct Permit<Client: Eq + Hash> {
    share: Arc<Mutex<FairShare<Client>>>,
    client: Client,
}

impl<Client: Eq + Hash> Drop for Permit<Client> {
    fn drop(&mut self) {
        self.share.lock().leave(&self.client);
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
    }
}
