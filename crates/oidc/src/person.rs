//! A person by the claims of the ID token, completed from the user info if some are missing.

use openidconnect::UserInfoClaims;
use openidconnect::core::CoreGenderClaim;
use serde::Serialize;
use serde_json::Value;

use crate::client::OtherClaims;
use crate::{OidcError, invalid};

pub(crate) type UserInfo = UserInfoClaims<OtherClaims, CoreGenderClaim>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Person {
    /// The provider's id of the person, which never changes.
    pub subject: String,
    pub email: Option<String>,
    /// Whether the address is the person's; `None` if the provider does not say.
    pub is_email_verified: Option<bool>,
    pub name: Option<String>,
    /// `None` if the provider says nothing about groups.
    pub groups: Option<Vec<String>>,
    /// The provider's id of this session.
    pub session: Option<String>,
    /// When the person authenticated, in seconds since 1970; `None` if the provider does not say.
    pub authenticated_at: Option<u64>,
}

impl Person {
    pub(crate) fn from_claims(claims: impl Serialize, groups_claim: &str) -> Result<Self, OidcError> {
        let claims = serde_json::to_value(claims).map_err(invalid)?;
        let text = |name: &str| claims.get(name)?.as_str().map(str::to_owned);
        Ok(Self {
            subject: text("sub").ok_or_else(|| OidcError::Invalid("it has no subject".into()))?,
            email: text("email"),
            is_email_verified: claims.get("email_verified").and_then(Value::as_bool),
            name: text("name").or_else(|| text("preferred_username")),
            groups: groups(&claims, groups_claim),
            session: text("sid"),
            authenticated_at: claims.get("auth_time").and_then(Value::as_u64),
        })
    }

    pub(crate) fn is_incomplete(&self) -> bool {
        self.email.is_none() || self.name.is_none() || self.groups.is_none()
    }

    /// Adds missing claims. Address and verification always come from the same source.
    pub(crate) fn complete_from(&mut self, other: Self) {
        if self.email.is_none() {
            (self.email, self.is_email_verified) = (other.email, other.is_email_verified);
        }
        self.name = self.name.take().or(other.name);
        self.groups = self.groups.take().or(other.groups);
    }
}

/// The claim is a list of strings or one string. Its name may be a path: `realm_access.roles`.
fn groups(claims: &Value, name: &str) -> Option<Vec<String>> {
    let at_path = || name.split('.').try_fold(claims, |value, part| value.get(part));
    match claims.get(name).or_else(at_path)? {
        Value::String(group) => Some(vec![group.clone()]),
        Value::Array(groups) => Some(groups.iter().filter_map(Value::as_str).map(str::to_owned).collect()),
        _ => None,
    }
}
