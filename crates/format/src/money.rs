//! Rounded costs, for people. Programs get the exact amount.

use store::{Cost, Currency};

/// `12.34 EUR`; four decimals below 1.
pub fn money(cost: Cost, currency: Currency) -> String {
    format!("{} {currency}", amount(cost))
}

/// The amount without the currency.
pub fn amount(cost: Cost) -> String {
    match cost {
        cost if cost.is_zero() => "0.00".into(),
        cost if cost.is_at_least_cents(100) => grouped(&cost.rounded(2)),
        cost => match cost.rounded(4).as_str() {
            "0.0000" => "<0.0001".into(),
            rounded => rounded.to_owned(),
        },
    }
}

fn grouped(amount: &str) -> String {
    let (whole, decimals) = amount.split_once('.').unwrap_or((amount, "00"));
    let groups: Vec<_> = whole.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    format!("{}.{decimals}", groups.join(","))
}
