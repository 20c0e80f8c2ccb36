//! The identity provider that the settings name.

use std::time::Duration;

use console::{CALLBACK_PATH, IdentityProvider};
use oidc::{Provider, ProviderSettings};
use url::Url;

use crate::error::CliError;
use crate::settings::Settings;

const TIMEOUT: Duration = Duration::from_secs(10);

/// `None` if no issuer is set. Does not contact the provider.
pub(crate) fn from_settings(settings: &Settings, console_origin: &str) -> Result<Option<IdentityProvider>, CliError> {
    let oidc = &settings.oidc;
    let Some(issuer) = oidc.issuer.clone() else { return Ok(None) };
    let redirect_url = Url::parse(console_origin).and_then(|origin| origin.join(CALLBACK_PATH));
    let redirect_url =
        redirect_url.map_err(|error| CliError::new(format!("the console's URL cannot be used: {error}")))?;
    let provider = ProviderSettings {
        issuer,
        client_id: oidc.client_id.clone(),
        client_secret: oidc.client_secret.clone(),
        scopes: oidc.scopes.clone(),
        groups_claim: oidc.groups_claim.clone(),
        redirect_url,
    };
    let client = Provider::new(provider, TIMEOUT)
        .map_err(|error| CliError::new(format!("`oidc.issuer` cannot be used: {error}")))?;
    Ok(Some(IdentityProvider {
        client,
        name: oidc.name.clone(),
        allowed_groups: oidc.allowed_groups.clone(),
        admin_groups: oidc.admin_groups.clone(),
        is_email_trusted: oidc.trust_email,
    }))
}
