//! Sign-in at the identity provider with OpenID Connect, and back-channel logout.
//!
//! Nothing is stored for an attempt: its secrets are derived from a cookie and a random number in `state`. So sign-in works
//! in several tabs and on any replica, and visitors cannot fill a table.

use std::net::IpAddr;
use std::sync::Arc;

use chat::Timestamp;
use http::StatusCode;
use maud::html;
use oidc::{AttemptSecrets, Person};
use store::{Email, PasswordTry, PersonName, ProvidedPerson, ProvidedSignInError, ProviderRefusal, Role, Token};
use subtle::ConstantTimeEq;
use url::Url;

use crate::Console;
use crate::page::error::{ConsoleError, ConsoleResult};
use crate::page::layout;
use crate::page::request::{ConsoleRequest, Fields};
use crate::page::response::ConsoleResponse;
use crate::page::session::{Anonymous, SignedIn};
use crate::sign_in::first_step::local_path;

pub const CALLBACK_PATH: &str = "/sign-in/provider/callback";
/// Room for one signed token.
const MAX_LOGOUT_BYTES: usize = 64 << 10;

/// The identity provider, and what its groups mean here.
pub struct IdentityProvider {
    pub client: oidc::Provider,
    /// Shown to people.
    pub name: String,
    /// Groups that may sign in; empty: everyone whom the provider knows.
    pub allowed_groups: Vec<String>,
    /// Groups of administrators; empty: roles are assigned in the console.
    pub admin_groups: Vec<String>,
    /// Whether every address counts as verified, regardless of the provider's claim.
    pub is_email_trusted: bool,
}

impl IdentityProvider {
    /// `Err` if the groups do not allow sign-in.
    fn role(&self, groups: &[String]) -> Result<Option<Role>, NotAllowed> {
        let is_in = |list: &[String]| groups.iter().any(|group| list.contains(group));
        let is_admin = is_in(&self.admin_groups);
        if !self.allowed_groups.is_empty() && !is_admin && !is_in(&self.allowed_groups) {
            return Err(NotAllowed);
        }
        let role = if is_admin { Role::Admin } else { Role::Developer };
        Ok((!self.admin_groups.is_empty()).then_some(role))
    }
}

#[derive(Debug, PartialEq, Eq)]
struct NotAllowed;

/// An attempt to sign in: a random number, and the path to open afterwards. Its `state` is `NUMBER.SIGNATURE.PATH`.
struct ProviderSignIn<'a> {
    number: String,
    next: &'a str,
}

impl<'a> ProviderSignIn<'a> {
    fn new(next: &'a str) -> ConsoleResult<Self> {
        let number = Token::generate().map_err(store::StoreError::from)?;
        Ok(Self { number: number.derive("provider attempt"), next: local_path(next) })
    }

    /// `None` if it was not made for the holder of this secret.
    fn parse(state: &'a str, secret: &Token) -> Option<Self> {
        let mut parts = state.splitn(3, '.');
        let (number, signature, next) = (parts.next()?, parts.next()?, parts.next()?);
        let attempt = Self { number: number.to_owned(), next: local_path(next) };
        let is_ours = attempt.signature(secret).as_bytes().ct_eq(signature.as_bytes()).into();
        (is_ours && attempt.next == next).then_some(attempt)
    }

    fn signature(&self, secret: &Token) -> String {
        secret.derive(&format!("provider state {} {}", self.number, self.next))
    }

    fn secrets(&self, secret: &Token) -> AttemptSecrets {
        AttemptSecrets {
            state: format!("{}.{}.{}", self.number, self.signature(secret), self.next),
            nonce: secret.derive(&format!("provider nonce {}", self.number)),
            code_verifier: secret.derive(&format!("provider code {}", self.number)),
        }
    }
}

