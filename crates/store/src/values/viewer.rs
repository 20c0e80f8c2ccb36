//! Accounts, and viewers: the people who read and change data. The console and the command line do both through a `Viewer`, and every
//! query is limited to its scope.

use std::fmt;

use chat::Timestamp;

use crate::values::{AccountId, Email, SessionId};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    pub id: AccountId,
    pub email: Email,
    pub name: String,
    pub role: Role,
    pub created_at: Timestamp,
    pub signed_in_at: Option<Timestamp>,
    pub disabled_at: Option<Timestamp>,
}

/// A person who is signed in, or the operator at the command line. Only the store creates the former, from a session.
#[derive(Debug, Clone)]
pub struct Viewer {
    signed_in: Option<(Account, SessionId)>,
    address: String,
}

impl Viewer {
    /// A person who can open the database may do everything.
    pub fn operator() -> Self {
        Self { signed_in: None, address: "command line".into() }
    }

    pub(crate) fn signed_in(account: Account, session: SessionId, address: &str) -> Self {
        Self { signed_in: Some((account, session)), address: address.to_owned() }
    }

    /// `None` for the operator.
    pub fn account(&self) -> Option<&Account> {
        self.signed_in.as_ref().map(|(account, _)| account)
    }

    /// The account as it was when the request began, and the session; `None` for the operator.
    pub(crate) fn session(&self) -> Option<&(Account, SessionId)> {
        self.signed_in.as_ref()
    }

    /// Proof that the viewer is an administrator or the operator.
    pub fn admin(&self) -> Option<Admin<'_>> {
        self.account().is_none_or(|account| account.role == Role::Admin).then_some(Admin(self))
    }

    /// The account whose keys and requests the viewer may see; `None` for everyone's.
    pub(crate) fn scope(&self) -> Option<&AccountId> {
        self.account().filter(|account| account.role != Role::Admin).map(|account| &account.id)
    }

    pub(crate) fn id(&self) -> Option<AccountId> {
        self.account().map(|account| account.id)
    }

    /// The viewer's name in the audit log.
    pub(crate) fn name(&self) -> &str {
        self.account().map_or("operator", |account| account.email.as_str())
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }
}

/// A viewer who may do everything.
#[derive(Debug, Clone, Copy)]
pub struct Admin<'a>(pub(crate) &'a Viewer);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Everything: everyone's keys and usage, the team, the audit log.
    Admin,
    /// Their own keys and usage.
    Developer,
}

impl Role {
    pub const ALL: [Self; 2] = [Self::Developer, Self::Admin];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Developer => "developer",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl std::str::FromStr for Role {
    type Err = RoleError;

    fn from_str(text: &str) -> Result<Self, RoleError> {
        Self::ALL.into_iter().find(|role| role.as_str() == text).ok_or(RoleError)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the role is `admin` or `developer`")]
pub struct RoleError;
