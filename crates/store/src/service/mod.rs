//! What the service itself keeps: notices for the webhook, each delivered at least once, and the search
//! index that it expects.

pub(crate) mod notices;
pub(crate) mod search_index;
