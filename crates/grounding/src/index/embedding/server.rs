//! A server with OpenAI's `/embeddings`: vLLM, llama.cpp's server, Text Embeddings Inference, or our engine with an
//! embedding model.
//!
//! Its model is queried on first use, and again after a failure. Its responses are not trusted: their size is bounded,
//! there must be one vector for each text, all of one size and finite, and they must distinguish related texts from others.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use breaker::Verdict;
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use reqwest::StatusCode;
use reqwest::header::CONTENT_TYPE;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use url::Url;

use super::scale::pairs;
use super::{EmbedderId, QuestionVector, Scale};
use crate::search::SearchError;
use crate::search::clients::{Clients, Transport};
use crate::search::exchange::send;

/// The maximum of passages in a request.
const TOGETHER: usize = 16;
/// Longer than for a question.
const PASSAGES_TIMEOUT: Duration = Duration::from_secs(120);
/// Of a text. Models read a few hundred tokens; servers refuse longer texts or truncate them.
const MAX_CHARS: usize = 2_000;
const MAX_QUESTION_CHARS: usize = 500;
/// A refused text is halved until it is this short.
const MIN_CHARS: usize = 100;
const MAX_DIMENSIONS: usize = 8_192;
const MAX_RESPONSE_BYTES: usize = 16 << 20;

pub struct EmbeddingsServer {
    url: EmbeddingsUrl,
    /// The server's name of the model; by default the first that it lists.
    model: Option<String>,
    prefixes: Prefixes,
    clients: Clients,
    deadline: Duration,
    found: Mutex<Option<Arc<ServedModel>>>,
}

/// Prefixes of texts, by which some models distinguish questions from passages.
#[derive(Debug, Clone, Default)]
pub struct Prefixes {
    pub question: String,
    pub passage: String,
}

/// The properties of the server's model.
pub struct ServedModel {
    /// The name in requests.
    requested: String,
    /// The name in responses.
    pub name: String,
    pub dimensions: usize,
    pub(super) id: EmbedderId,
    scale: Scale,
}

impl EmbeddingsServer {
    /// The deadline applies to questions.
    pub fn new(
        url: EmbeddingsUrl,
        model: Option<String>,
        prefixes: Prefixes,
        deadline: Duration,
    ) -> Result<Self, SearchError> {
        let clients = Clients::new(url.transport())?;
        Ok(Self { url, model, prefixes, clients, deadline, found: Mutex::default() })
    }

    pub fn url(&self) -> &EmbeddingsUrl {
        &self.url
    }

    /// The server's model. Queries the server unless it is known.
    pub async fn model(&self) -> Result<Arc<ServedModel>, SearchError> {
        if let Some(found) = &*self.found.lock() {
            return Ok(found.clone());
        }
        let requested = match &self.model {
            Some(model) => model.clone(),
            None => self.first_model().await?,
        };
        let questions: Vec<_> = pairs().map(|(question, _)| self.prefixes.question.clone() + question).collect();
        let passages: Vec<_> = pairs().map(|(_, passage)| self.passage(passage)).collect();
        let first = self.post(&requested, &questions, PASSAGES_TIMEOUT).await?;
        let second = self.post(&requested, &passages, PASSAGES_TIMEOUT).await?;
        if first.model != second.model || first.dimensions() != second.dimensions() {
            return Err(SearchError::ModelChanged);
        }
        let scale = Scale::measure(&first.vectors, &second.vectors).ok_or(SearchError::Meaningless)?;
        let (dimensions, name) = (first.dimensions(), first.model.unwrap_or_else(|| requested.clone()));
        let id = id(&name, dimensions, &self.prefixes.passage);
        let found = Arc::new(ServedModel { requested, name, dimensions, id, scale });
        *self.found.lock() = Some(found.clone());
        Ok(found)
    }

    /// Whether its model is known, which means that it responded recently.
    pub(crate) fn is_there(&self) -> bool {
        self.found.lock().is_some()
    }

    /// The vector of a question, within the deadline.
    pub(crate) async fn question(&self, text: &str) -> Result<QuestionVector, SearchError> {
        let model = self.model().await?;
        Ok(QuestionVector::new(model.id, &self.question_numbers(&model, text).await?, model.scale))
    }

