//! The cost of recorded tokens, in millionths of a price's unit, so that sums are exact. Pure.

use std::collections::BTreeMap;

use crate::usage::rollup::Figures;
use crate::values::{Currency, PRICE_DECIMALS, Project, TokenPrice, decimal};

const COST_DECIMALS: usize = 2 * PRICE_DECIMALS;

/// The price of a million prompt tokens and of a million completion tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Price {
    pub prompt: TokenPrice,
    pub completion: TokenPrice,
}

/// All prices of an installation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PriceList {
    /// `None` if there is no price.
    pub currency: Option<Currency>,
    /// For projects without a price, and keys without a project.
    pub default: Option<Price>,
    pub projects: BTreeMap<Project, Price>,
}

impl PriceList {
    pub fn is_empty(&self) -> bool {
        self.default.is_none() && self.projects.is_empty()
    }

    pub(crate) fn price_for(&self, project: Option<&Project>) -> Option<Price> {
        project.and_then(|project| self.projects.get(project)).copied().or(self.default)
    }
}

/// The cost of requests at current prices. Unmeasured tokens and keys without a price cost nothing; `requests` is the
/// number of requests in the cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    /// In millionths of a millionth of the currency.
    trillionths: u128,
    /// Requests with both token counts measured, and a price.
    pub requests: u64,
}

impl Cost {
    pub(crate) fn from_figures(figures: &Figures, price: Option<Price>) -> Self {
        let Some(Price { prompt, completion }) = price else { return Self::default() };
        let amount = |tokens: u64, price: TokenPrice| u128::from(tokens) * u128::from(price.micros());
        Self {
            trillionths: amount(figures.prompt.sum, prompt) + amount(figures.completion.sum, completion),
            requests: figures.prompt.count.min(figures.completion.count),
        }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.trillionths += other.trillionths;
        self.requests += other.requests;
    }

    /// The exact amount, with at least two decimals; for programs.
    pub fn exact(&self) -> String {
        decimal(self.trillionths, COST_DECIMALS)
    }

    /// Rounded half up to `decimals` decimals.
    pub fn rounded(&self, decimals: usize) -> String {
        let unit = 10u128.pow(COST_DECIMALS.saturating_sub(decimals) as u32);
        let rounded = (self.trillionths + unit / 2) / unit;
        let (whole, rest) = (rounded / 10u128.pow(decimals as u32), rounded % 10u128.pow(decimals as u32));
        format!("{whole}.{rest:0decimals$}")
    }

    pub fn is_at_least_cents(&self, cents: u32) -> bool {
        self.trillionths >= u128::from(cents) * 10u128.pow(COST_DECIMALS as u32 - 2)
    }

    pub fn is_zero(&self) -> bool {
        self.trillionths == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::rollup::Measured;
    use proptest::prelude::*;

    fn price(prompt: &str, completion: &str) -> Price {
        Price { prompt: prompt.parse().unwrap(), completion: completion.parse().unwrap() }
    }

    fn figures(prompt: u64, completion: u64) -> Figures {
        let measured = |sum| Measured { sum, count: 2 };
        Figures { requests: 3, prompt: measured(prompt), completion: measured(completion), ..Figures::default() }
    }

    #[test]
    fn a_cost_is_tokens_times_price() {
        let cost = Cost::from_figures(&figures(1_500_000, 250_000), Some(price("0.20", "0.80")));
        assert_eq!((cost.exact().as_str(), cost.requests), ("0.50", 2));
        let small = Cost::from_figures(&figures(1, 0), Some(price("0.2", "0.8")));
        assert_eq!((small.exact(), small.rounded(4)), ("0.0000002".into(), "0.0000".into()));
        assert_eq!(Cost::from_figures(&figures(25_000, 0), Some(price("0.2", "0"))).rounded(2), "0.01", "half up");
        assert_eq!(Cost::from_figures(&figures(1, 1), None), Cost::default());
    }

    #[test]
    fn a_project_without_a_price_has_the_default() {
        let search = Project::parse("search").unwrap();
        let mut list = PriceList { default: Some(price("1", "1")), ..PriceList::default() };
        assert_eq!(list.price_for(Some(&search)), Some(price("1", "1")));
        list.projects.insert(search.clone(), price("2", "3"));
        assert_eq!(list.price_for(Some(&search)), Some(price("2", "3")));
        assert_eq!(list.price_for(None), Some(price("1", "1")));
    }

    proptest! {
        #[test]
    fn costs_of_parts_add_up_to_the_total(
            tokens in proptest::collection::vec((0..1u64 << 40, 0..1u64 << 40), 1..20),
            prompt in 0..=TokenPrice::MAX * 1_000_000,
            completion in 0..=TokenPrice::MAX * 1_000_000,
        ) {
            let price = Some(Price { prompt: TokenPrice::from_micros(prompt), completion: TokenPrice::from_micros(completion) });
            let (mut all, mut sum) = (Figures::default(), Cost::default());
            for (prompt, completion) in tokens {
                all.merge(&figures(prompt, completion));
                sum.merge(&Cost::from_figures(&figures(prompt, completion), price));
            }
            prop_assert_eq!(sum, Cost::from_figures(&all, price));
        }
    }
}