/// Redirects to the provider.
pub(crate) async fn begin(visitor: &Anonymous<'_>, request: &ConsoleRequest) -> ConsoleResult {
    let provider = visitor.console.provider()?;
    let attempt = ProviderSignIn::new(request.query.get("next"))?;
    let again = !request.query.get("again").is_empty();
    match provider.client.authorization_url(&attempt.secrets(visitor.secret()), again).await {
        Ok(url) => Ok(visitor.with_cookie(ConsoleResponse::redirect(url.as_str()))),
        Err(error) => {
            tracing::error!(%error, "sign-in at the identity provider is unavailable");
            let text = format!("{} cannot be reached. Please try again in a few seconds.", provider.name);
            Ok(failure_page(visitor, StatusCode::SERVICE_UNAVAILABLE, &text))
        }
    }
}

/// The redirect back from the provider.
pub(crate) async fn finish(visitor: &Anonymous<'_>, request: &ConsoleRequest) -> ConsoleResult {
    let console = visitor.console;
    let provider = console.provider()?;
    let query = &request.query;
    let Some(attempt) = ProviderSignIn::parse(query.raw("state"), visitor.secret()) else {
        let text = "This sign-in has expired or was begun in another browser. Please try again.";
        return Ok(failure_page(visitor, StatusCode::BAD_REQUEST, text));
    };
    if let Some(text) = refusal(query, provider) {
        return Ok(failure_page(visitor, StatusCode::FORBIDDEN, &text));
    }
    // Each one sends requests to the provider.
    let entered = console.sign_in_throttle.enter(request.client);
    let _entered = match entered {
        Ok(entered) => entered,
        Err(refusal) => return Ok(failure_page(visitor, refusal.status(), refusal.message())),
    };
    let person = match provider.client.person(query.raw("code"), &attempt.secrets(visitor.secret())).await {
        Ok(person) => person,
        Err(error) => {
            console.sign_ins.failed.add();
            tracing::warn!(%error, address = %request.client, "sign-in at the identity provider failed");
            let text = format!("{} did not confirm the sign-in. Please try again.", provider.name);
            return Ok(failure_page(visitor, StatusCode::BAD_GATEWAY, &text));
        }
    };
    let (refusal, email, text) = match provided_person(provider, person) {
        Ok(person) => {
            let refused = match console.store.sign_in_provided(&person, &request.origin()).await {
                Ok(begun) => {
                    console.sign_ins.succeeded.add();
                    return Ok(console.set_session_cookie(ConsoleResponse::redirect(attempt.next), &begun.token));
                }
                Err(ProvidedSignInError::Store(error)) => return Err(error.into()),
                Err(refused) => refused,
            };
            let (refusal, text) = explain(&refused, provider, &person);
            (refusal, Some(person.email), text)
        }
        Err(NotAdmitted { subject, email, refusal, text }) => {
            // A person who is no longer admitted also loses earlier sessions.
            let (issuer, address) = (provider.client.issuer(), request.client.to_string());
            console.store.end_provided_sessions(issuer, Some(&subject), None, &address).await?;
            (refusal, email, text)
        }
    };
    console.sign_ins.failed.add();
    console.wrong_passwords.add(PasswordTry::Provider(refusal), email, request.client);
    Ok(failure_page(visitor, StatusCode::FORBIDDEN, &text))
}

/// For the audit log, and for the person.
fn explain(
    refused: &ProvidedSignInError,
    provider: &IdentityProvider,
    person: &ProvidedPerson,
) -> (ProviderRefusal, String) {
    let (name, email) = (&provider.name, &person.email);
    match refused {
        ProvidedSignInError::Disabled => {
            (ProviderRefusal::Disabled, "Your account is disabled. Ask an administrator.".to_owned())
        }
        ProvidedSignInError::UnverifiedEmail => (
            ProviderRefusal::UnverifiedEmail,
            format!("{name} says that the address {email} is not verified. Verify it there, or ask an administrator."),
        ),
        ProvidedSignInError::EmailTaken => (
            ProviderRefusal::EmailTaken,
            format!(
                "An account with the address {email} exists, and {name} does not say that the address is yours. \
                 Ask an administrator."
            ),
        ),
        ProvidedSignInError::AnotherPerson => (
            ProviderRefusal::ConnectedElsewhere,
            format!("The account with the address {email} belongs to another person at {name}. Ask an administrator."),
        ),
        ProvidedSignInError::Deleted | ProvidedSignInError::Store(_) => {
            (ProviderRefusal::Deleted, "Your account was deleted. Ask an administrator to let you return.".to_owned())
        }
    }
}

