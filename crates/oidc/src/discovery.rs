//! The provider's metadata and keys. They are read at the first use, and again after an hour or when no key matches a
//! signature. Concurrent callers share one request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use openidconnect::{DiscoveryError, IssuerUrl};
use tokio::sync::Mutex;
use url::Url;

use crate::client::Metadata;
use crate::http_client::HttpClient;
use crate::{OidcError, error_chain, invalid};

const MAX_AGE: Duration = Duration::from_secs(3600);
/// Forged signatures cannot cause more frequent requests.
const MIN_AGE: Duration = Duration::from_secs(30);
/// After a failure, so that waiting callers do not time out one after the other.
const RETRY_AFTER: Duration = Duration::from_secs(2);

pub(crate) struct Discovery {
    issuer: Url,
    last: Mutex<Option<Read>>,
}

struct Read {
    at: Instant,
    result: Result<Arc<Metadata>, String>,
}

impl Discovery {
    pub(crate) fn new(issuer: Url) -> Self {
        Self { issuer, last: Mutex::new(None) }
    }

    pub(crate) async fn metadata(&self, http: &HttpClient) -> Result<Arc<Metadata>, OidcError> {
        self.no_older_than(http, MAX_AGE).await
    }

    /// Reads again, unless another caller has done so or the last read is recent.
    pub(crate) async fn refreshed(
        &self,
        http: &HttpClient,
        outdated: &Arc<Metadata>,
    ) -> Result<Arc<Metadata>, OidcError> {
        let current = self.metadata(http).await?;
        if !Arc::ptr_eq(&current, outdated) {
            return Ok(current);
        }
        self.no_older_than(http, MIN_AGE).await
    }

    async fn no_older_than(&self, http: &HttpClient, max_age: Duration) -> Result<Arc<Metadata>, OidcError> {
        let mut last = self.last.lock().await;
        if let Some(read) = &*last {
            match &read.result {
                Ok(metadata) if read.at.elapsed() < max_age => return Ok(metadata.clone()),
                Err(why) if read.at.elapsed() < RETRY_AFTER => return Err(OidcError::Unreachable(why.clone())),
                _ => {}
            }
        }
        let result = self.read(http).await;
        let kept = result.as_ref().map(Arc::clone).map_err(OidcError::to_string);
        *last = Some(Read { at: Instant::now(), result: kept });
        result
    }

    async fn read(&self, http: &HttpClient) -> Result<Arc<Metadata>, OidcError> {
        // Most issuers have no slash at the end, but some do, and the text must match theirs exactly.
        let issuer = IssuerUrl::new(self.issuer.as_str().trim_end_matches('/').to_owned()).map_err(invalid)?;
        let read = match Metadata::discover_async(issuer, http).await {
            Err(DiscoveryError::Validation(_)) => {
                let issuer = IssuerUrl::from_url(self.issuer.clone());
                Metadata::discover_async(issuer, http).await
            }
            read => read,
        };
        match read {
            Ok(metadata) => Ok(Arc::new(metadata)),
            Err(DiscoveryError::Request(error)) => Err(OidcError::Unreachable(error_chain(&error))),
            Err(error) => Err(invalid(error)),
        }
    }
}
