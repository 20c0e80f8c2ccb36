//! JSON values of any type. Some documents have a number, a list or null instead of a text. Such a document is skipped,
//! and the rest of the response is read.

use std::borrow::Cow;

use jiff::civil::Date;
use serde_json::Value;

use crate::date::{date_from_number, parse_date_or_unix_time};

/// The text, or the first text of a list. `None` if blank.
pub(super) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::String(text) => Some(text.trim()).filter(|text| !text.is_empty()),
        Value::Array(values) => values.iter().find_map(text),
        _ => None,
    }
}

/// The text, or all texts of a list as lines, because paragraphs may be stored as a list.
pub(super) fn whole_text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::Array(values) if values.len() > 1 => {
            let texts: Vec<_> = values.iter().filter_map(text).collect();
            Some(texts.join("\n").into()).filter(|text: &Cow<'_, str>| !text.is_empty())
        }
        _ => text(value).map(Cow::Borrowed),
    }
}

/// The date, or the first date of a list.
pub(super) fn date(value: &Value) -> Option<Date> {
    match value {
        Value::String(text) => parse_date_or_unix_time(text),
        Value::Number(number) => date_from_number(number.as_i64()?),
        Value::Array(values) => values.iter().find_map(date),
        _ => None,
    }
}

/// The member at a path such as `meta.title`, nested or with the dot in its name.
pub(super) fn member<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    value.as_object()?.get(path).or_else(|| {
        let (first, rest) = path.split_once('.')?;
        member(value.get(first)?, rest)
    })
}
