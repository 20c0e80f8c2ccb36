//! Scopes: sets of requests that are counted together.

use std::fmt;
use std::str::FromStr;

use chat::KeyId;

use crate::StoreError;
use crate::values::AccountId;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    Everyone,
    /// All keys of an account.
    Owner(AccountId),
    /// Each account separately, including those that are created later. Has limits, but no requests.
    EachPerson,
    Key(KeyId),
}

impl Scope {
    /// The scopes in which a request of this key counts.
    pub(crate) fn all_of(key: KeyId, owner: Option<AccountId>) -> impl Iterator<Item = Self> {
        [Some(Self::Key(key)), owner.map(Self::Owner), Some(Self::Everyone)].into_iter().flatten()
    }
}

/// The form in the database.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everyone => Ok(()),
            Self::Owner(account) => write!(f, "@{account}"),
            Self::EachPerson => f.write_str("@"),
            Self::Key(key) => key.fmt(f),
        }
    }
}

impl FromStr for Scope {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let malformed = StoreError::Corrupt("scope");
        match (text, text.strip_prefix('@')) {
            ("", _) => Ok(Self::Everyone),
            (_, Some("")) => Ok(Self::EachPerson),
            (_, Some(account)) => account.parse().map(Self::Owner).map_err(|_| malformed),
            (key, None) => key.parse().map(Self::Key).map_err(|_| malformed),
        }
    }
}
