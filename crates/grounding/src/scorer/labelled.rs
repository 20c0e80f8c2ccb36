//! Labelled requests, one JSON object per line.

use std::path::Path;
use std::{fs, io};

use chat::{Message, Role};
use serde::Deserialize;

#[derive(Debug, Clone)]
pub struct LabelledRequest {
    pub id: String,
    /// The label; `None` if the row has none.
    pub required: Option<bool>,
    pub category: String,
    pub lang: String,
    pub messages: Vec<Message>,
}

#[derive(Debug, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct RowError {
    line: usize,
    reason: String,
}

#[derive(Deserialize)]
struct Row {
    #[serde(default)]
    id: Option<serde_json::Value>,
    #[serde(default)]
    required: Option<bool>,
    #[serde(default)]
    category: String,
    #[serde(default)]
    lang: String,
    messages: Vec<MessageRow>,
}

#[derive(Deserialize)]
struct MessageRow {
    role: String,
    content: String,
}

/// Skips blank lines. `id`, `required`, `category` and `lang` are optional. The default id is the line's number.
pub fn parse_labelled(text: &str) -> impl Iterator<Item = Result<LabelledRequest, RowError>> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines.map(|(index, line)| read(line, index + 1).map_err(|reason| RowError { line: index + 1, reason }))
}

/// The rows of the `.jsonl` files in a folder whose names begin with `prefix`, in the order of the names.
pub fn load_labelled(folder: &Path, prefix: &str) -> io::Result<Vec<LabelledRequest>> {
    let mut files = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    files.retain(|file| {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(prefix) && name.ends_with(".jsonl")
    });
    files.sort();
    let mut rows = Vec::new();
    for file in files {
        for row in parse_labelled(&fs::read_to_string(&file)?) {
            rows.push(row.map_err(|error| io::Error::other(format!("{}: {error}", file.display())))?);
        }
    }
    Ok(rows)
}

fn read(line: &str, number: usize) -> Result<LabelledRequest, String> {
    let row: Row = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let messages = row.messages.into_iter().map(|message| {
        let role = Role::from_name(&message.role).ok_or_else(|| format!("there is no role {:?}", message.role))?;
        Message::new(role, message.content).map_err(|error| format!("a message {error}"))
    });
    let id = match row.id {
        Some(serde_json::Value::String(id)) => id,
        Some(id) => id.to_string(),
        None => number.to_string(),
    };
    let messages = messages.collect::<Result<Vec<_>, String>>()?;
    Ok(LabelledRequest { id, required: row.required, category: row.category, lang: row.lang, messages })
}
