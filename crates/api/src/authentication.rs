//! Authentication and authorization: exactly one `Authorization: Bearer <API_KEY>`, checked against the database every
//! time.

use chat::ApiKey;
use http::{HeaderMap, header};
use store::{Caller, Client, Store, StoreError};
use wire::ErrorCode;

use crate::error::ApiError;

/// The caller of a request. Every fault of a key is the same error.
pub(crate) async fn authenticate(store: &Store, headers: &HeaderMap) -> Result<Caller, ApiError> {
    let key = presented_key(headers).ok_or(ErrorCode::InvalidApiKey)?;
    found(store.keys().authenticate(&key).await)
}

/// Looks up the same caller again; an error if its key is no longer accepted.
pub(crate) async fn authenticate_again(store: &Store, caller: &Caller) -> Result<Caller, ApiError> {
    found(store.keys().authenticate_again(caller).await)
}

fn found(caller: Result<Option<Caller>, StoreError>) -> Result<Caller, ApiError> {
    match caller {
        Ok(caller) => caller.ok_or_else(|| ErrorCode::InvalidApiKey.into()),
        Err(error) => Err(ApiError::unavailable("The service cannot check API keys now.").caused_by(error)),
    }
}

fn presented_key(headers: &HeaderMap) -> Option<ApiKey> {
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (given.next(), given.next()) else { return None };
    let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| ApiKey::parse(key.trim_matches(' ')).ok())?
}

/// Proof that a caller's key has the permission `completions`.
pub(crate) struct Authorized {
    client: Client,
}

pub(crate) fn authorize(caller: &Caller) -> Result<Authorized, ApiError> {
    match caller.may_complete() {
        true => Ok(Authorized { client: caller.client() }),
        false => Err(ErrorCode::InsufficientPermission.into()),
    }
}

impl Authorized {
    pub(crate) fn client(&self) -> Client {
        self.client
    }
}
