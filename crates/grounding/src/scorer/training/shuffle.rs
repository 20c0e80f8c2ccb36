//! A small random number generator that gives the same order on every machine, independent of crate versions.

pub(super) struct Shuffle(u64);

impl Shuffle {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 31 bits.
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    pub(super) fn shuffle(&mut self, order: &mut [usize]) {
        for last in (1..order.len()).rev() {
            let bound = u64::try_from(last).unwrap_or(u64::MAX) + 1;
            order.swap(last, usize::try_from(u64::from(self.next()) % bound).unwrap_or(0));
        }
    }
}
