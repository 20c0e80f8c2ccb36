//! Who may come in when not all can: a fair share, decided purely, and the permit that holds it.
//!
//! A party may hold up to four times the places that are still free. Alone it gets four fifths of all; however many it
//! asks for, a newcomer finds a place. Nobody waits: there is room, or there is a refusal.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

/// How many times the free places one party may hold.
const GREED: usize = 4;

/// The rule and its counts.
#[derive(Debug)]
pub(crate) struct FairShare<Party> {
    places: usize,
    taken: usize,
    held: HashMap<Party, usize>,
}

impl<Party: Eq + Hash> FairShare<Party> {
    pub(crate) fn new(places: usize) -> Self {
        Self { places, taken: 0, held: HashMap::new() }
    }

    /// Takes a place for a party; `false` if it may not have one.
    pub(crate) fn enter(&mut self, party: Party) -> bool {
        let free = self.places - self.taken;
        let held = self.held.get(&party).copied().unwrap_or(0);
        let may = free > 0 && held < GREED * free;
        if may {
            self.taken += 1;
            self.held.insert(party, held + 1);
        }
        may
    }

    /// Gives a party's place back.
    pub(crate) fn leave(&mut self, party: &Party) {
        if let Some(held) = self.held.get_mut(party) {
            self.taken -= 1;
            *held -= 1;
            if *held == 0 {
                self.held.remove(party);
            }
        }
    }
}

/// A fair share that threads use together.
pub(crate) struct Admission<Party: Eq + Hash>(Arc<Mutex<FairShare<Party>>>);

impl<Party: Eq + Hash + Clone> Admission<Party> {
    pub(crate) fn new(places: usize) -> Self {
        Self(Arc::new(Mutex::new(FairShare::new(places))))
    }

    /// A place for a party, held until the permit is dropped; `None` if there is no room.
    pub(crate) fn enter(&self, party: Party) -> Option<Permit<Party>> {
        let entered = self.0.lock().unwrap_or_else(PoisonError::into_inner).enter(party.clone());
        entered.then(|| Permit { share: self.0.clone(), party })
    }

    /// How many places are taken, and how many there are.
    pub(crate) fn taken_of(&self) -> (usize, usize) {
        let share = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (share.taken, share.places)
    }
}

/// A place that is taken for as long as this lives.
pub(crate) struct Permit<Party: Eq + Hash> {
    share: Arc<Mutex<FairShare<Party>>>,
    party: Party,
}

impl<Party: Eq + Hash> Drop for Permit<Party> {
    fn drop(&mut self) {
        self.share.lock().unwrap_or_else(PoisonError::into_inner).leave(&self.party);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_greedy_party_leaves_room_for_a_newcomer() {
        let mut share = FairShare::new(100);
        let greedy = (0..1000).filter(|_| share.enter("greedy")).count();
        assert_eq!(greedy, 80);
        assert!(share.enter("newcomer"));
    }

    #[test]
    fn the_last_place_of_one_is_a_place() {
        let mut share = FairShare::new(1);
        assert!(share.enter("a"));
        assert!(!share.enter("b"));
        share.leave(&"a");
        assert!(share.enter("b"));
    }

    proptest! {
        #[test]
        fn places_are_counted_exactly_and_never_exceeded(places in 1..50usize, steps in proptest::collection::vec((0..5u8, any::<bool>()), 0..400)) {
            let mut share = FairShare::new(places);
            let mut inside = Vec::new();
            for (party, comes) in steps {
                if comes {
                    let held = inside.iter().filter(|&&other| other == party).count();
                    let free = places - inside.len();
                    prop_assert_eq!(share.enter(party), free > 0 && held < GREED * free);
                    if share.taken > inside.len() {
                        inside.push(party);
                    }
                } else if let Some(at) = inside.iter().position(|&other| other == party) {
                    share.leave(&inside.swap_remove(at));
                } else {
                    share.leave(&party);
                }
                prop_assert_eq!(share.taken, inside.len());
                prop_assert!(share.taken <= places);
                prop_assert_eq!(share.held.values().sum::<usize>(), inside.len());
            }
        }
    }
}
