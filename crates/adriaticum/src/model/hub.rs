//! Models from the Hugging Face hub, through its own client, which knows `HF_ENDPOINT` and `HF_TOKEN`.

use std::fmt;
use std::future::ready;

use futures_util::{StreamExt, TryStreamExt};
use hf_hub::repository::{HFRepository, RepoTreeEntry, RepoTypeModel};
use hf_hub::{HFClient, HFError};
use reqwest::StatusCode;
use sha2::{Digest, Sha256};

use super::download::{self, Failure, Opened, Patience, Source, download};
use super::gguf::{Summary, Unusable};
use super::place::{self, Place, sha256};
use crate::complaint::Complaint;

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
    pub(super) async fn fetch(&self, place: &Place, patience: Patience) -> Result<Summary, Complaint> {
        let client = HFClient::builder().client(patience.client()?).retry_max_attempts(1).build();
        let client = client
            .map_err(|error| Complaint::new(format!("the hub cannot be asked: {error}. Correct HF_ENDPOINT.")))?;
        let repository = client.model(&self.owner, &self.repository);
        let files = list(&repository).await.map_err(|error| self.unlisted(&client, &error))?;
        let file = self.choose(files)?;
        // What has arrived is gone on from only if it is of the very same file.
        let key = Sha256::digest(format!("{}/{}/{}/{}", self.owner, self.repository, file.path, file.id));
        let part = place.part(&key[..8].iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        download(&HubFile { repository, file: &file }, place, &part, 0, patience).await?;
        let candidate = place.adopt(part)?;
        if let Some(expected) = &file.sha256 {
            let digest = sha256(candidate.path()).map_err(|error| place::unwritable(candidate.path(), &error))?;
            if digest != *expected {
                return Err(Complaint::new(format!(
                    "{} is not what it should be: its SHA-256 is {digest} where {expected} was promised. It was not kept. Run the command again.",
                    file.path
                )));
            }
        }
        candidate.install()
    }

    /// The file that was named, or the only one there is.
    fn choose(&self, mut files: Vec<HubEntry>) -> Result<HubEntry, Complaint> {
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
                return Err(Complaint::new(format!(
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
        Err(Complaint::new(format!("{wrong}. Name one as {owner}/{repository}/FILE: {names}{more}.")))
    }

    fn unlisted(&self, client: &HFClient, error: &HFError) -> Complaint {
        let (hub, name) = (client.endpoint(), format!("{}/{}", self.owner, self.repository));
        Complaint::new(match status(error) {
            // The hub does not tell strangers what is private.
            Some(StatusCode::NOT_FOUND | StatusCode::UNAUTHORIZED) => format!(
                "there is no file {self} here, and no repository {name} that may be read at {hub}. Correct the name, or set HF_TOKEN to a token that may read it."
            ),
            _ => format!(
                "there is no file {self} here, and the hub at {hub} cannot be asked for it: {}. Look at the network, set HF_ENDPOINT to a mirror, or give a GGUF file that you have: adriaticum model fetch --from PATH.",
                reason(error)
            ),
        })
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
    bytes: u64,
    sha256: Option<String>,
}

impl HubEntry {
    /// Itself, unless its name says that it is one of several.
    fn in_one_piece(self) -> Result<Self, Complaint> {
        let count = self.path.strip_suffix(".gguf").and_then(|stem| stem.rsplit_once("-of-")?.1.parse().ok());
        match count.filter(|count| *count > 1) {
            Some(count) => Err(Complaint::new(format!("{} {}.", self.path, Unusable::Split(count)))),
            None => Ok(self),
        }
    }
}

async fn list(repository: &HFRepository<RepoTypeModel>) -> Result<Vec<HubEntry>, HFError> {
    let entries = repository.list_tree().recursive(true).send()?;
    let files = entries.try_filter_map(|entry| {
        ready(Ok(match entry {
            RepoTreeEntry::File { path, oid, size, lfs, .. } if is_gguf(&path) => {
                Some(HubEntry { path, id: oid, bytes: size, sha256: lfs.and_then(|lfs| lfs.sha256) })
            }
            _ => None,
        }))
    });
    files.try_collect().await
}

/// A file of the hub, to be downloaded.
struct HubFile<'a> {
    repository: HFRepository<RepoTypeModel>,
    file: &'a HubEntry,
}

impl Source for HubFile<'_> {
    fn name(&self) -> String {
        self.file.path.clone()
    }

    async fn open(&self, offset: u64) -> Result<Opened, Failure> {
        let total = self.file.bytes;
        if offset > total {
            return Err(Failure::Stale);
        } else if offset == total {
            return Ok(Opened { offset, total: Some(total), pieces: futures_util::stream::empty().boxed() });
        }
        let request = self.repository.download_file_stream().filename(&self.file.path);
        let (_, pieces) = request.maybe_range((offset > 0).then_some(offset..total)).send().await.map_err(failure)?;
        // A hub that ignores the range sends more than is missing; that is noticed at the end.
        Ok(Opened { offset, total: Some(total), pieces: pieces.map_err(failure).boxed() })
    }
}

fn failure(error: HFError) -> Failure {
    let reason = reason(&error);
    match status(&error) {
        Some(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            Failure::Lasting(format!("{reason}; the hub wants you to ask for access there and to set HF_TOKEN"))
        }
        Some(status) if !download::is_passing(status) => Failure::Lasting(reason),
        _ => Failure::Passing(reason),
    }
}

fn reason(error: &HFError) -> String {
    match (status(error), error) {
        (Some(status), _) => format!("it answers {status}"),
        (None, HFError::Request { source, .. }) if source.is_timeout() => "no answer in time".into(),
        _ => download::cause(error),
    }
}

fn status(error: &HFError) -> Option<StatusCode> {
    match error {
        HFError::Http { context }
        | HFError::AuthRequired { context }
        | HFError::Forbidden { context }
        | HFError::Conflict { context }
        | HFError::RateLimited { context, .. } => Some(context.status),
        HFError::RepoNotFound { .. } | HFError::RevisionNotFound { .. } | HFError::EntryNotFound { .. } => {
            Some(StatusCode::NOT_FOUND)
        }
        _ => None,
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
