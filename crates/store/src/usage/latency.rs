//! Latencies in logarithmic buckets, eight per doubling. Counts add up in any order, and percentiles are off by at most
//! one sixteenth. Pure, with a compact form for each database.

use std::time::Duration;

use crate::StoreError;
use crate::database::sql::{FromColumn, Row};

/// A part of a request's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// From arrival until the row is queued: everything except `Persist`.
    Total,
    /// From arrival to the start of work.
    Queue,
    /// The request to Search.
    Search,
    /// The wait for the runtime.
    Inference,
    /// The commit of the row.
    Persist,
}

impl Phase {
    pub const ALL: [Self; 5] = [Self::Total, Self::Queue, Self::Search, Self::Inference, Self::Persist];

    /// The name in JSON and tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Total => "total",
            Self::Queue => "queue",
            Self::Search => "search",
            Self::Inference => "inference",
            Self::Persist => "persist",
        }
    }
}

const BUCKETS_PER_PHASE: u16 = 256;
const MAX_MICROS: u64 = (1 << 34) - 1;

/// Counts of latencies by phase and bucket. Empty buckets take no space.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Latencies {
    /// Slot (phase and bucket) and count, in the order of slots.
    counts: Vec<(u16, u64)>,
}

impl Latencies {
    pub(crate) fn add(&mut self, phase: Phase, micros: u64) {
        let micros = micros.min(MAX_MICROS);
        let slot = phase as u16 * BUCKETS_PER_PHASE + bucket(micros);
        match self.counts.binary_search_by_key(&slot, |&(slot, _)| slot) {
            Ok(at) => self.counts[at].1 += 1,
            Err(at) => self.counts.insert(at, (slot, 1)),
        }
    }

    pub fn merge(&mut self, other: &Self) {
        let (mut left, mut right) =
            (std::mem::take(&mut self.counts).into_iter().peekable(), other.counts.iter().peekable());
        while let (Some(&(a, x)), Some(&&(b, y))) = (left.peek(), right.peek()) {
            self.counts.push((a.min(b), if a <= b { x } else { 0 } + if b <= a { y } else { 0 }));
            left.next_if(|_| a <= b);
            right.next_if(|_| b <= a);
        }
        self.counts.extend(left);
        self.counts.extend(right);
    }

    pub fn count(&self, phase: Phase) -> u64 {
        self.counts_in(phase).map(|(_, count)| count).sum()
    }

    /// The percentile `share` (0 to 1) of a phase's latencies; `None` if none was counted.
    pub fn percentile(&self, phase: Phase, share: f64) -> Option<Duration> {
        let rank = (self.count(phase) as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        let (bucket, _) = self.counts_in(phase).find(|&(_, count)| {
            seen += count;
            seen >= rank
        })?;
        Some(Duration::from_micros(bucket_midpoint(bucket)))
    }

    fn counts_in(&self, phase: Phase) -> impl Iterator<Item = (u16, u64)> {
        let phase = phase as u16;
        let counts = self.counts.iter().filter(move |(slot, _)| slot / BUCKETS_PER_PHASE == phase);
        counts.map(|&(slot, count)| (slot % BUCKETS_PER_PHASE, count))
    }

    /// SQLite's form: pairs of slot and count as variable-length integers.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.counts.len() * 3);
        for &(slot, count) in &self.counts {
            push_varint(&mut bytes, slot.into());
            push_varint(&mut bytes, count);
        }
        bytes
    }

    /// Reads what `encode` wrote; `None` for anything else.
    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let mut counts = Vec::with_capacity(bytes.len() / 3);
        while !bytes.is_empty() {
            let slot = u16::try_from(take_varint(&mut bytes)?).ok()?;
            counts.push((slot, take_varint(&mut bytes)?));
        }
        counts.is_sorted_by(|(a, _), (b, _)| a < b).then_some(Self { counts })
    }
}

/// Bits of a packed number that hold the count; those above hold the slot.
const COUNT_BITS: u32 = 40;

impl Latencies {
    /// PostgreSQL's form: each number holds a count, with its slot in the upper bits.
    pub(crate) fn packed(&self) -> impl Iterator<Item = i64> {
        self.counts.iter().map(|&(slot, count)| i64::from(slot) << COUNT_BITS | count as i64)
    }

