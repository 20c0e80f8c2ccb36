//! JSON values of any type. Some documents have a number, a list or null instead of a text. Such a document is skipped,
//! and the rest of the response is read.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use jiff::civil::Date;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::date::{date_from_number, parse_date_or_unix_time};

#[derive(Debug)]
pub(super) enum LenientValue {
    Text(String),
    Integer(i64),
    List(Vec<LenientValue>),
    Object(HashMap<String, LenientValue>),
    Other,
}

/// Not derived, because `serde(untagged)` reads each value again for every list or object around it.
impl<'de> Deserialize<'de> for LenientValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = LenientValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_str<E>(self, text: &str) -> Result<LenientValue, E> {
        Ok(LenientValue::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<LenientValue, E> {
        Ok(LenientValue::Text(text))
    }

    fn visit_i64<E>(self, number: i64) -> Result<LenientValue, E> {
        Ok(LenientValue::Integer(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<LenientValue, E> {
        Ok(i64::try_from(number).map_or(LenientValue::Other, LenientValue::Integer))
    }

    fn visit_f64<E>(self, _: f64) -> Result<LenientValue, E> {
        Ok(LenientValue::Other)
    }

    fn visit_bool<E>(self, _: bool) -> Result<LenientValue, E> {
        Ok(LenientValue::Other)
    }

    fn visit_unit<E>(self) -> Result<LenientValue, E> {
        Ok(LenientValue::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<LenientValue, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = values.next_element()? {
            list.push(value);
        }
        Ok(LenientValue::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<LenientValue, A::Error> {
        let mut object = HashMap::new();
        while let Some((name, value)) = members.next_entry()? {
            object.insert(name, value);
        }
        Ok(LenientValue::Object(object))
    }
}

impl LenientValue {
    /// The text, or the first text of a list. `None` if blank.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text.trim()).filter(|text| !text.is_empty()),
            Self::List(values) => values.iter().find_map(Self::text),
            Self::Integer(_) | Self::Object(_) | Self::Other => None,
        }
    }

    /// The text, or all texts of a list as lines, because paragraphs may be stored as a list.
    pub(super) fn whole_text(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::List(values) if values.len() > 1 => {
                let texts: Vec<_> = values.iter().filter_map(Self::text).collect();
                Some(texts.join("\n").into()).filter(|text: &Cow<'_, str>| !text.is_empty())
            }
            _ => self.text().map(Cow::Borrowed),
        }
    }

    /// The date, or the first date of a list.
    pub(super) fn date(&self) -> Option<Date> {
        match self {
            Self::Text(text) => parse_date_or_unix_time(text),
            Self::Integer(number) => date_from_number(*number),
            Self::List(values) => values.iter().find_map(Self::date),
            Self::Object(_) | Self::Other => None,
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