/// Why the provider refused the sign-in, if it did.
fn refusal(query: &Fields, provider: &IdentityProvider) -> Option<String> {
    let name = &provider.name;
    let issuer = query.raw("iss");
    if !issuer.is_empty() && issuer.trim_end_matches('/') != provider.client.issuer().trim_end_matches('/') {
        return Some(format!("The response is not from {name}."));
    }
    match query.raw("error") {
        "" => None,
        "access_denied" => Some(format!("The sign-in at {name} was cancelled or refused.")),
        _ => Some(format!("{name} did not sign you in. Please try again, or ask an administrator.")),
    }
}

/// A person whom the provider knows but who gets no account here.
struct NotAdmitted {
    subject: String,
    email: Option<Email>,
    refusal: ProviderRefusal,
    /// Shown to the person.
    text: String,
}

fn provided_person(provider: &IdentityProvider, person: Person) -> Result<ProvidedPerson, NotAdmitted> {
    let email: Option<Email> = person.email.as_deref().and_then(|email| email.parse().ok());
    let not_admitted =
        |refusal, text: String| NotAdmitted { subject: person.subject.clone(), email: email.clone(), refusal, text };
    let Ok(role) = provider.role(person.groups.as_deref().unwrap_or_default()) else {
        let text = format!("Your groups at {} do not give you access. Ask an administrator.", provider.name);
        return Err(not_admitted(ProviderRefusal::MissingGroup, text));
    };
    let Some(email) = email.clone() else {
        let text = format!("{} did not provide your e-mail address. Ask an administrator.", provider.name);
        return Err(not_admitted(ProviderRefusal::MissingEmail, text));
    };
    let named = person.name.as_deref().and_then(|name| PersonName::parse(name).ok());
    let named = named.or_else(|| PersonName::parse(email.as_str().split('@').next().unwrap_or_default()).ok());
    let Some(name) = named else {
        let text = "Your name cannot be shown here. Ask an administrator.".to_owned();
        return Err(not_admitted(ProviderRefusal::MissingEmail, text));
    };
    Ok(ProvidedPerson {
        issuer: provider.client.issuer().to_owned(),
        subject: person.subject,
        email,
        is_email_verified: if provider.is_email_trusted { Some(true) } else { person.is_email_verified },
        name,
        role,
        session: person.session,
        authenticated_at: person.authenticated_at.map(Timestamp::from_seconds),
    })
}

fn failure_page(visitor: &Anonymous<'_>, status: StatusCode, text: &str) -> ConsoleResponse {
    let content = html! {
        section.card.narrow {
            h1 { "Not signed in" }
            p { (text) }
            p { a.button href="/sign-in" { "Back to sign-in" } }
        }
    };
    ConsoleResponse::page(layout::anonymous_page(visitor, "Not signed in", content)).with_status(status)
}

/// Back-channel logout: the provider reports that a person has signed out there. The request has no cookie but a signed
/// token. It runs in a separate task, because a provider that gives up waiting may not retry.
pub(crate) async fn log_out(console: &Arc<Console>, request: &mut ConsoleRequest) -> ConsoleResult {
    console.provider()?;
    let body = request.body(MAX_LOGOUT_BYTES).await?;
    // None is refused, because the provider may not retry. A provider that hangs up while waiting leaves nothing behind.
    let turn = console.logouts.clone().acquire_owned().await.map_err(|_| ConsoleError::Internal)?;
    let (console, address) = (console.clone(), request.client);
    let ending = tokio::spawn(async move {
        let _turn = turn;
        end_sessions(&console, &body, address).await
    });
    ending.await.unwrap_or(Err(ConsoleError::Internal))
}

