//! The number of running requests of each person and key. Pure.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use crate::queue::Tag;

/// Running requests, by person and by key.
#[derive(Default)]
pub(super) struct InFlight {
    pub(super) people: HashMap<Arc<str>, usize>,
    keys: HashMap<Tag, usize>,
}

impl InFlight {
    pub(super) fn count(&self, tag: &Tag) -> (usize, usize) {
        let count = |found: Option<&usize>| found.copied().unwrap_or(0);
        (count(self.people.get(&tag.person)), count(self.keys.get(tag)))
    }

    pub(super) fn add(&mut self, tag: &Tag) {
        *self.people.entry(tag.person.clone()).or_default() += 1;
        *self.keys.entry(tag.clone()).or_default() += 1;
    }

    pub(super) fn remove(&mut self, tag: &Tag) {
        decrement(&mut self.people, &tag.person);
        decrement(&mut self.keys, tag);
    }
}

fn decrement<Party: Eq + Hash>(counts: &mut HashMap<Party, usize>, party: &Party) {
    if let Some(count) = counts.get_mut(party) {
        *count -= 1;
        if *count == 0 {
            counts.remove(party);
        }
    }
}
