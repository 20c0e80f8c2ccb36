//! Models from the Hugging Face hub: lists a repository's files and downloads one.
//!
//! The hub's own client would add fifty crates for these two requests, and does not read the digest under the name that
//! the hub gives it.

use std::env;
use std::fmt;
use std::path::PathBuf;

use reqwest::header::LINK;
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::download::{RetryPolicy, download};
use super::gguf::{GgufError, Summary};
use super::model_dir::ModelDir;
use super::web::WebFile;
use crate::error::{CliError, root_cause};

/// Unless `HF_ENDPOINT` names a mirror.
const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
const ACCESS_HINT: &str = "; request access on the hub and set HF_TOKEN";
/// The maximum of files that a message lists when one has to be chosen.
const MAX_FILES_LISTED: usize = 20;

/// `OWNER/REPO` or `OWNER/REPO/FILE.gguf`.
#[derive(Debug, PartialEq)]
pub(super) struct HubPath {
    owner: String,
    repository: String,
    file: Option<String>,
}

impl HubPath {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut words = text.splitn(3, '/');
        let (owner, repository, file) = (words.next()?, words.next()?, words.next());
        let is_name = |name: &str| {
            name.starts_with(|first: char| first.is_ascii_alphanumeric())
                && name.chars().all(|each| each.is_ascii_alphanumeric() || "._-".contains(each))
        };
        let is_file = |file: &str| is_gguf(file) && file.split('/').all(|word| !["", ".", ".."].contains(&word));
        // A "repository" that is named like a file is more likely a wrong path.
        let right = is_name(owner) && is_name(repository) && !is_gguf(repository) && file.is_none_or(is_file);
        right.then(|| Self { owner: owner.into(), repository: repository.into(), file: file.map(str::to_owned) })
    }

    pub(super) async fn fetch(&self, model_dir: &ModelDir, retry: RetryPolicy) -> Result<Summary, CliError> {
        let hub = Hub::from_env(retry)?;
        let files = hub.list(self).await.map_err(|error| self.list_error(&hub, error))?;
        let file = self.choose(files)?;
        // A partial download is resumed only if it is of the same version of the same file.
        let key = Sha256::digest(format!("{}/{}/{}/{}", self.owner, self.repository, file.path, file.id));
        let part = model_dir.part_path(&base16ct::lower::encode_string(&key[..8]));
        download(&hub.source(self, &file), model_dir, &part, 0, retry).await?;
        let candidate = model_dir.open_candidate(part)?;
        candidate.require_sha256(&file.path, file.sha256.as_deref())?;
        candidate.install()
    }

    /// The file that was named, or the only one.
    fn choose(&self, mut files: Vec<HubFile>) -> Result<HubFile, CliError> {
        let chosen = match &self.file {
            Some(name) => files.iter().position(|file| file.path == *name),
            None => (files.len() == 1).then_some(0),
        };
        if let Some(chosen) = chosen {
            return files.swap_remove(chosen).require_unsplit();
        }
        let (owner, repository) = (&self.owner, &self.repository);
        let names: Vec<_> = files.iter().take(MAX_FILES_LISTED).map(|file| file.path.as_str()).collect();
        let wrong = match &self.file {
            _ if files.is_empty() => {
                return Err(CliError::new(format!(
                    "{owner}/{repository} holds no GGUF file. Look for a repository of the same model that does."
                )));
            }
            Some(name) => format!("{owner}/{repository} does not hold {name}"),
            None => format!("{owner}/{repository} holds more than one GGUF file"),
        };
        let more = match files.len() - names.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let names = names.join(", ");
        Err(CliError::new(format!("{wrong}. Name one as {owner}/{repository}/FILE: {names}{more}.")))
    }

    fn list_error(&self, hub: &Hub, error: ListError) -> CliError {
        let (hub, name) = (hub.endpoint.as_str().trim_end_matches('/'), format!("{}/{}", self.owner, self.repository));
        let reason = match error {
            // The hub answers 401 or 404 for private repositories.
            ListError::Status(StatusCode::NOT_FOUND | StatusCode::UNAUTHORIZED) => {
                return CliError::new(format!(
                    "there is no file {self} here, and no repository {name} that may be read at {hub}. Correct the \
                     name, or set HF_TOKEN to a token that may read it."
                ));
            }
            ListError::Status(status) => format!("it answers {status}"),
            ListError::Request(error) if error.is_timeout() => "no response in time".into(),
            ListError::Request(error) => root_cause(&error),
            ListError::Malformed => "its response is not a list of files".into(),
        };
        CliError::new(format!(
            "there is no file {self} here, and the hub at {hub} cannot be reached: {reason}. Check the network, set \
             HF_ENDPOINT to a mirror, or use a GGUF file of your own: adriaticum model fetch --from PATH."
        ))
    }
}

impl fmt::Display for HubPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.repository)?;
        self.file.iter().try_for_each(|file| write!(f, "/{file}"))
    }
}

/// A GGUF file as the hub lists it.
struct HubFile {
    path: String,
    /// The hub's object id, which changes with the content.
    id: String,
    sha256: Option<String>,
}

