//! A person by the claims of the ID token, completed from the user info if some are missing.

use openidconnect::core::CoreGenderClaim;
use openidconnect::{IdTokenClaims, UserInfoClaims};
use serde_json::Value;

use crate::client::OtherClaims;

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

/// The claims of either source.
pub(crate) struct Claims<'a> {
    subject: &'a str,
    email: Option<String>,
    is_email_verified: Option<bool>,
    name: Option<String>,
    others: &'a OtherClaims,
}

/// A macro, because both sources have methods of the same names but no common trait.
macro_rules! claims {
    ($claims:expr) => {{
        let name = $claims.name().and_then(|name| name.get(None)).map(|name| name.to_string());
        Claims {
            subject: $claims.subject().as_str(),
            email: $claims.email().map(|email| email.to_string()),
            is_email_verified: $claims.email_verified(),
            name: name.or_else(|| $claims.preferred_username().map(|name| name.to_string())),
            others: $claims.additional_claims(),
        }
    }};
}

impl<'a> Claims<'a> {
    pub(crate) fn of_id_token(claims: &'a IdTokenClaims<OtherClaims, CoreGenderClaim>) -> Self {
        claims!(claims)
    }

    pub(crate) fn of_user_info(claims: &'a UserInfo) -> Self {
        claims!(claims)
    }

    fn other(&self, name: &str) -> Option<&'a Value> {
        self.others.0.get(name)
    }

    fn text(&self, name: &str) -> Option<String> {
        self.other(name)?.as_str().map(str::to_owned)
    }

    /// The claim is a list of strings or one string. Its name may be a path: `realm_access.roles`.
    fn groups(&self, claim: &str) -> Option<Vec<String>> {
        let found = self.other(claim).or_else(|| {
            let (first, rest) = claim.split_once('.')?;
            rest.split('.').try_fold(self.other(first)?, |value, part| value.get(part))
        })?;
        match found {
            Value::String(group) => Some(vec![group.clone()]),
            Value::Array(groups) => Some(groups.iter().filter_map(Value::as_str).map(str::to_owned).collect()),
            _ => None,
        }
    }
}

impl Person {
    pub(crate) fn from_claims(claims: &Claims<'_>, groups_claim: &str, authenticated_at: Option<u64>) -> Self {
        Self {
            subject: claims.subject.to_owned(),
            email: claims.email.clone(),
            is_email_verified: claims.is_email_verified,
            name: claims.name.clone(),
            groups: claims.groups(groups_claim),
            session: claims.text("sid"),
            authenticated_at,
        }
    }

    pub(crate) fn is_incomplete(&self) -> bool {
        self.email.is_none() || self.name.is_none() || self.groups.is_none()
    }

    /// Adds missing claims. Address and verification always come from the same source.
    pub(crate) fn complete_from(&mut self, claims: &Claims<'_>, groups_claim: &str) {
        if self.email.is_none() {
            self.email.clone_from(&claims.email);
            self.is_email_verified = claims.is_email_verified;
        }
        self.name = self.name.take().or_else(|| claims.name.clone());
        self.groups = self.groups.take().or_else(|| claims.groups(groups_claim));
    }
}
