//! The list of indexed folders, stored as the payload of every commit: never older or newer than the passages.
//! Format: a line with the version and the index's id, then a line for each collection with six values separated by tabs.
//! Text is percent-encoded.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};

use super::schema::VERSION;
use super::{IndexError, IndexId};

const MAGIC: &str = "adriaticum index";

/// The characters that are percent-encoded in a path.
const PATH_ENCODE_SET: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A folder whose documents are indexed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collection {
    pub folder: PathBuf,
    /// Without one, URLs begin with `local:`.
    pub url_prefix: Option<String>,
    /// The time of the last run, finished or interrupted.
    pub indexed_at: Timestamp,
    pub documents: u64,
    pub passages: u64,
    /// The size of their files.
    pub bytes: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Catalogue {
    pub(super) id: IndexId,
    pub(super) collections: Vec<Collection>,
}

impl Catalogue {
    pub(super) fn new(id: IndexId) -> Self {
        Self { id, collections: Vec::new() }
    }

    pub(super) fn parse(payload: &str) -> Result<Self, IndexError> {
        let mut lines = payload.lines();
        let first = lines.next().and_then(|line| line.strip_prefix(MAGIC)?.trim().split_once(' '));
        let id = match first {
            Some((version, id)) if version == VERSION.to_string() => IndexId::from(id.to_owned()),
            _ => return Err(IndexError::OtherVersion),
        };
        let collections: Option<_> = lines.map(parse_line).collect();
        let collections = collections.ok_or_else(|| IndexError::Unreadable("its list of folders is damaged".into()))?;
        Ok(Self { id, collections })
    }

    pub(super) fn format(&self) -> String {
        let mut payload = format!("{MAGIC} {VERSION} {}\n", self.id);
        for collection in &self.collections {
            payload.push_str(&format_line(collection));
        }
        payload
    }

    pub(super) fn get(&self, folder: &Path) -> Option<&Collection> {
        self.collections.iter().find(|collection| collection.folder == folder)
    }

    /// Replaces the collection with the same folder, or appends.
    pub(super) fn set(&mut self, collection: Collection) {
        match self.collections.iter_mut().find(|other| other.folder == collection.folder) {
            Some(other) => *other = collection,
            None => self.collections.push(collection),
        }
    }
}

pub(super) fn encode_path(path: &Path) -> String {
    percent_encode(path.as_os_str().as_bytes(), PATH_ENCODE_SET).to_string()
}

pub(super) fn decode_path(encoded: &str) -> PathBuf {
    PathBuf::from(OsString::from_vec(percent_decode_str(encoded).collect()))
}

fn format_line(collection: &Collection) -> String {
    let Collection { folder, url_prefix, indexed_at, documents, passages, bytes } = collection;
    let prefix = percent_encode(url_prefix.as_deref().unwrap_or_default().as_bytes(), NON_ALPHANUMERIC);
    format!("{}\t{prefix}\t{indexed_at}\t{documents}\t{passages}\t{bytes}\n", encode_path(folder))
}

fn parse_line(line: &str) -> Option<Collection> {
    let mut values = line.split('\t');
    let collection = Collection {
        folder: decode_path(values.next()?),
        url_prefix: Some(percent_decode_str(values.next()?).decode_utf8().ok()?.into_owned()).filter(|p| !p.is_empty()),
        indexed_at: values.next()?.parse().ok()?,
        documents: values.next()?.parse().ok()?,
        passages: values.next()?.parse().ok()?,
        bytes: values.next()?.parse().ok()?,
    };
    values.next().is_none().then_some(collection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_catalogue_reads_back() {
        let collection = |folder: &[u8], url_prefix: Option<&str>| Collection {
            folder: PathBuf::from(OsString::from_vec(folder.to_vec())),
            url_prefix: url_prefix.map(str::to_owned),
            indexed_at: Timestamp::UNIX_EPOCH,
            documents: 1,
            passages: 2,
            bytes: 3,
        };
        let catalogue = Catalogue {
            id: IndexId::random(),
            collections: vec![
                collection("/srv/Doku\tmente\n€".as_bytes(), Some("https://docs.example/?p=")),
                collection(b"/srv/not utf-8 \xFF", None),
            ],
        };
        assert_eq!(Catalogue::parse(&catalogue.format()).ok(), Some(catalogue));
    }

    #[test]
    fn other_versions_are_distinguished_from_damaged_payloads() {
        let other = format!("{MAGIC} {} id\n", VERSION + 1);
        assert!(matches!(Catalogue::parse(&other), Err(IndexError::OtherVersion)));
        assert!(matches!(Catalogue::parse(""), Err(IndexError::OtherVersion)));
        let cut_off = format!("{MAGIC} {VERSION} id\n/srv\t\t1970");
        assert!(matches!(Catalogue::parse(&cut_off), Err(IndexError::Unreadable(_))));
    }
}
