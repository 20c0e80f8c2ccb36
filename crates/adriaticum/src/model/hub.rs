//! Models from the Hugging Face hub: which files a repository holds, and where they can be had.
//!
//! The hub's own client would bring fifty crates along for these two questions, and does not know the digest by the name that
//! the hub gives it.

use std::env;
use std::fmt;
use std::path::PathBuf;

use reqwest::header::LINK;
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::download::{Patience, cause, download};
use super::gguf::{Summary, Unusable};
use super::place::{self, Place, sha256};
use super::web::WebFile;
use crate::error::CliError;

/// Where the hub is, unless `HF_ENDPOINT` names a mirror.
const HUB: &str = "https://huggingface.co";
/// What to do where the hub refuses a file.
const ACCESS: &str = "; the hub wants you to ask for access there and to set HF_TOKEN";
/// How many files are named where one has to be chosen.
const NAMED: usize = 20;

/// A repository of the hub, and perhaps a file in it.
#[derive(Debug, PartialEq)]
pub(super) struct Address {
    owner: String,
    repository: String,
    file: Option<String>,
}

impl Address {
    /// Reads `OWNER/REPO` or `OWNER/REPO/FILE.gguf`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut words = text.splitn(3, '/');
        let (owner, repository, file) = (words.next()?, words.next()?, words.next());
        let is_name = |name: &str| {
            name.starts_with(|first: char| first.is_ascii_alphanumeric())
                && name.chars().all(|each| each.is_ascii_alphanumeric() || "._-".contains(each))
        };
        let is_file = |file: &str| is_gguf(file) && file.split('/').all(|word| !["", ".", ".."].contains(&word));
        // A repository that is called like a file is more likely a path that is not there.
        let right = is_name(owner) && is_name(repository) && !is_gguf(repository) && file.is_none_or(is_file);
        right.then(|| Self { owner: owner.into(), repository: repository.into(), file: file.map(str::to_owned) })
    }

    /// Puts the model into its place.
    pub(super) async fn fetch(&self, place: &Place, patience: Patience) -> Result<Summary, CliError> {
        let hub = Hub::of_the_environment(patience)?;
        let files = hub.list(self).await.map_err(|unlisted| self.unlisted(&hub, unlisted))?;
        let file = self.choose(files)?;
        // What has arrived is gone on from only if it is of the very same file.
        let key = Sha256::digest(format!("{}/{}/{}/{}", self.owner, self.repository, file.path, file.id));
        let part = place.part(&base16ct::lower::encode_string(&key[..8]));
        download(&hub.source(self, &file), place, &part, 0, patience).await?;
        let candidate = place.adopt(part)?;
        if let Some(expected) = &file.sha256 {
            let digest = sha256(candidate.path()).map_err(|error| place::unwritable(candidate.path(), &error))?;
            if digest != *expected {
                return Err(CliError::new(format!(
                    "{} is not what it should be: its SHA-256 is {digest} where {expected} was promised. It was not kept. Run the command again.",
                    file.path
                )));
            }
        }
        candidate.install()
    }

    /// The file that was named, or the only one there is.
    fn choose(&self, mut files: Vec<HubEntry>) -> Result<HubEntry, CliError> {
        let chosen = match &self.file {
            Some(name) => files.iter().position(|file| file.path == *name),
            None => (files.len() == 1).then_some(0),
        };
        if let Some(chosen) = chosen {
            return files.swap_remove(chosen).in_one_piece();
        }
        let (owner, repository) = (&self.owner, &self.repository);
        let names: Vec<_> = files.iter().take(NAMED).map(|file| file.path.as_str()).collect();
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

    fn unlisted(&self, hub: &Hub, unlisted: Unlisted) -> CliError {
        let (hub, name) = (hub.endpoint.as_str().trim_end_matches('/'), format!("{}/{}", self.owner, self.repository));
        let reason = match unlisted {
            // The hub does not tell strangers what is private.
            Unlisted::Status(StatusCode::NOT_FOUND | StatusCode::UNAUTHORIZED) => {
                return CliError::new(format!(
                    "there is no file {self} here, and no repository {name} that may be read at {hub}. Correct the name, or set HF_TOKEN to a token that may read it."
                ));
            }
            Unlisted::Status(status) => format!("it answers {status}"),
            Unlisted::NoAnswer(error) if error.is_timeout() => "no answer in time".into(),
            Unlisted::NoAnswer(error) => cause(&error),
            Unlisted::Unreadable => "its answer is no list of files".into(),
        };
        CliError::new(format!(
            "there is no file {self} here, and the hub at {hub} cannot be asked for it: {reason}. Look at the network, set HF_ENDPOINT to a mirror, or give a GGUF file that you have: adriaticum model fetch --from PATH."
        ))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.repository)?;
        self.file.iter().try_for_each(|file| write!(f, "/{file}"))
    }
}

/// A GGUF file as the hub lists it.
struct HubEntry {
    path: String,
    /// Changes with the file's content.
    id: String,
    sha256: Option<String>,
}

