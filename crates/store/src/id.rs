//! Public ids of what the console shows: 12 base62 characters, told apart by what they are ids of.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use crate::StoreError;

const LEN: usize = 12;

/// The public id of something.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id<Of>([u8; LEN], PhantomData<Of>);

/// What ids can be of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AccountTag {}
/// What ids can be of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SessionTag {}
/// What ids can be of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkTag {}

/// The id of an account.
pub type AccountId = Id<AccountTag>;
/// The id of a session.
pub type SessionId = Id<SessionTag>;
/// The id of a link.
pub type LinkId = Id<LinkTag>;

impl<Of> Id<Of> {
    pub(crate) fn generate() -> Result<Self, StoreError> {
        let mut id = [0; LEN];
        id.copy_from_slice(chat::random_base62(LEN)?.as_bytes());
        Ok(Self(id, PhantomData))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).expect("an id is ASCII by construction")
    }
}

/// Not an id.
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
