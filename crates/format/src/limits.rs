//! Limits in sentences.

use store::{LimitKind, Scope};

use crate::number;

/// The owner of a limit, in a sentence to the caller.
pub fn whose(scope: Scope) -> &'static str {
    match scope {
        Scope::Key(_) => "The key's",
        Scope::Owner(_) | Scope::EachPerson => "The key owner's",
        Scope::Everyone => "The service's",
    }
}

/// `10,000 tokens per day`, `1 request per day`.
pub fn limit(kind: LimitKind, amount: u64) -> String {
    let what = kind.describe();
    format!("{} {}", number(amount), if amount == 1 { what.replacen("s ", " ", 1) } else { what })
}