async fn end_sessions(console: &Console, body: &[u8], address: IpAddr) -> ConsoleResult {
    let provider = console.provider()?;
    match provider.client.ended_session(Fields::parse(body).get("logout_token")).await {
        Ok(ended) => {
            let address = address.to_string();
            let (issuer, subject, session) =
                (provider.client.issuer(), ended.subject.as_deref(), ended.session.as_deref());
            console.store.end_provided_sessions(issuer, subject, session, &address).await?;
            Ok(ConsoleResponse::json("{}".into()))
        }
        Err(error) => {
            tracing::warn!(%error, %address, "a logout token was not accepted");
            let body = r#"{"error":"invalid_request"}"#.to_owned();
            Ok(ConsoleResponse::json(body).with_status(StatusCode::BAD_REQUEST))
        }
    }
}

/// The provider's sign-out page, if it has one and can be reached.
pub(crate) async fn sign_out_url(user: &SignedIn<'_>) -> Option<(String, Url)> {
    let provider = user.console.provider().ok()?;
    let return_to = Url::parse(&user.console.settings.origin).ok()?.join("/sign-in").ok()?;
    let url = provider.client.end_session_url(&return_to).await.ok()??;
    Some((provider.name.clone(), url))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn provider(allowed: &[&str], admins: &[&str]) -> IdentityProvider {
        let settings = oidc::ProviderSettings {
            issuer: Url::parse("https://login.example.com").unwrap(),
            client_id: "console".into(),
            client_secret: None,
            scopes: Vec::new(),
            groups_claim: "groups".into(),
            redirect_url: Url::parse("https://console.example.com/sign-in/provider/callback").unwrap(),
        };
        let client = oidc::Provider::new(settings, std::time::Duration::from_secs(1)).unwrap();
        let (allowed_groups, admin_groups) = (groups(allowed), groups(admins));
        IdentityProvider { client, name: "Example".into(), allowed_groups, admin_groups, is_email_trusted: false }
    }

    #[test]
    fn groups_decide_access_and_role() {
        let (developer, admin) = (Ok(Some(Role::Developer)), Ok(Some(Role::Admin)));
        for (allowed, admins, mine, expected) in [
            (&[][..], &[][..], &[][..], Ok(None)),
            (&[], &[], &["ops"], Ok(None)),
            (&["dev"], &[], &[], Err(NotAllowed)),
            (&["dev"], &[], &["Dev"], Err(NotAllowed)),
            (&["dev"], &[], &["x", "dev"], Ok(None)),
            (&[], &["ops"], &["dev"], developer),
            (&[], &["ops"], &["dev", "ops"], admin),
            (&["dev"], &["ops"], &["ops"], Ok(Some(Role::Admin))),
            (&["dev"], &["ops"], &["dev"], Ok(Some(Role::Developer))),
            (&["dev"], &["ops"], &["guests"], Err(NotAllowed)),
        ] {
            let found = provider(allowed, admins).role(&groups(mine));
            assert_eq!(found, expected, "{allowed:?} {admins:?} {mine:?}");
        }
    }

    #[test]
    fn an_attempt_is_bound_to_one_browser_and_one_path() {
        let (mine, other) = (Token::generate().unwrap(), Token::generate().unwrap());
        let attempt = ProviderSignIn::new("/usage?range=7d.x").unwrap();
        let secrets = attempt.secrets(&mine);
        let parsed = ProviderSignIn::parse(&secrets.state, &mine).unwrap();
        assert_eq!((parsed.number.as_str(), parsed.next), (attempt.number.as_str(), "/usage?range=7d.x"));
        assert!(ProviderSignIn::parse(&secrets.state, &other).is_none());
        assert!(ProviderSignIn::parse(&secrets.state.replace("7d", "8d"), &mine).is_none());
        for broken in ["", "a", "a.b", "a.b.c", "...", "a.b./"] {
            assert!(ProviderSignIn::parse(broken, &mine).is_none(), "{broken:?}");
        }
        let again = ProviderSignIn::new("/").unwrap().secrets(&mine);
        assert!(again.nonce != secrets.nonce && again.code_verifier != secrets.code_verifier);
        assert!(secrets.code_verifier.len() >= 43 && secrets.nonce != secrets.code_verifier);
        assert_eq!(ProviderSignIn::new("//evil.org").unwrap().next, "/");
    }
}
