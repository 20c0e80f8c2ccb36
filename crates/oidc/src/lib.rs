//! A client of one OpenID Connect provider: the code flow with PKCE, sign-out, and back-channel logout.
//!
//! It verifies tokens: signature, issuer, audience, expiry, nonce. It does not know what claims mean for accounts and roles.
//! The caller keeps the secrets of a sign-in, so nothing is stored between its two requests.

mod client;
mod discovery;
mod http_client;
mod logout;
mod person;

use std::time::Duration;

use openidconnect::core::{CoreAuthPrompt, CoreAuthenticationFlow, CoreClientAuthMethod};
use openidconnect::{
    AccessTokenHash, AuthType, AuthorizationCode, ClientId, ClientSecret, CsrfToken, LogoutRequest, Nonce,
    OAuth2TokenResponse, PkceCodeChallenge, PkceCodeVerifier, PostLogoutRedirectUrl, RedirectUrl, RequestTokenError,
    Scope, TokenResponse,
};
use url::Url;

pub use crate::person::Person;

use crate::client::{Client, Metadata};
use crate::discovery::Discovery;
use crate::http_client::HttpClient;
use crate::person::UserInfo;

#[derive(Debug, Clone)]
pub struct ProviderSettings {
    pub issuer: Url,
    pub client_id: String,
    pub client_secret: Option<String>,
    /// In addition to `openid`.
    pub scopes: Vec<String>,
    /// The claim that lists a person's groups.
    pub groups_claim: String,
    /// Where the provider redirects people after sign-in.
    pub redirect_url: Url,
}

/// The secrets of one sign-in. Each is unguessable and used once.
pub struct SignInSecrets {
    pub state: String,
    pub nonce: String,
    /// At least 43 characters, as PKCE requires.
    pub code_verifier: String,
}

/// Sessions that the provider has ended: one session, or all of a person. At least one of the two fields is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedSession {
    pub subject: Option<String>,
    /// The provider's id of the session.
    pub session: Option<String>,
}

/// For the log; people see a sentence without details.
#[derive(Debug, thiserror::Error)]
pub enum OidcError {
    #[error("the provider cannot be reached: {0}")]
    Unreachable(String),
    #[error("the provider refused: {0}")]
    Refused(String),
    #[error("the provider's response is invalid: {0}")]
    Invalid(String),
}

pub struct Provider {
    settings: ProviderSettings,
    http: HttpClient,
    discovery: Discovery,
}

impl Provider {
    /// Sends no request yet. Fails if the system's TLS cannot be used.
    pub fn new(settings: ProviderSettings, timeout: Duration) -> Result<Self, OidcError> {
        let http = HttpClient::new(timeout)?;
        Ok(Self { discovery: Discovery::new(settings.issuer.clone()), settings, http })
    }

    /// The same whether the setting ends with a slash or not: both are accepted.
    pub fn issuer(&self) -> &str {
        let issuer = &self.settings.issuer;
        if issuer.path() == "/" { issuer.as_str() } else { issuer.as_str().trim_end_matches('/') }
    }

    /// Reads the provider's metadata and keys, like a sign-in.
    pub async fn check(&self) -> Result<(), OidcError> {
        self.discovery.metadata(&self.http).await.map(drop)
    }

    /// The URL for signing in. With `again`, the provider must authenticate the person even if it has a session.
    pub async fn authorization_url(&self, secrets: &SignInSecrets, again: bool) -> Result<Url, OidcError> {
        let client = self.client(&*self.discovery.metadata(&self.http).await?);
        let (state, nonce) = (secrets.state.clone(), secrets.nonce.clone());
        let challenge = PkceCodeChallenge::from_code_verifier_sha256(&secrets.verifier());
        let request = client
            .authorize_url(
                CoreAuthenticationFlow::AuthorizationCode,
                move || CsrfToken::new(state),
                move || Nonce::new(nonce),
            )
            .add_scopes(self.settings.scopes.iter().cloned().map(Scope::new))
            .set_pkce_challenge(challenge);
        let request = match again {
            true => request.add_prompt(CoreAuthPrompt::Login).set_max_age(Duration::ZERO),
            false => request,
        };
        Ok(request.url().0)
    }

