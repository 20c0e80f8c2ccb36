//! What part of a prompt decides where it goes, pure.
//!
//! A conversation stays with one member, which holds its history. Those below the same long system prompt stay with a few members,
//! its circle, so that not everyone's cache has to hold every system prompt. By the simulation (200 members, three thousand system
//! prompts, caches that hold a part of them) that finds 70 % of all prompt tokens in caches, against 47 % by conversation alone; with caches
//! three times as large (40 members) still some hundredths more. By the system prompt alone, conversations wander among those
//! that share it, and a member's load depends on whose system prompts it got: it was slower than either.

use std::hash::Hasher;

use chat::{ChatRequest, Role};
use siphasher::sip::SipHasher13;

/// How much of each message takes part in the affinity of a conversation.
const OWN_BYTES: usize = 2_048;
/// How much of a system prompt takes part in that of its circle. A shorter one is computed in no time, and what is woven in
/// behind it differs from request to request.
const SHARED_BYTES: usize = 512;
/// Members in a circle, about.
const CIRCLE: usize = 4;

/// Where the beginning of a prompt belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Affinity {
    /// A long system prompt, hashed.
    shared: Option<u64>,
    /// Everything up to the first user message, which a conversation repeats every lease, hashed.
    own: u64,
}

impl Affinity {
    /// The affinity of a request.
    pub fn of(request: &ChatRequest) -> Self {
        let messages = request.messages();
        let first = messages.first().filter(|first| first.role() == Role::System);
        let shared =
            first.and_then(|first| first.content().as_bytes().get(..SHARED_BYTES)).map(|text| stable_hash(&[text]));
        let mut own = SipHasher13::new();
        for message in messages {
            let text = message.content().as_bytes();
            own.write(&text[..text.len().min(OWN_BYTES)]);
            if message.role() == Role::User {
                break;
            }
        }
        Self { shared, own: own.finish() }
    }

    /// An affinity of these numbers, for simulations.
    pub fn from_numbers(shared: Option<u64>, own: u64) -> Self {
        Self { shared: shared.map(mixed), own: mixed(own) }
    }

    /// The part of so many members that is a circle. It changes only when they double, because every change moves prefixes.
    pub(crate) fn circle(members: usize) -> f64 {
        CIRCLE as f64 / members.next_power_of_two() as f64
    }

    /// How much this prefix belongs to a member that deserves that part of a full share: the highest of all members wins
    /// (rendezvous hashing), so that adding, losing or shedding one moves no other member's prefixes.
    pub(crate) fn draw(self, identity: u64, deserved: f64, circle: f64) -> f64 {
        let own = even(self.own ^ identity);
        let own = if deserved < 1.0 { own.powf(deserved.recip()) } else { own };
        let is_in_circle = self.shared.is_some_and(|shared| even(shared ^ identity) < circle * deserved);
        if is_in_circle { 1.0 + own } else { own }
    }
}

/// SipHash-1-3 with zero keys. All replicas must agree on it, whatever their version or machine.
pub(crate) fn stable_hash(parts: &[&[u8]]) -> u64 {
    let mut hasher = SipHasher13::new();
    parts.iter().for_each(|part| hasher.write(part));
    hasher.finish()
}

/// A number between 0 and 1.
fn even(number: u64) -> f64 {
    (mixed(number) >> 11) as f64 / (1u64 << 53) as f64
}

/// A number in which every bit depends on every bit of another one. It is drawn for every member at every request, for which
/// the standard library's keyed hash would be ten times too slow.
fn mixed(number: u64) -> u64 {
    /// 2^64 divided by the golden ratio: odd, and without a pattern in its bits.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let fold = |number: u64| (number ^ (number >> 32)).wrapping_mul(SPREAD);
    let folded = fold(fold(number));
    folded ^ (folded >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn affinity(messages: &[(Role, &str)]) -> Affinity {
        let messages = messages.iter().map(|(role, text)| chat::Message::new(*role, (*text).into()).unwrap());
        Affinity::of(&ChatRequest::new(messages.collect(), Default::default(), Default::default()).unwrap())
    }

    #[test]
    fn a_conversation_keeps_its_affinity_as_it_grows() {
        let first = affinity(&[(Role::System, "be brief"), (Role::User, "hello")]);
        let second = affinity(&[
            (Role::System, "be brief"),
            (Role::User, "hello"),
            (Role::Assistant, "hi"),
            (Role::User, "how are you?"),
        ]);
        assert_eq!(first, second);
        assert_ne!(first, affinity(&[(Role::System, "be brief"), (Role::User, "good bye")]));
    }

    /// Another value here would move conversations between members while replicas of both versions run.
    #[test]
    fn hashes_are_the_same_in_every_version_and_on_every_machine() {
        assert_eq!(stable_hash(&[]), 0xd1fb_a762_150c_532c);
        assert_eq!(stable_hash(&[b"http://10.0.0.5:8000/v1", &[0xff]]), 0x370d_afd2_900e_d0b5);
        let long = "You are a clerk of the harbour office. ".repeat(40);
        let affinity = affinity(&[(Role::System, &long), (Role::User, "Gr\u{fc}\u{df} Gott")]);
        assert_eq!(affinity, Affinity { shared: Some(0xa8c9_ca17_d764_9ab6), own: 0x4bbd_7f4a_fe3d_085f });
        assert_eq!(mixed(1), 0xab16_9ebd_5d0c_32dc);
    }

    #[test]
    fn a_long_system_prompt_has_a_circle_of_a_few_members() {
        let long = "You are a clerk of the harbour office. ".repeat(40);
        let below = |system: &str, text: &str| affinity(&[(Role::System, system), (Role::User, text)]);
        let (one, other) = (below(&long, "one"), below(&format!("{long}\n\nToday's facts."), "other"));
        assert_eq!(one.shared, other.shared);
        assert_ne!(one, other);
        assert_eq!(below("be brief", "one").shared, None);
        assert_eq!(affinity(&[(Role::User, &long)]).shared, None);

        let members: Vec<u64> = (0..200).map(|number| mixed(number + 1_000_000)).collect();
        let circle = |affinity: Affinity, deserved| {
            let part = Affinity::circle(members.len());
            members.iter().filter(|member| affinity.draw(**member, deserved, part) >= 1.0).count()
        };
        let sizes = |deserved| (0..1000).map(move |number| circle(Affinity::from_numbers(Some(number), 0), deserved));
        let mean = sizes(1.0).sum::<usize>() as f64 / 1000.0;
        assert!((2.0..4.5).contains(&mean), "{mean}");
        assert!(sizes(0.1).sum::<usize>() < 500, "who is slow belongs to few");
    }
}
