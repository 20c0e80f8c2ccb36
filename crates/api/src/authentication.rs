//! Authentication and authorization: exactly one `Authorization: Bearer <API_KEY>`, checked against the database every
//! time.

use chat::ApiKey;
use http::{HeaderMap, header};
use store::{Caller, CallerLimits, Client, Store};

use crate::error::ApiError;

/// The caller of a request. Whatever is wrong with a key, the error is the same.
pub(crate) async fn authenticate(store: &Store, headers: &HeaderMap) -> Result<Caller, ApiError> {
    let key = presented_key(headers).ok_or_else(ApiError::invalid_api_key)?;
    match store.authenticate(&key).await {
        Ok(caller) => caller.ok_or_else(ApiError::invalid_api_key),
        Err(error) => Err(ApiError::unavailable("The service cannot check API keys now.").caused_by(error)),
    }
}

fn presented_key(headers: &HeaderMap) -> Option<ApiKey> {
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (given.next(), given.next()) else { return None };
    let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| ApiKey::parse(key.trim_matches(' ')).ok())?
}

/// Proof that a caller's key has the permission `completions`, and that no budget of it is spent.
pub(crate) struct Authorized {
    client: Client,
    limits: CallerLimits,
}

/// Permission first: budgets are not read for a key that has none.
pub(crate) async fn authorize(store: &Store, caller: &Caller) -> Result<Authorized, ApiError> {
    if !caller.may_complete() {
        return Err(ApiError::insufficient_permission());
    }
    match store.spent_budget(caller.limits()).await {
        Ok(None) => Ok(Authorized { client: caller.client(), limits: caller.limits().clone() }),
        Ok(Some(spent)) => Err(ApiError::budget_spent(&spent)),
        Err(error) => Err(ApiError::unavailable("The service cannot check budgets now.").caused_by(error)),
    }
}

impl Authorized {
    pub(crate) fn client(&self) -> Client {
        self.client
    }

    pub(crate) fn limits(&self) -> &CallerLimits {
        &self.limits
    }
}
