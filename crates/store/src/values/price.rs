//! Prices per million tokens, as whole numbers in millionths of the currency, so that sums are exact. Pure.

use std::fmt;
use std::str::FromStr;

/// Decimals of a price.
pub(crate) const PRICE_DECIMALS: usize = 6;

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

/// A number in units of its last decimal as text, without trailing zeros, but with at least two decimals.
pub(crate) fn decimal(number: u128, decimals: usize) -> String {
    let unit = 10u128.pow(decimals as u32);
    let rest = format!("{:0decimals$}", number % unit);
    format!("{}.{:0<2}", number / unit, rest.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
            "", ".", "-1", "1e3", "0.0000001", "1000001", "1.2.3", "1,000", "12,500", "one", "٣",
            "99999999999999999999",
        ] {
            assert_eq!(wrong.parse::<TokenPrice>(), Err(TokenPriceError), "{wrong:?}");
        }
        assert_eq!("eur".parse::<Currency>().unwrap().as_str(), "EUR");
        assert!("€".parse::<Currency>().is_err() && "EURO".parse::<Currency>().is_err());
    }

    proptest! {
        #[test]
        fn a_price_round_trips(micros in 0..=TokenPrice::MAX * 1_000_000) {
            prop_assert_eq!(TokenPrice(micros).to_string().parse(), Ok(TokenPrice(micros)));
        }
    }
}
