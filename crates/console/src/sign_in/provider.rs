//! Sign-in at the identity provider with OpenID Connect, and back-channel logout.
//!
//! Nothing is stored for an attempt: its secrets are derived from a cookie and a random number in `state`. So sign-in works
//! in several tabs and on any replica, and visitors cannot fill a table.

use std::net::IpAddr;
use std::sync::Arc;

use chat::Timestamp;
use http::StatusCode;
use maud::html;
use oidc::{Person, SignInSecrets};
use store::{Email, PasswordTry, PersonName, ProvidedPerson, ProvidedSignInError, ProviderRefusal, StoreError, Token};
use subtle::ConstantTimeEq;
use url::Url;

use crate::credentials::{IdentityProvider, SignInOutcome};
use crate::page::{
    Anonymous, Console, ConsoleError, ConsoleRequest, ConsoleResponse, ConsoleResult, Fields, FormSender, SignedIn,
    notice,
};
use crate::sign_in::first_step::local_path;

/// Room for one signed token.
const MAX_LOGOUT_BYTES: usize = 64 << 10;

/// An attempt to sign in: a random number, and the path to open afterwards. Its `state` is `NUMBER.SIGNATURE.PATH`.
struct ProviderSignIn<'a> {
    number: String,
    next: &'a str,
}

impl<'a> ProviderSignIn<'a> {
    fn new(next: &'a str) -> ConsoleResult<Self> {
        let number = Token::generate().map_err(StoreError::from)?;
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

    fn secrets(&self, secret: &Token) -> SignInSecrets {
        SignInSecrets {
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
            Ok(not_signed_in(visitor, StatusCode::SERVICE_UNAVAILABLE, &text))
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
        return Ok(not_signed_in(visitor, StatusCode::BAD_REQUEST, text));
    };
    if let Some(text) = refusal(query, provider) {
        return Ok(not_signed_in(visitor, StatusCode::FORBIDDEN, &text));
    }
    // Each one sends requests to the provider.
    let _attempt = match console.sign_in_throttle.enter(request.client) {
        Ok(attempt) => attempt,
        Err(refusal) => return Ok(not_signed_in(visitor, refusal.status(), refusal.message())),
    };
    let person = match provider.client.person(query.raw("code"), &attempt.secrets(visitor.secret())).await {
        Ok(person) => person,
        Err(error) => {
            console.count_sign_in(SignInOutcome::Failed);
            tracing::warn!(%error, address = %request.client, "sign-in at the identity provider failed");
            let text = format!("{} did not confirm the sign-in. Please try again.", provider.name);
            return Ok(not_signed_in(visitor, StatusCode::BAD_GATEWAY, &text));
        }
    };
    let (email, refusal) = match provided_person(provider, person) {
        Ok(person) => match console.store.provider_accounts().sign_in(&person, &request.origin()).await {
            Ok(session) => {
                console.count_sign_in(SignInOutcome::Succeeded);
                return Ok(console.set_session_cookie(ConsoleResponse::redirect(attempt.next), &session.token));
            }
            Err(ProvidedSignInError::Refused(refusal)) => (Some(person.email), refusal),
            Err(ProvidedSignInError::Store(error)) => return Err(error.into()),
        },
        Err(NotAdmitted { subject, email, refusal }) => {
            // A person who is no longer admitted also loses earlier sessions.
            let (issuer, address) = (provider.client.issuer(), request.client.to_string());
            console.store.provider_accounts().end_sessions(issuer, Some(&subject), None, &address).await?;
            (email, refusal)
        }
    };
    let text = explain(refusal, &provider.name, email.as_ref().map_or("", Email::as_str));
    console.count_sign_in(SignInOutcome::Failed);
    console.wrong_passwords.add(PasswordTry::Provider(refusal), email, request.client);
    Ok(not_signed_in(visitor, StatusCode::FORBIDDEN, &text))
}

/// For the person.
fn explain(refusal: ProviderRefusal, name: &str, email: &str) -> String {
    let problem = match refusal {
        ProviderRefusal::MissingGroup => format!("Your groups at {name} do not give you access."),
        ProviderRefusal::MissingEmail => format!("{name} did not provide your name and e-mail address."),
        ProviderRefusal::Disabled => "Your account is disabled.".into(),
        ProviderRefusal::UnverifiedEmail => format!("{name} says that the address {email} is not verified."),
        ProviderRefusal::EmailTaken => {
            format!("An account with the address {email} exists, and {name} does not say that the address is yours.")
        }
        ProviderRefusal::ConnectedElsewhere => {
            format!("The account with the address {email} belongs to another person at {name}.")
        }
        ProviderRefusal::Deleted => "Your account was deleted.".into(),
    };
    format!("{problem} Ask an administrator.")
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
}

fn provided_person(provider: &IdentityProvider, person: Person) -> Result<ProvidedPerson, NotAdmitted> {
    let email: Option<Email> = person.email.as_deref().and_then(|email| email.parse().ok());
    let Ok(role) = provider.role(person.groups.as_deref().unwrap_or_default()) else {
        return Err(NotAdmitted { subject: person.subject, email, refusal: ProviderRefusal::MissingGroup });
    };
    let local_part = email.as_ref().and_then(|email| email.as_str().split('@').next());
    let names = [person.name.as_deref(), local_part];
    let name = names.into_iter().flatten().find_map(|name| PersonName::parse(name).ok());
    let (Some(email), Some(name)) = (email.clone(), name) else {
        return Err(NotAdmitted { subject: person.subject, email, refusal: ProviderRefusal::MissingEmail });
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

fn not_signed_in(visitor: &Anonymous<'_>, status: StatusCode, text: &str) -> ConsoleResponse {
    let content = notice("Not signed in", html! { p { (text) } }, "/sign-in", "Back to sign-in");
    visitor.page("Not signed in", content).with_status(status)
}

/// Back-channel logout: the provider reports that a person has signed out there. The request has no cookie but a signed
/// token. It runs in a separate task, because a provider that gives up waiting may not retry.
pub(crate) async fn log_out(console: &Arc<Console>, request: &mut ConsoleRequest) -> ConsoleResult {
    console.provider()?;
    let body = request.body(MAX_LOGOUT_BYTES).await?;
    // None is refused, because the provider may not retry. A provider that hangs up while waiting leaves nothing behind.
    let permit = console.logouts.clone().acquire_owned().await.map_err(|_| ConsoleError::Internal)?;
    let (console, address) = (console.clone(), request.client);
    let ending = tokio::spawn(async move {
        let _permit = permit;
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
            console.store.provider_accounts().end_sessions(issuer, subject, session, &address).await?;
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
