//! Search on other servers: SearXNG, OpenSearch, Elasticsearch.
//!
//! `url` says which; `searxng` and `opensearch` know what each is asked and what its answers mean; `clients` and
//! `exchange` carry one request there and one bounded answer back; `remote` puts them together under one deadline and one
//! breaker. What comes out is passages of bounded size or a `SearchError`, whose sentences are our own: nothing that a
//! server says in its own words gets out of here except as a passage.

mod clients;
mod error;
mod exchange;
mod lenient;
mod opensearch;
mod passage;
mod remote;
mod searxng;
mod url;

pub use error::{ConnectError, SearchError};
pub use remote::RemoteSearch;
pub use url::{RemoteUrl, SearchUrl, SearchUrlError};
