//! Logout tokens of back-channel logout: the provider reports the end of one session, or of all sessions of a person.
//!
//! They are not ID tokens: `sub` or `sid` may be missing, and providers of earlier drafts omit `exp`. So signature and
//! claims are verified here, with the provider's keys.

use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use openidconnect::core::{CoreJsonWebKey, CoreJsonWebKeyUse, CoreJwsSigningAlgorithm};
use openidconnect::{JsonWebKey, JsonWebKeyId, JwsSigningAlgorithm};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::client::Metadata;
use crate::{EndedSession, OidcError, ProviderSettings, invalid};

/// The member that `events` must have.
const BACK_CHANNEL_LOGOUT: &str = "http://schemas.openid.net/event/backchannel-logout";
/// Max. age of a token, and max. lead of the provider's clock, so that no token ends a session that began later.
const MAX_AGE_SECONDS: f64 = 600.0;

#[derive(Deserialize)]
struct Header {
    alg: CoreJwsSigningAlgorithm,
    kid: Option<JsonWebKeyId>,
}

#[derive(Deserialize)]
struct LogoutClaims {
    iss: String,
    aud: Audience,
    iat: f64,
    exp: Option<f64>,
    sub: Option<String>,
    sid: Option<String>,
    events: Map<String, Value>,
    /// Must be missing, so that no ID token is taken for a logout token.
    nonce: Option<Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Several(Vec<String>),
}

pub(crate) fn verify(metadata: &Metadata, settings: &ProviderSettings, token: &str) -> Result<EndedSession, OidcError> {
    let refused = |why: &str| OidcError::Invalid(why.to_owned());
    let (signed, signature) = token.rsplit_once('.').ok_or_else(|| refused("it is not a token"))?;
    let (header, claims) = signed.split_once('.').ok_or_else(|| refused("it is not a token"))?;
    let (header, claims): (Header, LogoutClaims) = (decode(header)?, decode(claims)?);
    let signature = URL_SAFE_NO_PAD.decode(signature).map_err(invalid)?;
    if !keys(metadata, settings, &header)
        .iter()
        .any(|key| key.verify_signature(&header.alg, signed.as_bytes(), &signature).is_ok())
    {
        return Err(refused("its signature is not the provider's"));
    }
    let is_for_us = match &claims.aud {
        Audience::One(audience) => *audience == settings.client_id,
        Audience::Several(audiences) => audiences.contains(&settings.client_id),
    };
    let now = SystemTime::UNIX_EPOCH.elapsed().map_err(invalid)?.as_secs_f64();
    let is_recent = (now - claims.iat).abs() <= MAX_AGE_SECONDS && claims.exp.is_none_or(|exp| now < exp);
    if claims.iss != metadata.issuer().as_str() || !is_for_us || !is_recent {
        return Err(refused("its issuer, audience or time is wrong"));
    }
    if claims.nonce.is_some() || !claims.events.contains_key(BACK_CHANNEL_LOGOUT) {
        return Err(refused("it is not a logout token"));
    }
    if claims.sub.is_none() && claims.sid.is_none() {
        return Err(refused("it names neither a person nor a session"));
    }
    Ok(EndedSession { subject: claims.sub, session: claims.sid })
}

fn decode<T: DeserializeOwned>(part: &str) -> Result<T, OidcError> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).map_err(invalid)?).map_err(invalid)
}

/// The provider's keys that may have made the signature.
fn keys(metadata: &Metadata, settings: &ProviderSettings, header: &Header) -> Vec<CoreJsonWebKey> {
    if !metadata.id_token_signing_alg_values_supported().contains(&header.alg) || header.alg.key_type().is_none() {
        return Vec::new();
    }
    if header.alg.uses_shared_secret() {
        let secret = settings.client_secret.iter();
        return secret.map(|secret| CoreJsonWebKey::new_symmetric(secret.clone().into_bytes())).collect();
    }
    let is_candidate = |key: &&CoreJsonWebKey| {
        key.key_use().is_none_or(|key_use| *key_use == CoreJsonWebKeyUse::Signature)
            && header.kid.as_ref().is_none_or(|kid| key.key_id() == Some(kid))
    };
    metadata.jwks().keys().iter().filter(is_candidate).cloned().collect()
}
