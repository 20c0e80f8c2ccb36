//! Search on other servers: SearXNG, OpenSearch, Elasticsearch.
//!
//! `url` parses the setting. `searxng` and `opensearch` know the requests and responses of each kind, `vector_field` the
//! vectors of an index. `clients` and
//! `exchange` send one request and read one bounded response. `remote` combines them with one deadline and one breaker.
//! The result is passages of bounded size or a `SearchError` with our message: text from a server leaves only as a
//! passage.

pub(crate) mod clients;
mod error;
pub(crate) mod exchange;
#[cfg(test)]
mod fuzz;
mod lenient;
mod opensearch;
mod passage;
mod remote;
mod searxng;
mod url;
mod vector_field;

pub use error::{ConnectError, SearchError};
pub use remote::RemoteSearch;
pub use url::{RemoteUrl, SearchUrl, SearchUrlError};
pub use vector_field::VectorField;
