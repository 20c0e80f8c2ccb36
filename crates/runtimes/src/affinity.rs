//! The parts of a prompt that decide which member gets it. Pure.
//!
//! A conversation stays with one member, whose cache holds its history. Conversations with the same long system prompt
//! stay within a small subset of the members, so that not every cache has to hold every system prompt. In the
//! simulation (200 members, 3,000 system prompts, caches that hold a part of them) 70 % of all prompt tokens were
//! cached, against 47 % by conversation alone; with 40 members and caches three times as large, still a few percent
//! more. Affinity by system prompt alone was slower than either: conversations moved among members, and load was uneven.

use std::hash::Hasher;

use chat::{ChatRequest, Role};
use siphasher::sip::SipHasher13;

/// The part of each message that is hashed.
const MAX_MESSAGE_BYTES: usize = 2_048;
/// The part of a system prompt that is hashed. A shorter prompt is cheap to compute and has no subset. The text that
/// grounding appends differs from request to request.
const SYSTEM_PROMPT_BYTES: usize = 512;
/// The approximate number of members in a subset.
const SUBSET_SIZE: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Affinity {
    /// The hash of a long system prompt.
    system_prompt: Option<u64>,
    /// The hash of all messages up to the first user message, which a conversation repeats in every turn.
    conversation: u64,
}

impl Affinity {
    pub fn from_request(request: &ChatRequest) -> Self {
        let messages = request.messages();
        let first = messages.first().filter(|first| first.role() == Role::System);
        let system_prompt = first
            .and_then(|first| first.content().as_bytes().get(..SYSTEM_PROMPT_BYTES))
            .map(|text| stable_hash(&[text]));
        let mut conversation = SipHasher13::new();
        for message in messages {
            let text = message.content().as_bytes();
            conversation.write(&text[..text.len().min(MAX_MESSAGE_BYTES)]);
            if message.role() == Role::User {
                break;
            }
        }
        Self { system_prompt, conversation: conversation.finish() }
    }

    /// For simulations.
    pub fn from_numbers(system_prompt: Option<u64>, conversation: u64) -> Self {
        Self { system_prompt: system_prompt.map(mix), conversation: mix(conversation) }
    }

    /// The fraction of all members in a subset. Changes only when their number doubles, because every change moves prefixes.
    pub(crate) fn subset_fraction(members: usize) -> f64 {
        SUBSET_SIZE as f64 / members.next_power_of_two() as f64
    }

    /// Weighted rendezvous hashing: the member with the highest score wins, so that adding, losing or shedding a member
    /// moves no other member's prefixes.
    pub(crate) fn score(self, name_hash: u64, share: f64, subset_fraction: f64) -> f64 {
        let score = unit_interval(self.conversation ^ name_hash);
        let score = if share < 1.0 { score.powf(share.recip()) } else { score };
        let is_in_subset = self
            .system_prompt
            .is_some_and(|system_prompt| unit_interval(system_prompt ^ name_hash) < subset_fraction * share);
        if is_in_subset { 1.0 + score } else { score }
    }
}

/// SipHash-1-3 with zero keys. Must be the same in all replicas, regardless of version or machine.
pub(crate) fn stable_hash(parts: &[&[u8]]) -> u64 {
    let mut hasher = SipHasher13::new();
    parts.iter().for_each(|part| hasher.write(part));
    hasher.finish()
}

/// Maps a number to [0, 1).
fn unit_interval(number: u64) -> f64 {
    (mix(number) >> 11) as f64 / (1u64 << 53) as f64
}

/// Mixes the bits of a number. Runs for every member at every request, for which SipHash would be ten times too slow.
fn mix(number: u64) -> u64 {
    /// 2^64 divided by the golden ratio.
    const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;
    let fold = |number: u64| (number ^ (number >> 32)).wrapping_mul(GOLDEN_RATIO);
    let folded = fold(fold(number));
    folded ^ (folded >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn affinity(messages: &[(Role, &str)]) -> Affinity {
        let messages = messages.iter().map(|(role, text)| chat::Message::new(*role, (*text).into()).unwrap());
        Affinity::from_request(&ChatRequest::new(messages.collect(), Default::default(), Default::default()).unwrap())
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

    /// Other values would move conversations between members while replicas of both versions run.
    #[test]
    fn hashes_are_the_same_in_every_version_and_on_every_machine() {
        assert_eq!(stable_hash(&[]), 0xd1fb_a762_150c_532c);
        assert_eq!(stable_hash(&[b"http://10.0.0.5:8000/v1", &[0xff]]), 0x370d_afd2_900e_d0b5);
        let long = "You are a clerk of the harbour office. ".repeat(40);
        let affinity = affinity(&[(Role::System, &long), (Role::User, "Gr\u{fc}\u{df} Gott")]);
        assert_eq!(
            affinity,
            Affinity { system_prompt: Some(0xa8c9_ca17_d764_9ab6), conversation: 0x4bbd_7f4a_fe3d_085f }
        );
        assert_eq!(mix(1), 0xab16_9ebd_5d0c_32dc);
    }

    #[test]
    fn a_long_system_prompt_has_a_subset_of_a_few_members() {
        let long = "You are a clerk of the harbour office. ".repeat(40);
        let below = |system: &str, text: &str| affinity(&[(Role::System, system), (Role::User, text)]);
        let (one, other) = (below(&long, "one"), below(&format!("{long}\n\nToday's facts."), "other"));
        assert_eq!(one.system_prompt, other.system_prompt);
        assert_ne!(one, other);
        assert_eq!(below("be brief", "one").system_prompt, None);
        assert_eq!(affinity(&[(Role::User, &long)]).system_prompt, None);

        let members: Vec<u64> = (0..200).map(|number| mix(number + 1_000_000)).collect();
        let subset = |affinity: Affinity, share| {
            let part = Affinity::subset_fraction(members.len());
            members.iter().filter(|member| affinity.score(**member, share, part) >= 1.0).count()
        };
        let sizes = |share| (0..1000).map(move |number| subset(Affinity::from_numbers(Some(number), 0), share));
        let mean = sizes(1.0).sum::<usize>() as f64 / 1000.0;
        assert!((2.0..4.5).contains(&mean), "{mean}");
        assert!(sizes(0.1).sum::<usize>() < 500, "a slow member is in few subsets");
    }
}
