//! The sizes in which prompts are computed. Pure.

use serde::{Deserialize, Serialize};

/// The accepted time per token of a size, relative to the fastest size.
const NEARLY_AS_FAST: f64 = 1.03;
const LITTLE_WASTE: f64 = 1.25;

/// Sizes of prompt pieces, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pieces {
    /// The smallest size at which prompts are computed nearly at full speed.
    pub(crate) best: usize,
    /// The smallest size that wastes little time, used while others wait for their next token.
    pub(crate) smallest: usize,
}

impl Pieces {
    pub(crate) fn are_valid(self) -> bool {
        0 < self.smallest && self.smallest <= self.best
    }

    /// From the measured time per token of each size, in ascending order of size.
    pub(crate) fn from_times(seconds_per_token: &[(usize, f64)]) -> Self {
        let fastest = seconds_per_token.iter().map(|(_, seconds)| *seconds).fold(f64::INFINITY, f64::min);
        let within = |factor: f64| {
            let found = seconds_per_token.iter().find(|(_, seconds)| *seconds <= fastest * factor);
            found.map_or(1, |(size, _)| *size)
        };
        Self { best: within(NEARLY_AS_FAST), smallest: within(LITTLE_WASTE) }
    }

    /// The number of tokens that take this time, within the bounds of the sizes.
    pub(super) fn tokens(self, seconds: f64, seconds_per_token: f64) -> usize {
        ((seconds / seconds_per_token) as usize / self.smallest * self.smallest).clamp(self.smallest, self.best)
    }
}
