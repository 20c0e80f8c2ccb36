//! The configuration file.

use std::path::{Path, PathBuf};

use crate::error::CliError;

const DEFAULT_FILE: &str = "adriaticum.toml";

pub(super) fn read(file: Option<&Path>) -> Result<Option<(PathBuf, String)>, CliError> {
    let path = file.unwrap_or(Path::new(DEFAULT_FILE));
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some((path.to_owned(), text))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && file.is_none() => Ok(None),
        Err(error) => Err(CliError::new(format!(
            "the configuration {} cannot be read: {error}. Make it readable, or name another file with --config.",
            path.display()
        ))),
    }
}

/// The settings in a file: tables become dotted names, arrays comma-separated lists.
pub(super) fn parse(path: &Path, text: &str) -> Result<Vec<(String, String)>, CliError> {
    let wrong = |reason: String| CliError::new(format!("the configuration {} is wrong: {reason}", path.display()));
    // Without the parser's excerpt, which quotes the line and any secret in it.
    let table = text.parse::<toml::Table>().map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        wrong(format!("line {line}: {}", error.message()))
    })?;
    let mut settings = Vec::new();
    let mut pending: Vec<_> = table.into_iter().collect();
    while let Some((name, value)) = pending.pop() {
        match value {
            toml::Value::Table(table) => {
                pending.extend(table.into_iter().map(|(below, value)| (format!("{name}.{below}"), value)));
            }
            toml::Value::Array(list) => {
                let texts = list.iter().map(|each| each.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>();
                let texts = texts.ok_or_else(|| wrong(format!("`{name}` must be a list of strings")))?;
                settings.push((name, texts.join(",")));
            }
            toml::Value::String(text) => settings.push((name, text)),
            other => settings.push((name, other.to_string())),
        }
    }
    Ok(settings)
}
