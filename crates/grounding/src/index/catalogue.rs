//! The list of indexed folders, stored as the payload of every commit: never older or newer than the passages.
//! Format: a line with the version, then JSON.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use serde::{Deserialize, Serialize};

use super::files::sha256_hex;
use super::schema::VERSION;
use super::{IndexError, IndexId};

const MAGIC: &str = "adriaticum index";

/// The characters that are percent-encoded in a path.
const PATH_ENCODE_SET: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A folder whose documents are indexed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collection {
    #[serde(with = "encoded_path")]
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

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Catalogue {
    pub(super) id: IndexId,
    pub(super) collections: Vec<Collection>,
}

impl Catalogue {
    pub(super) fn new(id: IndexId) -> Self {
        Self { id, collections: Vec::new() }
    }

    pub(super) fn parse(payload: &str) -> Result<Self, IndexError> {
        match payload.split_once('\n') {
            Some((first, json)) if first == first_line() => {
                serde_json::from_str(json).map_err(|_| IndexError::Unreadable("its list of folders is damaged".into()))
            }
            _ => Err(IndexError::OtherVersion),
        }
    }

    pub(super) fn format(&self) -> String {
        let json = serde_json::to_string(self).expect("text and numbers are JSON");
        format!("{}\n{json}", first_line())
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

fn first_line() -> String {
    format!("{MAGIC} {VERSION}")
}

pub(super) fn encode_path(path: &Path) -> String {
    percent_encode(path.as_os_str().as_bytes(), PATH_ENCODE_SET).to_string()
}

/// The term of a file, by its path within the folder.
pub(super) fn file_term(collection: &str, path: &Path) -> String {
    format!("{collection}/{}", encode_path(path))
}

/// A short term for a folder.
pub(super) fn collection_id(folder: &Path) -> String {
    sha256_hex(folder.as_os_str().as_encoded_bytes())[..16].to_owned()
}

/// Paths in JSON, which need not be UTF-8.
pub(super) mod encoded_path {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    use std::path::{Path, PathBuf};

    use percent_encoding::percent_decode_str;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(in crate::index) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::encode_path(path))
    }

    pub(in crate::index) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        let encoded = String::deserialize(deserializer)?;
        Ok(OsString::from_vec(percent_decode_str(&encoded).collect()).into())
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

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
        let other = format!("{MAGIC} {}\n{{}}", VERSION + 1);
        assert!(matches!(Catalogue::parse(&other), Err(IndexError::OtherVersion)));
        assert!(matches!(Catalogue::parse(""), Err(IndexError::OtherVersion)));
        let cut_off = format!("{MAGIC} {VERSION}\n{{\"id\":\"id\",\"coll");
        assert!(matches!(Catalogue::parse(&cut_off), Err(IndexError::Unreadable(_))));
    }
}
