//! LabelledRequest requests: one JSON object a line.

use chat::{Message, Role};
use serde::Deserialize;

/// A request with what is known about it.
#[derive(Debug, Clone)]
pub struct LabelledRequest {
    /// What it is called.
    pub id: String,
    /// Whether facts are required, by the rule; none if nobody has said so.
    pub required: Option<bool>,
    /// What kind of request it is.
    pub category: String,
    /// Its language.
    pub lang: String,
    /// The conversation.
    pub messages: Vec<Message>,
}

/// Why a line is not a request.
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

/// Reads every line that is not blank. `id`, `required`, `category` and `lang` may be missing; a line's number is then its id.
pub fn parse_labelled(text: &str) -> impl Iterator<Item = Result<LabelledRequest, RowError>> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines.map(|(index, line)| read(line, index + 1).map_err(|reason| RowError { line: index + 1, reason }))
}

fn read(line: &str, number: usize) -> Result<LabelledRequest, String> {
    let row: Row = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let messages = row.messages.into_iter().map(|said| {
        let role = Role::from_name(&said.role).ok_or_else(|| format!("there is no role {:?}", said.role))?;
        Message::new(role, said.content).map_err(|error| format!("a message {error}"))
    });
    let id = match row.id {
        Some(serde_json::Value::String(id)) => id,
        Some(id) => id.to_string(),
        None => number.to_string(),
    };
    let messages = messages.collect::<Result<Vec<_>, String>>()?;
    Ok(LabelledRequest { id, required: row.required, category: row.category, lang: row.lang, messages })
}
