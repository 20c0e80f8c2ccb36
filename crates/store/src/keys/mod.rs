//! API keys. A key is looked up for every request, and never cached.

pub(crate) mod changes;
pub(crate) mod expiry;
pub(crate) mod key;
pub(crate) mod lookup;
pub(crate) mod search;