impl HubFile {
    /// An error if the name says that it is one part of a split model.
    fn require_unsplit(self) -> Result<Self, CliError> {
        let count = self.path.strip_suffix(".gguf").and_then(|stem| stem.rsplit_once("-of-")?.1.parse().ok());
        match count.filter(|count| *count > 1) {
            Some(count) => Err(CliError::new(format!("{} {}.", self.path, GgufError::Split(count)))),
            None => Ok(self),
        }
    }
}

enum ListError {
    Status(StatusCode),
    Request(reqwest::Error),
    Malformed,
}

impl From<reqwest::Error> for ListError {
    fn from(error: reqwest::Error) -> Self {
        Self::Request(error)
    }
}

struct Hub {
    client: Client,
    endpoint: Url,
    token: Option<String>,
}

impl Hub {
    /// With the endpoint and the token that the hub's own tools would use.
    fn from_env(retry: RetryPolicy) -> Result<Self, CliError> {
        let endpoint = env::var("HF_ENDPOINT").ok().filter(|endpoint| !endpoint.is_empty());
        let endpoint = Url::parse(endpoint.as_deref().unwrap_or(DEFAULT_ENDPOINT)).ok().filter(Url::has_host);
        let endpoint = endpoint.ok_or_else(|| {
            CliError::new(format!("HF_ENDPOINT is not a URL of a hub. Correct it, for example to {DEFAULT_ENDPOINT}."))
        })?;
        Ok(Self { client: retry.client()?, endpoint, token: token() })
    }

    async fn list(&self, of: &HubPath) -> Result<Vec<HubFile>, ListError> {
        let mut first = self.url(["api", "models", &of.owner, &of.repository, "tree", "main"]);
        first.set_query(Some("recursive=true"));
        let (mut files, mut next) = (Vec::new(), Some(first));
        while let Some(page) = next {
            let response = self.authorized(self.client.get(page)).send().await?;
            if !response.status().is_success() {
                return Err(ListError::Status(response.status()));
            }
            next = next_page(&response);
            let listed: Vec<TreeEntry> =
                serde_json::from_slice(&response.bytes().await?).map_err(|_| ListError::Malformed)?;
            files.extend(listed.into_iter().filter_map(TreeEntry::into_gguf));
        }
        Ok(files)
    }

    fn source(&self, address: &HubPath, file: &HubFile) -> WebFile {
        let folder = [&address.owner, &address.repository, "resolve", "main"];
        WebFile {
            name: file.path.clone(),
            client: self.client.clone(),
            url: self.url(folder.into_iter().chain(file.path.split('/'))),
            token: self.token.clone(),
            access_hint: ACCESS_HINT,
        }
    }

    fn url<'a>(&self, path: impl IntoIterator<Item = &'a str>) -> Url {
        let mut url = self.endpoint.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        url
    }

    fn authorized(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }
}

/// The token in `HF_TOKEN`, or the one that the hub's own tools have stored.
fn token() -> Option<String> {
    let path = |name| env::var_os(name).map(PathBuf::from);
    let cache = || path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
    let home = || path("HF_HOME").or_else(|| Some(cache()?.join("huggingface")));
    let token_file = || path("HF_TOKEN_PATH").or_else(|| Some(home()?.join("token")));
    let token = env::var("HF_TOKEN").ok().or_else(|| std::fs::read_to_string(token_file()?).ok())?;
    Some(token.trim().to_owned()).filter(|token| !token.is_empty())
}

/// The next page of a long list. Links to another origin are ignored: it must not get the token.
fn next_page(response: &Response) -> Option<Url> {
    let links = response.headers().get(LINK)?.to_str().ok()?;
    let next = links.split(',').find(|link| link.contains("rel=\"next\""))?;
    let next = response.url().join(next.split_once('<')?.1.split_once('>')?.0).ok()?;
    (next.origin() == response.url().origin()).then_some(next)
}

/// An entry of a repository's tree, as the hub's API has it.
#[derive(Deserialize)]
struct TreeEntry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    oid: String,
    lfs: Option<LfsPointer>,
}

#[derive(Deserialize)]
struct LfsPointer {
    /// The SHA-256.
    oid: String,
}

impl TreeEntry {
    fn into_gguf(self) -> Option<HubFile> {
        let Self { kind, path, oid, lfs } = self;
        (kind == "file" && is_gguf(&path)).then(|| HubFile { path, id: oid, sha256: lfs.map(|file| file.oid) })
    }
}

fn is_gguf(name: &str) -> bool {
    name.ends_with(".gguf")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_path_is_a_repository_and_perhaps_a_file() {
        let address = |file: Option<&str>| {
            Some(HubPath { owner: "owner".into(), repository: "Repo-1.5".into(), file: file.map(str::to_owned) })
        };
        assert_eq!(HubPath::parse("owner/Repo-1.5"), address(None));
        assert_eq!(HubPath::parse("owner/Repo-1.5/a b.gguf"), address(Some("a b.gguf")));
        assert_eq!(HubPath::parse("owner/Repo-1.5/q4/x.gguf"), address(Some("q4/x.gguf")));
        let none =
            ["", "x", "x.gguf", "./x", "../x/y.gguf", "/x/y", "~/x", "x/y.gguf", "a/b/", "a/b/c", "a/b/../c.gguf"];
        for text in none.iter().chain(&["a//c.gguf", "https://hub.example/a/b", "a b/c", "a/b?c"]) {
            assert_eq!(HubPath::parse(text), None, "{text}");
        }
    }
}
