//! JSON values of any type: where a text is expected, some document has a number, a list or null. So one odd document
//! is skipped, and the rest of the response is read.

use std::borrow::Cow;
use std::collections::HashMap;

use jiff::civil::Date;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::date::{date_from_number, parse_date_or_unix_time};

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum LenientValue {
    Text(String),
    Integer(i64),
    List(Vec<LenientValue>),
    Object(HashMap<String, LenientValue>),
    Other(IgnoredAny),
}

impl LenientValue {
    /// The text, or the first of a list. Blank is none.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text.trim()).filter(|text| !text.is_empty()),
            Self::List(values) => values.iter().find_map(Self::text),
            Self::Integer(_) | Self::Object(_) | Self::Other(_) => None,
        }
    }

    /// The text, or all texts of a list as lines: paragraphs may be stored as a list.
    pub(super) fn whole_text(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::List(values) if values.len() > 1 => {
                let texts: Vec<_> = values.iter().filter_map(Self::text).collect();
                Some(texts.join("\n").into()).filter(|text: &Cow<'_, str>| !text.is_empty())
            }
            _ => self.text().map(Cow::Borrowed),
        }
    }

    /// The date, or the first of a list.
    pub(super) fn date(&self) -> Option<Date> {
        match self {
            Self::Text(text) => parse_date_or_unix_time(text),
            Self::Integer(number) => date_from_number(*number),
            Self::List(values) => values.iter().find_map(Self::date),
            Self::Object(_) | Self::Other(_) => None,
        }
    }

    /// The member at a path such as `meta.title`, nested or with the dot in its name.
    pub(super) fn get(&self, path: &str) -> Option<&Self> {
        let Self::Object(members) = self else { return None };
        members.get(path).or_else(|| {
            let (first, rest) = path.split_once('.')?;
            members.get(first)?.get(rest)
        })
    }
}
