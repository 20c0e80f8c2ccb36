//! Prices per million tokens, and the cost of recorded tokens. All are whole numbers, so that sums are exact: a price is
//! in millionths of the currency, a cost in millionths of those. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::project::Project;
use crate::rollup::Figures;

/// Decimals of a price, and twice as many of a cost.
const PRICE_DECIMALS: usize = 6;
const COST_DECIMALS: usize = 2 * PRICE_DECIMALS;

/// The price of a million tokens, in millionths of the currency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenPrice(u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a price is an amount such as 0.20, at most {} and with at most {PRICE_DECIMALS} decimals; thousands have no comma",
    TokenPrice::MAX
)]
pub struct TokenPriceError;

impl TokenPrice {
    /// In the currency. Far above any real price, and far below an overflow.
    pub const MAX: u64 = 1_000_000;

    /// The form in the database.
    pub(crate) fn micros(self) -> u64 {
        self.0
    }

    pub(crate) fn from_micros(micros: u64) -> Self {
        Self(micros)
    }
}

impl FromStr for TokenPrice {
    type Err = TokenPriceError;

    /// With a decimal point or comma. A comma that could separate thousands is refused.
    fn from_str(text: &str) -> Result<Self, TokenPriceError> {
        let groups_thousands =
            |(whole, rest): (&str, &str)| rest.len() == 3 && !whole.trim_start_matches('0').is_empty();
        if text.trim().split_once(',').is_some_and(groups_thousands) {
            return Err(TokenPriceError);
        }
        let text = text.trim().replace(',', ".");
        let (whole, decimals) = text.split_once('.').unwrap_or((&text, ""));
        let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        let is_sound = is_number(whole) && is_number(decimals) && !(whole.is_empty() && decimals.is_empty());
        if !is_sound || whole.len() > 9 || decimals.len() > PRICE_DECIMALS {
            return Err(TokenPriceError);
        }
        let micros: u64 = format!("{whole}{decimals:0<PRICE_DECIMALS$}").parse().map_err(|_| TokenPriceError)?;
        (micros <= Self::MAX * 1_000_000).then_some(Self(micros)).ok_or(TokenPriceError)
    }
}

/// With at least two decimals.
impl fmt::Display for TokenPrice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&decimal(self.0.into(), PRICE_DECIMALS))
    }
}

/// The price of a million prompt tokens and of a million completion tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Price {
    pub prompt: TokenPrice,
    pub completion: TokenPrice,
}

/// The code of a currency, such as EUR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Currency([u8; 3]);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a currency is three letters, such as EUR")]
pub struct CurrencyError;

impl Currency {
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("these are letters")
    }
}

impl FromStr for Currency {
    type Err = CurrencyError;

    fn from_str(text: &str) -> Result<Self, CurrencyError> {
        let letters: [u8; 3] = text.trim().as_bytes().try_into().map_err(|_| CurrencyError)?;
        let is_code = letters.iter().all(u8::is_ascii_alphabetic);
        if is_code { Ok(Self(letters.map(|letter| letter.to_ascii_uppercase()))) } else { Err(CurrencyError) }
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
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
        let amount = |tokens: u64, price: TokenPrice| u128::from(tokens) * u128::from(price.0);
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

/// A number in units of its last decimal as text, without trailing zeros, but with at least two decimals.
fn decimal(number: u128, decimals: usize) -> String {
    let unit = 10u128.pow(decimals as u32);
    let rest = format!("{:0decimals$}", number % unit);
    format!("{}.{:0<2}", number / unit, rest.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollup::Measured;
    use proptest::prelude::*;

    fn price(prompt: &str, completion: &str) -> Price {
        Price { prompt: prompt.parse().unwrap(), completion: completion.parse().unwrap() }
    }

    fn figures(prompt: u64, completion: u64) -> Figures {
        let measured = |sum| Measured { sum, count: 2 };
        Figures { requests: 3, prompt: measured(prompt), completion: measured(completion), ..Figures::default() }
    }

    #[test]
    fn prices_are_parsed_and_formatted_exactly() {
        for (typed, written) in [
            ("0.2", "0.20"),
            ("12", "12.00"),
            ("0,80", "0.80"),
            ("0,075", "0.075"),
            ("1.125", "1.125"),
            (".000001", "0.000001"),
            ("0", "0.00"),
        ] {
            assert_eq!(typed.parse::<TokenPrice>().unwrap().to_string(), written);
        }
        for wrong in [
            "",
            ".",
            "-1",
            "1e3",
            "0.0000001",
            "1000001",
            "1.2.3",
            "1,000",
            "12,500",
            "one",
            "٣",
            "99999999999999999999",
        ] {
            assert_eq!(wrong.parse::<TokenPrice>(), Err(TokenPriceError), "{wrong:?}");
        }
        assert_eq!("eur".parse::<Currency>().unwrap().as_str(), "EUR");
        assert!("€".parse::<Currency>().is_err() && "EURO".parse::<Currency>().is_err());
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
            let price = Some(Price { prompt: TokenPrice(prompt), completion: TokenPrice(completion) });
            let (mut all, mut sum) = (Figures::default(), Cost::default());
            for (prompt, completion) in tokens {
                all.merge(&figures(prompt, completion));
                sum.merge(&Cost::from_figures(&figures(prompt, completion), price));
            }
            prop_assert_eq!(sum, Cost::from_figures(&all, price));
        }

        #[test]
        fn a_price_round_trips(micros in 0..=TokenPrice::MAX * 1_000_000) {
            prop_assert_eq!(TokenPrice(micros).to_string().parse(), Ok(TokenPrice(micros)));
        }
    }
}
