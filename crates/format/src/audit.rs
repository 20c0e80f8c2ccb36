//! Lines of the audit log: the sentence for each action, and the rows of exports.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};
use store::{AuditAction, AuditRecord, AuditSubject, ProviderRefusal, SignInMethod, SubjectKind};

use crate::limits::limit;
use crate::numbers::{count, number};
use crate::times::rfc3339_millis;
use crate::{exact_time, long_duration};

/// An action without its actor: `moved key first to project search`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sentence(Vec<Phrase>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phrase {
    Text(String),
    /// A name that people have chosen, of a key, a person or a project.
    Name(String),
}

impl Sentence {
    pub fn phrases(&self) -> &[Phrase] {
        &self.0
    }

    /// Each `*` stands for the next name.
    fn new(template: &str, names: &[&str]) -> Self {
        let (mut phrases, mut names) = (Vec::new(), names.iter());
        for (index, text) in template.split('*').enumerate() {
            if index > 0 {
                phrases.push(Phrase::Name(names.next().map_or_else(String::new, |name| (*name).to_owned())));
            }
            if !text.is_empty() {
                phrases.push(Phrase::Text(text.to_owned()));
            }
        }
        Self(phrases)
    }
}

impl fmt::Display for Sentence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(Phrase::Text(text) | Phrase::Name(text))| f.write_str(text))
    }
}

/// A line as a sentence. For an action that this version does not know, the sentence is the action's name.
pub fn sentence(line: &AuditRecord) -> Sentence {
    match AuditAction::from_columns(&line.action, &line.details) {
        Some(action) => describe(&action, &line.subject),
        None => Sentence::new(&format!("{} *", line.action.replace('-', " ")), &[&line.subject.name]),
    }
}

fn refusal(reason: ProviderRefusal) -> &'static str {
    match reason {
        ProviderRefusal::Disabled => "the account is disabled",
        ProviderRefusal::Deleted => "the account was deleted",
        ProviderRefusal::MissingGroup => "no group allows it",
        ProviderRefusal::MissingEmail => "the provider sends no e-mail address or name",
        ProviderRefusal::UnverifiedEmail => "the e-mail address is not verified",
        ProviderRefusal::EmailTaken => "the account exists, and the e-mail address is not verified",
        ProviderRefusal::ConnectedElsewhere => "the account is connected to another person",
    }
}

fn describe(action: &AuditAction, subject: &AuditSubject) -> Sentence {
    let name = subject.name.as_str();
    let of = noun(subject);
    let say = |template: &str| Sentence::new(template, &[name]);
    match action {
        AuditAction::CreatedKey => say("created key *"),
        AuditAction::RenamedKey { from } => Sentence::new("renamed key * to *", &[from, name]),
        AuditAction::RevokedKey => say("revoked key *"),
        AuditAction::RotatedKey { overlap_seconds: 0 } => say("rotated key *: the old secret stopped working"),
        AuditAction::RotatedKey { overlap_seconds } => {
            let overlap = long_duration(Duration::from_secs(*overlap_seconds));
            say(&format!("rotated key *: the old secret works for {overlap}"))
        }
        AuditAction::EndedOverlap => say("ended the overlap of key *: the old secret stopped working"),
        AuditAction::SetKeyExpiry { at } => say(&format!("set the expiry of key * to {}", exact_time(*at))),
        AuditAction::RemovedKeyExpiry => say("removed the expiry of key *"),
        AuditAction::AllowedCompletions => say("allowed completions with key *"),
        AuditAction::ForbadeCompletions => say("forbade completions with key *"),
        AuditAction::ChangedKeyNote => say("changed the note of key *"),
        AuditAction::MovedKey { project } => Sentence::new("moved key * to project *", &[name, project]),
        AuditAction::RemovedKeyFromProject => say("removed key * from its project"),
        AuditAction::GaveKey { to: Some(to) } => Sentence::new("gave key * to *", &[name, to]),
        AuditAction::GaveKey { to: None } => say("removed the owner of key *"),
        AuditAction::Limited { kind, amount } => say(&format!("limited {of} to {}", limit(*kind, *amount))),
        AuditAction::RemovedLimit { kind } => say(&format!("removed the limit of {} from {of}", kind.describe())),
        AuditAction::SetPrice { prompt, completion, currency } => say(&format!(
            "set the price of {of} to {prompt} {currency} per million prompt tokens and {completion} {currency} per \
             million completion tokens"
        )),
        AuditAction::RemovedPrice => say(&format!("removed the price of {of}")),
        AuditAction::SignedIn { method: SignInMethod::Password, .. } => say("signed in"),
        AuditAction::SignedIn { method: SignInMethod::Passkey, .. } => say("signed in with a passkey"),
        AuditAction::SignedIn { method: SignInMethod::Provider, issuer } => {
            Sentence::new("signed in at *", &[issuer.as_deref().unwrap_or_default()])
        }
        AuditAction::FailedSignIn { count } => say(&format!("failed{} to sign in as *", times(*count))),
        AuditAction::FailedSecondFactor { count } => {
            say(&format!("failed{} to enter the second factor of *", times(*count)))
        }
        AuditAction::FailedConfirmation { count } => {
            say(&format!("failed{} to confirm a change of the account", times(*count)))
        }
        AuditAction::FailedPasskey { count } => say(&format!("failed{} to sign in with a passkey as *", times(*count))),
        AuditAction::RefusedProviderSignIn { reason, count } => {
            say(&format!("was refused{} at the identity provider's sign-in as *: {}", times(*count), refusal(*reason)))
        }
        AuditAction::EndedSession => say("ended a session"),
        AuditAction::EndedOtherSessions { count: ended } => say(&format!("ended {}", count(*ended, "other session"))),
        AuditAction::EndedSessions { count: ended } => say(&format!("ended {} of *", count(*ended, "session"))),
        AuditAction::ChangedPassword => say("changed the password"),
        AuditAction::ResetPassword => say("reset the password"),
        AuditAction::ChangedOwnName { name } => Sentence::new("changed their name to *", &[name]),
        AuditAction::ChangedProfile { name: new, email } => {
            Sentence::new("changed name and address of * to *, *", &[name, new, email])
        }
        AuditAction::GaveRole { role } => say(&format!("gave the role {role} to *")),
        AuditAction::DisabledAccount { revoked_keys: None } => say("disabled the account of *"),
        AuditAction::DisabledAccount { revoked_keys: Some(revoked) } => {
            say(&format!("disabled the account of * and revoked {}", count(*revoked, "key")))
        }
        AuditAction::EnabledAccount => say("enabled the account of *"),
        AuditAction::DeletedAccount { revoked_keys } => {
            say(&format!("deleted the account of * and revoked {}", count(*revoked_keys, "key")))
        }
        AuditAction::RevokedKeys { count: revoked } => say(&format!("revoked {} of *", count(*revoked, "key"))),
        AuditAction::AddedAuthenticatorApp => say("added an authenticator app"),
        AuditAction::RemovedAuthenticatorApp => say("removed the authenticator app"),
        AuditAction::AddedPasskey => say("added passkey *"),
        AuditAction::RemovedPasskey => say("removed passkey *"),
        AuditAction::CreatedRecoveryCodes => say("created recovery codes"),
        AuditAction::UsedRecoveryCode => say("used a recovery code"),
        AuditAction::RemovedSecondFactors => say("removed the second factors of *"),
        AuditAction::RequiredSecondFactor => say("required a second factor for everyone"),
        AuditAction::MadeSecondFactorOptional => say("made second factors optional"),
        AuditAction::Invited { role } => say(&format!("invited * as {role}")),
        AuditAction::CreatedResetLink => say("created a link to reset the password of *"),
        AuditAction::WithdrewLink => say("withdrew the link for *"),
        AuditAction::Joined { role, invited_by } => {
            Sentence::new(&format!("joined as {role}, invited by *"), &[invited_by])
        }
        AuditAction::JoinedByProvider { issuer } => Sentence::new("joined through *", &[issuer]),
        AuditAction::ConnectedToProvider { issuer } => Sentence::new("connected the account to *", &[issuer]),
        AuditAction::AllowedReturn => say("allowed * to return through the identity provider"),
        AuditAction::DisconnectedFromProvider => say(&format!("disconnected {of} from the identity provider")),
    }
}