    /// The vector of a question as the server sent it, for vectors that are stored elsewhere. `None` while the server fails.
    pub(crate) async fn raw_question(&self, text: &str) -> Option<Vec<f32>> {
        let model = self.found.lock().clone()?;
        self.question_numbers(&model, text).await.ok()
    }

    async fn question_numbers(&self, model: &ServedModel, text: &str) -> Result<Vec<f32>, SearchError> {
        let text = self.prefixes.question.clone() + cut(text, MAX_QUESTION_CHARS);
        let vectors = self.vectors(model, &[text], self.deadline).await;
        self.forget_after(&vectors);
        vectors?.into_iter().next().ok_or(SearchError::Malformed)
    }

    /// The vectors of passages. Fails if the server no longer has the model with this id.
    pub(super) async fn passages(&self, id: EmbedderId, texts: &[String]) -> Result<Vec<Vec<f32>>, SearchError> {
        let model = self.model().await?;
        if model.id != id {
            return Err(SearchError::ModelChanged);
        }
        let mut all = Vec::with_capacity(texts.len());
        for texts in texts.chunks(TOGETHER) {
            let prefixed: Vec<_> = texts.iter().map(|text| self.passage(cut(text, MAX_CHARS))).collect();
            let vectors = match self.vectors(&model, &prefixed, PASSAGES_TIMEOUT).await {
                Err(error) if refuses_texts(&error) => self.one_by_one(&model, texts).await,
                vectors => vectors,
            };
            self.forget_after(&vectors);
            all.extend(vectors?);
        }
        Ok(all)
    }

    /// The vectors of texts some of which are too long for the model.
    async fn one_by_one(&self, model: &ServedModel, texts: &[String]) -> Result<Vec<Vec<f32>>, SearchError> {
        let mut vectors = Vec::with_capacity(texts.len());
        for text in texts {
            let mut chars = MAX_CHARS.min(text.chars().count());
            vectors.push(loop {
                match self.vectors(model, &[self.passage(cut(text, chars))], PASSAGES_TIMEOUT).await {
                    Err(error) if refuses_texts(&error) && chars > MIN_CHARS => chars /= 2,
                    Ok(one) => break one.into_iter().next().ok_or(SearchError::Malformed)?,
                    Err(error) => return Err(error),
                }
            });
        }
        Ok(vectors)
    }

    fn passage(&self, text: &str) -> String {
        self.prefixes.passage.clone() + text
    }

    async fn vectors(
        &self,
        model: &ServedModel,
        texts: &[String],
        deadline: Duration,
    ) -> Result<Vec<Vec<f32>>, SearchError> {
        let response = self.post(&model.requested, texts, deadline).await?;
        let is_same =
            response.dimensions() == model.dimensions && response.model.as_ref().is_none_or(|name| *name == model.name);
        if is_same { Ok(response.vectors) } else { Err(SearchError::ModelChanged) }
    }

    /// After a failure another server or model may respond. A refused text is not a failure.
    fn forget_after<T>(&self, outcome: &Result<T, SearchError>) {
        if outcome.as_ref().is_err_and(|error| matches!(error.verdict(), Verdict::Bad)) {
            *self.found.lock() = None;
        }
    }

    /// Some servers list no models, and accept any name.
    async fn first_model(&self) -> Result<String, SearchError> {
        #[derive(Deserialize)]
        struct Models {
            data: Vec<Model>,
        }
        #[derive(Deserialize)]
        struct Model {
            id: String,
        }
        let request = self.authorized(self.clients.for_current_runtime()?.get(self.url.join("models")));
        let body = match within(self.deadline, send(request, MAX_RESPONSE_BYTES, SearchError::Refused)).await {
            Err(SearchError::Refused(StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED)) => {
                return Ok("default".into());
            }
            body => body?,
        };
        let models: Models = serde_json::from_slice(&body).map_err(|_| SearchError::Malformed)?;
        models.data.into_iter().next().map(|model| model.id).ok_or(SearchError::Malformed)
    }

