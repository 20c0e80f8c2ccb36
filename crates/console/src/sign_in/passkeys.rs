//! Passkeys: adding one to an account, and signing in with one. A passkey that is unlocked with a PIN or fingerprint
//! counts as two factors, so no password is needed.
//!
//! Only a script (assets/passkeys.js) can use the browser's authenticator, so requests are JSON.

use std::time::Duration;

use chat::Timestamp;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};
use store::{AccountId, ChallengePurpose, PasswordTry, Proof, SignInError, Token, UsedPasskey};
use subtle::ConstantTimeEq;
use webauthn_rs::prelude::{
    DiscoverableAuthentication, Passkey, PasskeyRegistration, PublicKeyCredential, RegisterPublicKeyCredential, Uuid,
};
use webauthn_rs_proto::ResidentKeyRequirement;

use crate::credentials::SignInOutcome;
use crate::page::{
    Anonymous, Console, ConsoleError, ConsoleRequest, ConsoleResponse, ConsoleResult, Form, FormSender, Refusal,
    SignedIn, found,
};
use crate::sign_in::check_password;
use crate::sign_in::first_step::local_path;

const MAX_NAME_CHARS: usize = 60;
const MAX_PASSKEYS: usize = 10;
const SIGN_IN_LIFETIME: Duration = Duration::from_secs(300);
pub(crate) const NOT_ACCEPTED: &str = "The passkey was not accepted. Please try again, or sign in another way.";

#[derive(Deserialize)]
struct PasswordGiven {
    password: String,
}

#[derive(Deserialize)]
struct NewPasskey {
    token: String,
    name: String,
    credential: RegisterPublicKeyCredential,
}

#[derive(Deserialize)]
pub(crate) struct UsedCredential {
    token: String,
    #[serde(default)]
    next: String,
    credential: PublicKeyCredential,
}

/// For a signed-in person, who enters the password.
pub(crate) async fn begin_adding(user: &SignedIn<'_>, body: &[u8]) -> ConsoleResult {
    let passkeys = user.console.passkeys()?;
    let account = user.account()?;
    let given: PasswordGiven = parse(body)?;
    check_password(user, &given.password).await?;
    let factors = user.store().second_factors().of(account.id).await?;
    if factors.passkeys.len() >= MAX_PASSKEYS {
        let text = "An account can have at most ten passkeys. Remove one first.";
        return Err(Refusal::new(StatusCode::CONFLICT, text).into());
    }
    let known = factors.passkeys.iter().filter_map(|passkey| credential_id(&passkey.id)).collect();
    let started = passkeys.start_passkey_registration(
        user_handle(account.id),
        account.email.as_str(),
        &account.name,
        Some(known),
    );
    let (mut options, state) = started.map_err(internal)?;
    // Sign-in names no account, so the authenticator must find the passkey.
    if let Some(selection) = &mut options.public_key.authenticator_selection {
        selection.resident_key = Some(ResidentKeyRequirement::Required);
        selection.require_resident_key = true;
    }
    let purpose = ChallengePurpose::AddPasskey;
    let state = serde_json::to_string(&state).map_err(internal)?;
    let token = user.store().sign_ins().create_challenge(purpose, account.id, &state).await?;
    challenge(token.reveal(), &options)
}

pub(crate) async fn finish_adding(user: &SignedIn<'_>, body: &[u8]) -> ConsoleResult {
    let passkeys = user.console.passkeys()?;
    let account = user.account()?;
    let given: NewPasskey = parse(body)?;
    let state = match Token::parse(&given.token) {
        Some(token) => user.store().sign_ins().take_challenge(ChallengePurpose::AddPasskey, &token).await?,
        None => None,
    };
    let state = state.filter(|challenge| challenge.account == account.id);
    let state = state.and_then(|challenge| serde_json::from_str::<PasskeyRegistration>(&challenge.body).ok());
    let state = state.ok_or_else(|| Refusal::invalid("This took too long. Please try again."))?;
    let passkey = passkeys.finish_passkey_registration(&given.credential, &state).map_err(|error| {
        tracing::warn!(%error, "a passkey could not be added");
        Refusal::invalid("This passkey cannot be used here.")
    })?;
    let shown: String = given.name.trim().chars().filter(|typed| !typed.is_control()).take(MAX_NAME_CHARS).collect();
    let name = if shown.is_empty() { "Passkey" } else { &shown };
    let credential = serde_json::to_string(&passkey).map_err(internal)?;
    let id = id_text(passkey.cred_id());
    match user.store().second_factors().add_passkey(user.viewer(), user.session.id, &id, name, &credential).await? {
        true => located("/account/second-factor"),
        false => Err(Refusal::new(StatusCode::CONFLICT, "This passkey is already in use.").into()),
    }
}

pub(crate) async fn remove(user: &SignedIn<'_>, id: &str, form: &Form) -> ConsoleResult {
    check_password(user, form.raw("password")).await?;
    found(user.store().second_factors().remove_passkey(user.viewer(), id).await?)?;
    user.redirect_with_message("/account/second-factor", "The passkey was removed.")
}

pub(crate) async fn begin_sign_in(visitor: &Anonymous<'_>, request: &mut ConsoleRequest) -> ConsoleResult {
    visitor.json(request).await?;
    let console = visitor.console;
    let _attempt = console.sign_in_throttle.enter(request.client)?;
    begin_use(console).await
}

