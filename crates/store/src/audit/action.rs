//! Entries of the audit log: an action with its details, and its subject. Both are data; `format` turns them into a
//! sentence. A new action is a variant here and an arm in `format`. Names are stored, so they must not change.

use std::fmt;

use chat::{KeyId, Timestamp};
use serde::de::value::StrDeserializer;
use serde::de::{DeserializeOwned, IntoDeserializer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::StoreError;
use crate::values::{Account, AccountId, Currency, LimitKind, LinkId, Project, Role, SessionId, TokenPrice, Viewer};

/// The variant's name in kebab case is the action's name, and its fields are the details.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", content = "details", rename_all = "kebab-case")]
pub enum AuditAction {
    CreatedKey,
    RenamedKey {
        from: String,
    },
    RevokedKey,
    RotatedKey {
        /// How long the old secret still works.
        overlap_seconds: u64,
    },
    EndedOverlap,
    SetKeyExpiry {
        #[serde(with = "time")]
        at: Timestamp,
    },
    RemovedKeyExpiry,
    AllowedCompletions,
    ForbadeCompletions,
    ChangedKeyNote,
    MovedKey {
        project: String,
    },
    RemovedKeyFromProject,
    /// `None`: to no person.
    GaveKey {
        to: Option<String>,
    },
    Limited {
        #[serde(with = "text")]
        kind: LimitKind,
        amount: u64,
    },
    RemovedLimit {
        #[serde(with = "text")]
        kind: LimitKind,
    },
    SetPrice {
        #[serde(with = "text")]
        prompt: TokenPrice,
        #[serde(with = "text")]
        completion: TokenPrice,
        #[serde(with = "text")]
        currency: Currency,
    },
    RemovedPrice,
    SignedIn {
        method: SignInMethod,
        /// The identity provider's issuer.
        issuer: Option<String>,
    },
    FailedSignIn {
        count: u64,
    },
    FailedSecondFactor {
        count: u64,
    },
    /// By a person who is signed in.
    FailedConfirmation {
        count: u64,
    },
    FailedPasskey {
        count: u64,
    },
    RefusedProviderSignIn {
        reason: ProviderRefusal,
        count: u64,
    },
    EndedSession,
    EndedOtherSessions {
        count: u64,
    },
    EndedSessions {
        count: u64,
    },
    ChangedPassword,
    ResetPassword,
    ChangedOwnName {
        name: String,
    },
    ChangedProfile {
        name: String,
        email: String,
    },
    GaveRole {
        #[serde(with = "text")]
        role: Role,
    },
    DisabledAccount {
        /// `None`: the keys keep working.
        revoked_keys: Option<u64>,
    },
    EnabledAccount,
    DeletedAccount {
        revoked_keys: u64,
    },
    RevokedKeys {
        count: u64,
    },
    AddedAuthenticatorApp,
    RemovedAuthenticatorApp,
    AddedPasskey,
    RemovedPasskey,
    CreatedRecoveryCodes,
    UsedRecoveryCode,
    RemovedSecondFactors,
    RequiredSecondFactor,
    MadeSecondFactorOptional,
    Invited {
        #[serde(with = "text")]
        role: Role,
    },
    CreatedResetLink,
    WithdrewLink,
    Joined {
        #[serde(with = "text")]
        role: Role,
        invited_by: String,
    },
    JoinedByProvider {
        issuer: String,
    },
    ConnectedToProvider {
        issuer: String,
    },
    DisconnectedFromProvider,
    AllowedReturn,
}

impl AuditAction {
    /// The action's name, and its details as JSON.
    pub(crate) fn to_columns(&self) -> (String, String) {
        let value = serde_json::to_value(self).expect("an action is names, texts and numbers");
        let name = value["action"].as_str().unwrap_or_default().to_owned();
        let details = value.get("details").unwrap_or(&Value::Object(Map::new())).to_string();
        (name, details)
    }

    /// `None` if this version does not know the action.
    pub fn from_columns(name: &str, details: &str) -> Option<Self> {
        let details: Value = serde_json::from_str(details).ok()?;
        let mut value = Map::from_iter([("action".to_owned(), Value::from(name))]);
        if details.as_object().is_some_and(|details| !details.is_empty()) {
            value.insert("details".to_owned(), details);
        }
        serde_json::from_value(Value::Object(value)).ok()
    }
}

/// How a person was authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SignInMethod {
    Password,
    Passkey,
    /// By the identity provider.
    Provider,
}

impl fmt::Display for SignInMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Why a person whom the identity provider had authenticated was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProviderRefusal {
    Disabled,
    /// The person was deleted here, and no administrator has allowed the return.
    Deleted,
    MissingGroup,
    MissingEmail,
    /// The owner of the address would be locked out.
    UnverifiedEmail,
    /// There is an account with the address, and the provider has not verified that it is the person's.
    EmailTaken,
    /// The account with the address belongs to another person of the provider, which may have given the address away.
    ConnectedElsewhere,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SubjectKind {
    Key,
    Person,
    /// No account, one that cannot sign in, or several.
    UnknownPerson,
    Session,
    Link,
    Passkey,
    Project,
    Everyone,
    EachPerson,
}

impl fmt::Display for SubjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The variant with this name in kebab case.
pub(crate) fn named<T: DeserializeOwned>(name: &str, what: &'static str) -> Result<T, StoreError> {
    let name: StrDeserializer<'_, serde::de::value::Error> = name.into_deserializer();
    T::deserialize(name).map_err(|_| StoreError::Corrupt(what))
}

/// The subject of an action, with the name that it had at that time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditSubject {
    pub kind: SubjectKind,
    /// Empty if it has none.
    pub id: String,
    /// The e-mail address of a person, the note of a link.
    pub name: String,
}