impl HubEntry {
    /// Itself, unless its name says that it is one of several.
    fn in_one_piece(self) -> Result<Self, CliError> {
        let count = self.path.strip_suffix(".gguf").and_then(|stem| stem.rsplit_once("-of-")?.1.parse().ok());
        match count.filter(|count| *count > 1) {
            Some(count) => Err(CliError::new(format!("{} {}.", self.path, Unusable::Split(count)))),
            None => Ok(self),
        }
    }
}

/// Why there is no list of files.
enum Unlisted {
    Status(StatusCode),
    NoAnswer(reqwest::Error),
    Unreadable,
}

impl From<reqwest::Error> for Unlisted {
    fn from(error: reqwest::Error) -> Self {
        Self::NoAnswer(error)
    }
}

/// The hub, as whoever we are.
struct Hub {
    client: Client,
    endpoint: Url,
    token: Option<String>,
}

impl Hub {
    /// The one that the hub's own tools would ask, with the token that they would use.
    fn of_the_environment(patience: Patience) -> Result<Self, CliError> {
        let endpoint = env::var("HF_ENDPOINT").ok().filter(|endpoint| !endpoint.is_empty());
        let endpoint = Url::parse(endpoint.as_deref().unwrap_or(HUB)).ok().filter(Url::has_host);
        let endpoint = endpoint
            .ok_or_else(|| CliError::new(format!("HF_ENDPOINT is no URL of a hub. Correct it, such as to {HUB}.")))?;
        Ok(Self { client: patience.client()?, endpoint, token: token() })
    }

    async fn list(&self, of: &Address) -> Result<Vec<HubEntry>, Unlisted> {
        let mut first = self.url(["api", "models", &of.owner, &of.repository, "tree", "main"]);
        first.set_query(Some("recursive=true"));
        let (mut files, mut next) = (Vec::new(), Some(first));
        while let Some(page) = next {
            let answer = self.authorized(self.client.get(page)).send().await?;
            if !answer.status().is_success() {
                return Err(Unlisted::Status(answer.status()));
            }
            next = next_page(&answer);
            let listed: Vec<Listed> =
                serde_json::from_slice(&answer.bytes().await?).map_err(|_| Unlisted::Unreadable)?;
            files.extend(listed.into_iter().filter_map(Listed::into_gguf));
        }
        Ok(files)
    }

    fn source(&self, address: &Address, file: &HubEntry) -> WebFile {
        let folder = [&address.owner, &address.repository, "resolve", "main"];
        WebFile {
            name: file.path.clone(),
            client: self.client.clone(),
            url: self.url(folder.into_iter().chain(file.path.split('/'))),
            token: self.token.clone(),
            refused: ACCESS,
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

/// The token in `HF_TOKEN`, or the one that the hub's own tools have kept.
fn token() -> Option<String> {
    let path = |name| env::var_os(name).map(PathBuf::from);
    let cache = || path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
    let home = || path("HF_HOME").or_else(|| Some(cache()?.join("huggingface")));
    let kept = || path("HF_TOKEN_PATH").or_else(|| Some(home()?.join("token")));
    let token = env::var("HF_TOKEN").ok().or_else(|| std::fs::read_to_string(kept()?).ok())?;
    Some(token.trim().to_owned()).filter(|token| !token.is_empty())
}

/// A long list comes in pages. Wherever else one is said to be, our token has no business there.
fn next_page(answer: &Response) -> Option<Url> {
    let links = answer.headers().get(LINK)?.to_str().ok()?;
    let next = links.split(',').find(|link| link.contains("rel=\"next\""))?;
    let next = answer.url().join(next.split_once('<')?.1.split_once('>')?.0).ok()?;
    (next.origin() == answer.url().origin()).then_some(next)
}

/// What a repository holds, in the hub's words.
#[derive(Deserialize)]
struct Listed {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    oid: String,
    lfs: Option<LargeFile>,
}

#[derive(Deserialize)]
struct LargeFile {
    /// Its SHA-256.
    oid: String,
}

impl Listed {
    fn into_gguf(self) -> Option<HubEntry> {
        let Self { kind, path, oid, lfs } = self;
        (kind == "file" && is_gguf(&path)).then(|| HubEntry { path, id: oid, sha256: lfs.map(|file| file.oid) })
    }
}

fn is_gguf(name: &str) -> bool {
    name.ends_with(".gguf")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_repository_and_perhaps_a_file() {
        let address = |file: Option<&str>| {
            Some(Address { owner: "owner".into(), repository: "Repo-1.5".into(), file: file.map(str::to_owned) })
        };
        assert_eq!(Address::parse("owner/Repo-1.5"), address(None));
        assert_eq!(Address::parse("owner/Repo-1.5/a b.gguf"), address(Some("a b.gguf")));
        assert_eq!(Address::parse("owner/Repo-1.5/q4/x.gguf"), address(Some("q4/x.gguf")));
        let none =
            ["", "x", "x.gguf", "./x", "../x/y.gguf", "/x/y", "~/x", "x/y.gguf", "a/b/", "a/b/c", "a/b/../c.gguf"];
        for text in none.iter().chain(&["a//c.gguf", "https://hub.example/a/b", "a b/c", "a/b?c"]) {
            assert_eq!(Address::parse(text), None, "{text}");
        }
    }
}