    /// Exchanges the code of the redirect for the person who has signed in.
    pub async fn person(&self, code: &str, secrets: &SignInSecrets) -> Result<Person, OidcError> {
        let metadata = self.discovery.metadata(&self.http).await?;
        let client = self.client(&metadata);
        let exchange = client.exchange_code(AuthorizationCode::new(code.to_owned())).map_err(invalid)?;
        let tokens = exchange.set_pkce_verifier(secrets.verifier()).request_async(&self.http).await;
        let tokens = tokens.map_err(token_error)?;
        let id_token = tokens.id_token().ok_or_else(|| OidcError::Invalid("it has no ID token".into()))?;
        let nonce = Nonce::new(secrets.nonce.clone());
        // The provider may have changed its keys since they were read.
        let is_valid = id_token.claims(&client.id_token_verifier(), &nonce).is_ok();
        let client = match is_valid {
            true => client,
            false => self.client(&*self.discovery.refreshed(&self.http, &metadata).await?),
        };
        let verifier = client.id_token_verifier();
        let claims = id_token.claims(&verifier, &nonce).map_err(invalid)?;
        if let Some(expected) = claims.access_token_hash() {
            let algorithm = id_token.signing_alg().map_err(invalid)?;
            let key = id_token.signing_key(&verifier).map_err(invalid)?;
            let actual = AccessTokenHash::from_token(tokens.access_token(), algorithm, key).map_err(invalid)?;
            if actual != *expected {
                return Err(OidcError::Invalid("the access token does not belong to the ID token".into()));
            }
        }
        let mut person = Person::from_claims(claims, &self.settings.groups_claim)?;
        // Many providers return most claims only from the user info endpoint.
        if person.is_incomplete() && client.user_info_url().is_some() {
            let request = client.user_info(tokens.access_token().clone(), Some(claims.subject().clone()));
            let info: UserInfo = request.map_err(invalid)?.request_async(&self.http).await.map_err(invalid)?;
            person.complete_from(Person::from_claims(&info, &self.settings.groups_claim)?);
        }
        Ok(person)
    }

    /// The provider's sign-out page, if it has one.
    pub async fn end_session_url(&self, return_to: &Url) -> Result<Option<Url>, OidcError> {
        let metadata = self.discovery.metadata(&self.http).await?;
        let Some(endpoint) = metadata.additional_metadata().end_session_endpoint.clone() else { return Ok(None) };
        let request = LogoutRequest::from(endpoint)
            .set_client_id(ClientId::new(self.settings.client_id.clone()))
            .set_post_logout_redirect_uri(PostLogoutRedirectUrl::from_url(return_to.clone()));
        Ok(Some(request.http_get_url()))
    }

    /// The session that a logout token ends, by the rules of back-channel logout.
    pub async fn ended_session(&self, logout_token: &str) -> Result<EndedSession, OidcError> {
        let metadata = self.discovery.metadata(&self.http).await?;
        match logout::verify(&metadata, &self.settings, logout_token) {
            Ok(ended) => Ok(ended),
            Err(_) => {
                let metadata = self.discovery.refreshed(&self.http, &metadata).await?;
                logout::verify(&metadata, &self.settings, logout_token)
            }
        }
    }

    fn client(&self, metadata: &Metadata) -> Client {
        let secret = self.settings.client_secret.clone().map(ClientSecret::new);
        let client_id = ClientId::new(self.settings.client_id.clone());
        let methods = metadata.token_endpoint_auth_methods_supported();
        let only_posts = methods.is_some_and(|methods| {
            methods.contains(&CoreClientAuthMethod::ClientSecretPost)
                && !methods.contains(&CoreClientAuthMethod::ClientSecretBasic)
        });
        let auth_type = if only_posts { AuthType::RequestBody } else { AuthType::BasicAuth };
        let client = Client::from_provider_metadata(metadata.clone(), client_id, secret);
        let redirect_url = RedirectUrl::from_url(self.settings.redirect_url.clone());
        client.set_redirect_uri(redirect_url).set_auth_type(auth_type)
    }
}

impl SignInSecrets {
    fn verifier(&self) -> PkceCodeVerifier {
        PkceCodeVerifier::new(self.code_verifier.clone())
    }
}

fn invalid(error: impl std::error::Error) -> OidcError {
    OidcError::Invalid(error_chain(&error))
}

fn token_error<E: std::error::Error, R: openidconnect::ErrorResponse>(error: RequestTokenError<E, R>) -> OidcError {
    match error {
        RequestTokenError::Request(error) => OidcError::Unreachable(error_chain(&error)),
        error @ RequestTokenError::ServerResponse(_) => OidcError::Refused(error_chain(&error)),
        error => invalid(error),
    }
}

/// An error with its causes.
fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