    async fn post(&self, model: &str, texts: &[String], deadline: Duration) -> Result<Response, SearchError> {
        #[derive(Serialize)]
        struct Request<'a> {
            model: &'a str,
            input: &'a [String],
        }
        let body = serde_json::to_vec(&Request { model, input: texts }).map_err(|_| SearchError::Malformed)?;
        let request = self.clients.for_current_runtime()?.post(self.url.join("embeddings"));
        let request = self.authorized(request.header(CONTENT_TYPE, "application/json").body(body));
        let body = within(deadline, send(request, MAX_RESPONSE_BYTES, SearchError::Refused)).await?;
        Response::parse(&body, texts.len()).ok_or(SearchError::Malformed)
    }

    fn authorized(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.url.key {
            Some(key) => request.bearer_auth(&key.0),
            None => request,
        }
    }
}

async fn within<T>(
    deadline: Duration,
    exchange: impl Future<Output = Result<T, SearchError>>,
) -> Result<T, SearchError> {
    tokio::time::timeout(deadline, exchange).await.unwrap_or(Err(SearchError::TimedOut(deadline)))
}

/// Whether a text may be too long. Some servers report it as an internal error.
fn refuses_texts(error: &SearchError) -> bool {
    matches!(
        error,
        SearchError::Refused(
            StatusCode::BAD_REQUEST
                | StatusCode::PAYLOAD_TOO_LARGE
                | StatusCode::UNPROCESSABLE_ENTITY
                | StatusCode::INTERNAL_SERVER_ERROR
        )
    )
}

fn cut(text: &str, chars: usize) -> &str {
    text.char_indices().nth(chars).map_or(text, |(end, _)| &text[..end])
}

fn id(name: &str, dimensions: usize, passage_prefix: &str) -> EmbedderId {
    let digest = Sha256::digest(format!("{name}\n{dimensions}\n{passage_prefix}"));
    // The top bit distinguishes it from the sentence encoder's ids, which are small.
    EmbedderId(u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]]) | 1 << 31)
}

/// Waits for a server on a separate thread, because the caller's thread may belong to an async runtime.
pub(super) fn block_on<T: Send>(work: impl Future<Output = Result<T, SearchError>> + Send) -> Result<T, SearchError> {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|_| SearchError::Disconnected)?.block_on(work)
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap_or(Err(SearchError::Disconnected)))
}

/// Vectors in the order of the texts, of one size.
struct Response {
    vectors: Vec<Vec<f32>>,
    model: Option<String>,
}

impl Response {
    /// `None` if it is not a valid response for this number of texts.
    fn parse(body: &[u8], texts: usize) -> Option<Self> {
        #[derive(Deserialize)]
        struct Body {
            data: Vec<Item>,
            model: Option<String>,
        }
        #[derive(Deserialize)]
        struct Item {
            index: Option<usize>,
            embedding: Vec<f32>,
        }
        let Body { data, model } = serde_json::from_slice(body).ok()?;
        let dimensions = data.first()?.embedding.len();
        let mut vectors = vec![Vec::new(); texts];
        for (at, Item { index, embedding }) in data.into_iter().enumerate() {
            let is_vector = embedding.len() == dimensions
                && (1..=MAX_DIMENSIONS).contains(&dimensions)
                && embedding.iter().all(|number| number.is_finite())
                && embedding.iter().any(|number| *number != 0.0);
            let place = vectors.get_mut(index.unwrap_or(at)).filter(|place| place.is_empty() && is_vector)?;
            *place = embedding;
        }
        vectors.iter().all(|vector| !vector.is_empty()).then_some(Self { vectors, model })
    }

    fn dimensions(&self) -> usize {
        self.vectors.first().map_or(0, Vec::len)
    }
}

/// The base URL of a server with `/embeddings`, such as `http://HOST:8000/v1`. The default path is `/v1`. A key may stand
/// before the host, as in `https://:KEY@HOST/v1`; it is never displayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddingsUrl {
    base: Url,
    key: Option<Key>,
    socket: Option<PathBuf>,
}

#[derive(Clone, PartialEq, Eq)]
struct Key(String);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl EmbeddingsUrl {
    /// An engine on this machine that listens on this socket.
    pub fn socket(path: &Path) -> Self {
        let base = Url::parse("http://localhost/v1").expect("it is a URL");
        Self { base, key: None, socket: Some(path.to_owned()) }
    }

    fn transport(&self) -> Transport {
        match &self.socket {
            Some(socket) => Transport::Unix(socket.clone()),
            None if self.base.scheme() == "https" => Transport::Tls,
            None => Transport::Plain,
        }
    }

