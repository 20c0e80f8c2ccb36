//! JSON values whose type nobody promises: what should be a text may be a number, a list or null in some document.
//! So one odd document costs itself, never the whole answer.

use std::borrow::Cow;
use std::collections::HashMap;

use jiff::civil::Date;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::date::{date_from_number, parse_date_or_unix_time};

/// A value of any type, as far as we can use it.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum LenientValue {
    Text(String),
    Whole(i64),
    Many(Vec<LenientValue>),
    Members(HashMap<String, LenientValue>),
    Other(IgnoredAny),
}

impl LenientValue {
    /// The text, or the first one of a list. Blank is none.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text.trim()).filter(|text| !text.is_empty()),
            Self::Many(values) => values.iter().find_map(Self::text),
            Self::Whole(_) | Self::Members(_) | Self::Other(_) => None,
        }
    }

    /// The text, or all of a list, line by line: paragraphs may be kept as one.
    pub(super) fn whole_text(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Many(values) if values.len() > 1 => {
                let texts: Vec<_> = values.iter().filter_map(Self::text).collect();
                Some(texts.join("\n").into()).filter(|text: &Cow<'_, str>| !text.is_empty())
            }
            _ => self.text().map(Cow::Borrowed),
        }
    }

    /// The day, or the first one of a list.
    pub(super) fn date(&self) -> Option<Date> {
        match self {
            Self::Text(text) => parse_date_or_unix_time(text),
            Self::Whole(number) => date_from_number(*number),
            Self::Many(values) => values.iter().find_map(Self::date),
            Self::Members(_) | Self::Other(_) => None,
        }
    }

    /// The member at a path such as `meta.title`, written as one name or nested.
    pub(super) fn at(&self, path: &str) -> Option<&Self> {
        let Self::Members(members) = self else { return None };
        members.get(path).or_else(|| {
            let (first, rest) = path.split_once('.')?;
            members.get(first)?.at(rest)
        })
    }
}
