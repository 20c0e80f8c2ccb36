//! Public ids of accounts, sessions and links: 12 base62 characters, and a type for each kind.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use crate::StoreError;

const LEN: usize = 12;

/// `Of` is the tag of the kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id<Of>([u8; LEN], PhantomData<Of>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AccountTag {}
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SessionTag {}
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkTag {}

pub type AccountId = Id<AccountTag>;
pub type SessionId = Id<SessionTag>;
pub type LinkId = Id<LinkTag>;

impl<Of> Id<Of> {
    pub(crate) fn generate() -> Result<Self, StoreError> {
        let mut id = [0; LEN];
        id.copy_from_slice(chat::random_base62(LEN)?.as_bytes());
        Ok(Self(id, PhantomData))
    }

    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).expect("an id is ASCII by construction")
    }
}

/// A person in the console, where admission counts by person only.
impl admission::Client for AccountId {
    type Party = Self;

    fn parties(&self) -> impl Iterator<Item = Self> {
        std::iter::once(*self)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an id")]
pub struct IdError;

impl<Of> FromStr for Id<Of> {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let bytes: [u8; LEN] = text.as_bytes().try_into().map_err(|_| IdError)?;
        if bytes.iter().all(u8::is_ascii_alphanumeric) { Ok(Self(bytes, PhantomData)) } else { Err(IdError) }
    }
}

impl<Of> fmt::Display for Id<Of> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl<Of> fmt::Debug for Id<Of> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