/// A challenge that any passkey of this console can answer.
pub(crate) async fn begin_use(console: &Console) -> ConsoleResult {
    let (options, state) = console.passkeys()?.start_discoverable_authentication().map_err(internal)?;
    let state = serde_json::to_string(&state).map_err(internal)?;
    let expires_at = console.store.now() + SIGN_IN_LIFETIME;
    let token = seal(&console.store.sign_ins().sign_in_secret().await?, &expires_at.as_millis().to_string(), &state);
    challenge(&token, &options)
}

pub(crate) async fn finish_sign_in(visitor: Anonymous<'_>, request: &mut ConsoleRequest) -> ConsoleResult {
    let given: UsedCredential = parse(&visitor.json(request).await?)?;
    let console = visitor.console;
    let attempt = console.sign_in_throttle.begin(request.client, None).await??;
    let session = match verify(console, &given).await? {
        Some((account, used)) => {
            match console.store.sessions().begin(account, &request.origin(), Proof::Passkey(&used)).await {
                Ok(session) => Some(session),
                Err(SignInError::Store(error)) => return Err(error.into()),
                Err(_) => None,
            }
        }
        None => None,
    };
    let Some(session) = session else {
        attempt.failed().await?;
        console.count_sign_in(SignInOutcome::Failed);
        let owner =
            console.store.second_factors().passkey_owner(&id_text(given.credential.get_credential_id())).await?;
        console.wrong_passwords.add(PasswordTry::Passkey, owner, request.client);
        return Err(Refusal::new(StatusCode::UNAUTHORIZED, NOT_ACCEPTED).into());
    };
    attempt.succeeded().await?;
    console.count_sign_in(SignInOutcome::Succeeded);
    Ok(console.signed_in(located(local_path(&given.next))?, &session))
}

/// The owner of the passkey that answered this console's challenge.
pub(crate) async fn verify(
    console: &Console,
    given: &UsedCredential,
) -> ConsoleResult<Option<(AccountId, UsedPasskey)>> {
    let passkeys = console.passkeys()?;
    let state = unseal(&console.store.sign_ins().sign_in_secret().await?, &given.token, console.store.now());
    let state = state.and_then(|state| serde_json::from_str::<DiscoverableAuthentication>(state).ok());
    let known = console.store.second_factors().passkey(&id_text(given.credential.get_credential_id())).await?;
    let (Some(state), Some(known)) = (state, known) else { return Ok(None) };
    let mut passkey: Passkey = serde_json::from_str(&known.credential).map_err(internal)?;
    match passkeys.finish_discoverable_authentication_v2(&given.credential, state, &passkey) {
        Ok(used) => {
            passkey.update_credential(&used);
            let credential = serde_json::to_string(&passkey).map_err(internal)?;
            Ok(Some((known.account, UsedPasskey { id: known.id, credential, challenge: given.token.clone() })))
        }
        Err(error) => {
            tracing::warn!(%error, "a passkey was not accepted");
            Ok(None)
        }
    }
}

/// A challenge for an unknown visitor: `EXPIRY.SIGNATURE.STATE`. It is signed and not stored, so visitors can neither
/// fill a table nor displace other challenges.
fn seal(secret: &Token, expires_at: &str, state: &str) -> String {
    format!("{expires_at}.{}.{state}", secret.derive(&format!("passkey challenge {expires_at} {state}")))
}

/// `None` if the signature is wrong or the challenge has expired.
fn unseal<'a>(secret: &Token, sealed: &'a str, now: Timestamp) -> Option<&'a str> {
    let mut parts = sealed.splitn(3, '.');
    let (expires_at, _, state) = (parts.next()?, parts.next()?, parts.next()?);
    let is_ours: bool = seal(secret, expires_at, state).as_bytes().ct_eq(sealed.as_bytes()).into();
    let is_valid = expires_at.parse::<u64>().is_ok_and(|at| at > now.as_millis());
    (is_ours && is_valid).then_some(state)
}

/// Identifies the account on an authenticator, without disclosing anything about it.
fn user_handle(account: AccountId) -> Uuid {
    let digest = Sha256::digest(format!("passkeys of {account}"));
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    Uuid::from_bytes(bytes)
}

/// In hexadecimal digits, so that it can be part of a path.
fn id_text(id: &[u8]) -> String {
    base16ct::lower::encode_string(id)
}

fn credential_id(text: &str) -> Option<Vec<u8>> {
    base16ct::lower::decode_vec(text).ok()
}

pub(crate) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> ConsoleResult<T> {
    serde_json::from_slice(body).map_err(|_| ConsoleError::Unreadable)
}

/// The response to the first step. The token identifies the challenge in the second step.
fn challenge(token: &str, options: &impl Serialize) -> ConsoleResult {
    Ok(ConsoleResponse::json(json!({ "token": token, "options": options }).to_string()))
}

/// The page to open next.
fn located(path: &str) -> ConsoleResult {
    Ok(ConsoleResponse::json(json!({ "location": path }).to_string()))
}

fn internal(error: impl std::fmt::Display) -> ConsoleError {
    tracing::error!(%error, "a passkey operation failed");
    ConsoleError::Internal
}