/// The subject within a sentence.
fn noun(subject: &AuditSubject) -> &'static str {
    match subject.kind {
        SubjectKind::Key => "key *",
        SubjectKind::Project if subject.name.is_empty() => "all other projects",
        SubjectKind::Project => "project *",
        SubjectKind::Everyone => "everyone",
        SubjectKind::EachPerson => "each person",
        _ => "*",
    }
}

fn times(count: u64) -> String {
    if count == 1 { String::new() } else { format!(" {} times", number(count)) }
}

/// The members of an audit row, which are the columns of the CSV.
pub const AUDIT_COLUMNS: [&str; 10] =
    ["number", "at", "actor", "action", "subject_kind", "subject_id", "subject", "details", "sentence", "address"];

/// A line of an export.
pub fn audit_row(record: &AuditRecord) -> Value {
    json!({
        "number": record.number,
        "at": rfc3339_millis(record.at),
        "actor": record.who,
        // The action's name, which stays the same in later versions.
        "action": record.action,
        "subject_kind": record.subject.kind,
        "subject_id": record.subject.id,
        "subject": record.subject.name,
        "details": serde_json::from_str::<Value>(&record.details).unwrap_or_default(),
        "sentence": sentence(record).to_string(),
        "address": record.address,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use chat::Timestamp;

    #[test]
    fn sentences_are_plain_english() {
        let key = (SubjectKind::Key, "bot");
        let everyone = (SubjectKind::Everyone, "everyone");
        let cases = [
            ("created-key", key, json!({}), "created key bot"),
            ("moved-key", key, json!({"project": "search"}), "moved key bot to project search"),
            ("rotated-key", key, json!({"overlap_seconds": 86_400}), "rotated key bot: the old secret works for 1 day"),
            ("rotated-key", key, json!({"overlap_seconds": 0}), "rotated key bot: the old secret stopped working"),
            (
                "limited",
                everyone,
                json!({"kind": "tokens-per-day", "amount": 4000}),
                "limited everyone to 4,000 tokens per day",
            ),
            (
                "removed-limit",
                (SubjectKind::Person, "ada@example.com"),
                json!({"kind": "requests-in-flight"}),
                "removed the limit of requests in flight from ada@example.com",
            ),
            ("removed-price", (SubjectKind::Project, ""), json!({}), "removed the price of all other projects"),
            (
                "failed-sign-in",
                (SubjectKind::Person, "ada@example.com"),
                json!({"count": 3}),
                "failed 3 times to sign in as ada@example.com",
            ),
            // An action of a later version.
            ("painted-key", key, json!({"colour": "blue"}), "painted key bot"),
        ];
        for (action, (kind, name), details, expected) in cases {
            let line = AuditRecord {
                number: 1,
                at: Timestamp::default(),
                who: "operator".into(),
                address: String::new(),
                action: action.into(),
                subject: AuditSubject { kind, id: String::new(), name: name.into() },
                details: details.to_string(),
            };
            assert_eq!(sentence(&line).to_string(), expected);
        }
    }
}
