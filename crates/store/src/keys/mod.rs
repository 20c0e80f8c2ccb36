//! API keys. Only digests of secrets are stored. A key is looked up for every request, and never cached: a key that is
//! revoked by any process is refused from the next request on. People see and change their own keys, administrators all.

pub(crate) mod changes;
pub(crate) mod expiry;
pub(crate) mod key;
pub(crate) mod lookup;
pub(crate) mod search;