    /// Reads what `packed` wrote; `None` for anything else.
    pub(crate) fn unpack(packed: &[i64]) -> Option<Self> {
        let count = |each: i64| (each & ((1 << COUNT_BITS) - 1)) as u64;
        let pairs = packed.iter().map(|&each| Some((u16::try_from(each >> COUNT_BITS).ok()?, count(each))));
        let counts = pairs.collect::<Option<Vec<_>>>()?;
        counts.is_sorted_by(|(a, _), (b, _)| a < b).then_some(Self { counts })
    }
}

/// Adds two encoded forms; `None` if either is malformed.
pub(crate) fn merge_encoded(base: &[u8], added: &[u8]) -> Option<Vec<u8>> {
    let mut all = Latencies::decode(base)?;
    all.merge(&Latencies::decode(added)?);
    Some(all.encode())
}

/// Below 8 each number has its own bucket; above, each doubling has eight.
fn bucket(micros: u64) -> u16 {
    if micros < 8 {
        return micros as u16;
    }
    let exponent = micros.ilog2();
    let eighth = (micros >> (exponent - 3)) & 7;
    (exponent as u16 - 2) * 8 + eighth as u16
}

fn bucket_midpoint(bucket: u16) -> u64 {
    if bucket < 8 {
        return bucket.into();
    }
    let (octave, eighth) = (u32::from(bucket / 8 - 1), u64::from(bucket % 8));
    let width = 1 << octave;
    (8 + eighth) * width + width / 2
}

fn push_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

impl FromColumn for Latencies {
    fn from_column(row: &Row<'_>, column: usize) -> Result<Option<Self>, StoreError> {
        let latencies = match row {
            Row::Sqlite(row) => row.get_ref(column)?.as_blob().ok().and_then(Self::decode),
            Row::Postgres(row) => Self::unpack(&row.try_get::<_, Vec<i64>>(column)?),
        };
        latencies.map(Some).ok_or(StoreError::Corrupt("roll-up"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn latencies() -> impl Strategy<Value = Vec<(Phase, u64)>> {
        let phase = (0..Phase::ALL.len()).prop_map(|at| Phase::ALL[at]);
        proptest::collection::vec((phase, 0u64..1 << 36), 0..60)
    }

    fn counted(latencies: &[(Phase, u64)]) -> Latencies {
        let mut all = Latencies::default();
        latencies.iter().for_each(|&(phase, micros)| all.add(phase, micros));
        all
    }

    proptest! {
        #[test]
        fn sums_do_not_depend_on_order_or_grouping(a in latencies(), b in latencies()) {
            let mut left = counted(&a);
            left.merge(&counted(&b));
            let mut right = counted(&b);
            right.merge(&counted(&a));
            prop_assert_eq!(&left, &right);
            prop_assert_eq!(&left, &counted(&[a, b].concat()));
        }

        #[test]
        fn encoded_forms_add_up_like_decoded_ones(a in latencies(), b in latencies()) {
            let mut sum = counted(&a);
            sum.merge(&counted(&b));
            prop_assert_eq!(merge_encoded(&counted(&a).encode(), &counted(&b).encode()), Some(sum.encode()));
        }

        #[test]
        fn stored_forms_round_trip(a in latencies()) {
            let all = counted(&a);
            let packed: Vec<_> = all.packed().collect();
            prop_assert_eq!(Latencies::unpack(&packed), Some(all.clone()));
            prop_assert_eq!(Latencies::decode(&all.encode()), Some(all));
        }

        #[test]
        fn malformed_bytes_do_not_panic(noise: Vec<u8>) {
            if let Some(all) = Latencies::decode(&noise) {
                prop_assert!(all.counts.is_sorted());
            }
        }

        #[test]
        fn percentiles_are_off_by_at_most_a_sixteenth(
            micros in proptest::collection::vec(0u64..MAX_MICROS, 1..200),
            share in 0.0f64..=1.0,
        ) {
            let all = counted(&micros.iter().map(|&each| (Phase::Total, each)).collect::<Vec<_>>());
            let mut sorted = micros;
            sorted.sort_unstable();
            let rank = ((sorted.len() as f64 * share).ceil() as usize).max(1);
            let exact = sorted[rank - 1] as f64;
            let found = all.percentile(Phase::Total, share).unwrap().as_micros() as f64;
            prop_assert!((found - exact).abs() <= exact / 16.0 + 0.5, "exact {exact}, found {found}");
        }
    }
}