    fn join(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        url.set_path(&format!("{}/{path}", self.base.path().trim_end_matches('/')));
        url
    }
}

impl fmt::Display for EmbeddingsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.base.as_str())
    }
}

impl FromStr for EmbeddingsUrl {
    type Err = EmbeddingsUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut base =
            Url::parse(text).map_err(|_| EmbeddingsUrlError("it is not a URL such as http://HOST:8000/v1"))?;
        if !matches!(base.scheme(), "http" | "https") {
            return Err(EmbeddingsUrlError("it does not begin with http:// or https://"));
        }
        if base.query().is_some() || base.fragment().is_some() {
            return Err(EmbeddingsUrlError("it has a query or a fragment"));
        }
        let key = match (base.username(), base.password()) {
            ("", None) => None,
            (key, None | Some("")) | ("", Some(key)) => Some(key.to_owned()),
            _ => {
                return Err(EmbeddingsUrlError(
                    "it has a user name and a password; give only a key, as in http://:KEY@HOST",
                ));
            }
        };
        let decoded = |key: String| percent_decode_str(&key).decode_utf8().map(|key| Key(key.into_owned()));
        let key = key.map(decoded).transpose().map_err(|_| EmbeddingsUrlError("its key is not UTF-8"))?;
        let no_host = EmbeddingsUrlError("it has no host");
        base.set_username("").map_err(|()| no_host)?;
        base.set_password(None).map_err(|()| no_host)?;
        if base.path().trim_end_matches('/').is_empty() {
            base.set_path("/v1");
        }
        Ok(Self { base, key, socket: None })
    }
}

/// Does not repeat the text, which may contain a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EmbeddingsUrlError(&'static str);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed_leniently_and_keys_are_never_shown() {
        for (text, shown, key) in [
            ("http://a:8000/v1", "http://a:8000/v1", None),
            ("http://a:8000", "http://a:8000/v1", None),
            ("https://:s%C3%A4cret@a/x/", "https://a/x/", Some("säcret")),
            ("https://secret@a/v1", "https://a/v1", Some("secret")),
        ] {
            let url: EmbeddingsUrl = text.parse().unwrap();
            assert_eq!((url.to_string().as_str(), url.key.clone()), (shown, key.map(|key| Key(key.into()))), "{text}");
            assert!(!format!("{url:?}").contains("cret"), "{text}");
            assert!(url.join("embeddings").path().ends_with("/embeddings") && !url.join("x").path().contains("//"));
        }
        for text in ["", "a", "ftp://a", "http://a?x", "http://user:password@a"] {
            assert!(text.parse::<EmbeddingsUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn only_one_finite_vector_for_each_text_is_accepted() {
        let dimensions =
            |body: &str, texts| Response::parse(body.as_bytes(), texts).map(|response| response.dimensions());
        let two = r#"{"data":[{"index":1,"embedding":[1,2]},{"index":0,"embedding":[3,4]}],"model":"m"}"#;
        assert_eq!(dimensions(two, 2), Some(2));
        assert_eq!(Response::parse(two.as_bytes(), 2).unwrap().vectors[0], [3.0, 4.0]);
        assert_eq!(dimensions(r#"{"data":[{"embedding":[1]}]}"#, 1), Some(1));
        for (body, texts) in [
            (two, 1),
            (two, 3),
            ("", 1),
            (r#"{"data":[]}"#, 1),
            (r#"{"data":[{"embedding":[]}]}"#, 1),
            (r#"{"data":[{"embedding":[0,0]}]}"#, 1),
            (r#"{"data":[{"embedding":[1e39]}]}"#, 1),
            (r#"{"data":[{"embedding":[null]}]}"#, 1),
            (r#"{"data":[{"embedding":"AACAPw=="}]}"#, 1),
            (r#"{"data":[{"embedding":[1]},{"embedding":[1,2]}]}"#, 2),
            (r#"{"data":[{"index":0,"embedding":[1]},{"index":0,"embedding":[1]}]}"#, 2),
            (r#"{"data":[{"index":7,"embedding":[1]}]}"#, 1),
        ] {
            assert_eq!(dimensions(body, texts), None, "{body}");
        }
    }
}