impl AuditSubject {
    fn new(kind: SubjectKind, id: &str, name: &str) -> Self {
        Self { kind, id: id.to_owned(), name: name.to_owned() }
    }

    pub(crate) fn key(id: KeyId, name: &str) -> Self {
        Self::new(SubjectKind::Key, id.as_str(), name)
    }

    pub(crate) fn person(account: &Account) -> Self {
        Self::person_with(account.id, account.email.as_str())
    }

    /// A viewer as a subject.
    pub(crate) fn viewer(viewer: &Viewer) -> Self {
        viewer.account().map_or_else(|| Self::person_named("operator"), Self::person)
    }

    pub(crate) fn person_with(id: AccountId, email: &str) -> Self {
        Self::new(SubjectKind::Person, id.as_str(), email)
    }

    /// A person whose account id is not known.
    pub(crate) fn person_named(name: &str) -> Self {
        Self::new(SubjectKind::Person, "", name)
    }

    pub(crate) fn unknown_person(name: &str) -> Self {
        Self::new(SubjectKind::UnknownPerson, "", name)
    }

    pub(crate) fn session(id: SessionId) -> Self {
        Self::new(SubjectKind::Session, id.as_str(), "")
    }

    pub(crate) fn link(id: LinkId, note: &str) -> Self {
        Self::new(SubjectKind::Link, id.as_str(), note)
    }

    pub(crate) fn passkey(id: &str, name: &str) -> Self {
        Self::new(SubjectKind::Passkey, id, name)
    }

    /// `None`: all others.
    pub(crate) fn project(project: Option<&Project>) -> Self {
        Self::new(SubjectKind::Project, "", project.map_or("", Project::as_str))
    }

    pub(crate) fn everyone() -> Self {
        Self::new(SubjectKind::Everyone, "", "everyone")
    }

    pub(crate) fn each_person() -> Self {
        Self::new(SubjectKind::EachPerson, "", "each person")
    }
}

/// A value in its text form.
mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(value: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>, T: FromStr>(deserializer: D) -> Result<T, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(|_| D::Error::custom("a malformed value"))
    }
}

/// A time as RFC 3339.
mod time {
    use chat::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::database::clock::utc;

    pub(crate) fn serialize<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&utc(*time))
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(deserializer: D) -> Result<Timestamp, D::Error> {
        let text = String::deserialize(deserializer)?;
        humantime::parse_rfc3339(&text).map(Timestamp::from).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_round_trip_through_their_columns() {
        let actions = [
            (AuditAction::CreatedKey, "created-key", "{}"),
            (AuditAction::RotatedKey { overlap_seconds: 86_400 }, "rotated-key", r#"{"overlap_seconds":86400}"#),
            (AuditAction::GaveKey { to: None }, "gave-key", r#"{"to":null}"#),
            (
                AuditAction::SetKeyExpiry { at: Timestamp::from_seconds(1_900_000_000) },
                "set-key-expiry",
                r#"{"at":"2030-03-17T17:46:40Z"}"#,
            ),
            (
                AuditAction::Limited { kind: LimitKind::RequestsPerMinute, amount: 4 },
                "limited",
                r#"{"kind":"requests-per-minute","amount":4}"#,
            ),
            (AuditAction::GaveRole { role: Role::Admin }, "gave-role", r#"{"role":"admin"}"#),
        ];
        for (action, name, details) in actions {
            assert_eq!(action.to_columns(), (name.to_owned(), details.to_owned()));
            assert_eq!(AuditAction::from_columns(name, details), Some(action));
        }
        assert_eq!(AuditAction::from_columns("flew-to-the-moon", "{}"), None);
    }

    #[test]
    fn stored_names_do_not_change() {
        for (kind, name) in [
            (SubjectKind::Key, "key"),
            (SubjectKind::Person, "person"),
            (SubjectKind::UnknownPerson, "unknown-person"),
            (SubjectKind::Session, "session"),
            (SubjectKind::Link, "link"),
            (SubjectKind::Passkey, "passkey"),
            (SubjectKind::Project, "project"),
            (SubjectKind::Everyone, "everyone"),
            (SubjectKind::EachPerson, "each-person"),
        ] {
            assert_eq!(kind.to_string(), name);
            assert_eq!(named::<SubjectKind>(name, "subject").unwrap(), kind);
        }
        for (method, name) in [
            (SignInMethod::Password, "password"),
            (SignInMethod::Passkey, "passkey"),
            (SignInMethod::Provider, "provider"),
        ] {
            assert_eq!(method.to_string(), name);
            assert_eq!(named::<SignInMethod>(name, "sign-in method").unwrap(), method);
        }
        assert!(named::<SubjectKind>("moon", "subject").is_err());
    }
}
