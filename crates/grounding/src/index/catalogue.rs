//! What has been indexed: written with every commit as its payload, so that it is never older or newer than the
//! passages.
//!
//! A line with the version, then a line for every collection: six values between tabs, text percent-encoded.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};

use super::IndexError;
use super::schema::VERSION;

const NAME: &str = "adriaticum index";

/// What a path may contain in an address.
pub(super) const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A folder whose documents are indexed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collection {
    /// Where the documents are.
    pub folder: PathBuf,
    /// What their addresses begin with; without one they are `local:`.
    pub url_prefix: Option<String>,
    /// When it was last indexed, wholly or until that was interrupted.
    pub indexed_at: Timestamp,
    /// How many documents are in the index.
    pub documents: u64,
    /// How many passages they make.
    pub passages: u64,
    /// How large their files are.
    pub bytes: u64,
}

/// All collections.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Catalogue {
    pub(super) collections: Vec<Collection>,
}

impl Catalogue {
    /// Reads a commit's payload.
    pub(super) fn parse(payload: &str) -> Result<Self, IndexError> {
        let mut lines = payload.lines();
        let version = lines.next().and_then(|line| line.strip_prefix(NAME)).map(str::trim);
        if version != Some(VERSION.to_string().as_str()) {
            return Err(IndexError::OtherVersion);
        }
        let collections: Option<_> = lines.map(parse_line).collect();
        Ok(Self { collections: collections.ok_or_else(|| IndexError::Unreadable("its list of folders".into()))? })
    }

    /// As a commit's payload.
    pub(super) fn format(&self) -> String {
        let mut payload = format!("{NAME} {VERSION}\n");
        for collection in &self.collections {
            payload.push_str(&format_line(collection));
        }
        payload
    }

    pub(super) fn get(&self, folder: &Path) -> Option<&Collection> {
        self.collections.iter().find(|collection| collection.folder == folder)
    }

    /// Puts a collection in the place of the one with its folder, or behind the others.
    pub(super) fn set(&mut self, collection: Collection) {
        match self.collections.iter_mut().find(|other| other.folder == collection.folder) {
            Some(other) => *other = collection,
            None => self.collections.push(collection),
        }
    }
}

/// A path's bytes, so that they can stand in an address.
pub(super) fn encode_path(path: &Path) -> String {
    percent_encode(path.as_os_str().as_bytes(), PATH).to_string()
}

/// What `encode_path` has encoded.
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
            collections: vec![
                collection("/srv/Doku\tmente\n€".as_bytes(), Some("https://docs.example/?p=")),
                collection(b"/srv/not utf-8 \xFF", None),
            ],
        };
        assert_eq!(Catalogue::parse(&catalogue.format()).ok(), Some(catalogue));
    }

    #[test]
    fn other_versions_and_nonsense_are_told_apart() {
        let other = format!("{NAME} {}\n", VERSION + 1);
        assert!(matches!(Catalogue::parse(&other), Err(IndexError::OtherVersion)));
        assert!(matches!(Catalogue::parse(""), Err(IndexError::OtherVersion)));
        let cut_off = format!("{NAME} {VERSION}\n/srv\t\t1970");
        assert!(matches!(Catalogue::parse(&cut_off), Err(IndexError::Unreadable(_))));
    }
}
