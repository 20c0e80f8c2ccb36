//! Parses a body strictly into a `ChatRequest`: first the syntax, then each member. An error names the member, the limit
//! and the value that was sent, but never repeats message text.

use std::borrow::Cow;

use chat::{ChatRequest, LimitError, MODEL, MaxTokens, Message, Role, Temperature};

use crate::hints;
use crate::json::Json;

pub const MAX_BODY_BYTES: usize = 262_144;

/// Accepted members, in the order in which they are checked.
pub const REQUEST_MEMBERS: [&str; 4] = ["model", "messages", "temperature", "max_tokens"];
pub const MESSAGE_MEMBERS: [&str; 2] = ["role", "content"];

/// Displays as a sentence for the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RequestError(String);

pub fn parse_request(body: &[u8]) -> Result<ChatRequest, RequestError> {
    let [model, messages, temperature, max_tokens] = take_members(document(body)?, Location::Body, REQUEST_MEMBERS)?;
    check_model(required(model, Location::Body, "model")?)?;
    let messages = read_messages(messages, Message::new)?;
    let (temperature, max_tokens) = read_sampling(temperature, max_tokens)?;
    ChatRequest::new(messages, temperature, max_tokens).map_err(|bound| refuse(Location::Body, "messages", bound))
}

/// Parses the output of `runtime::request`. The model may have any name, and messages may be longer than a caller's,
/// because grounding extends them.
pub fn parse_runtime_request(body: &[u8]) -> Result<ChatRequest, RequestError> {
    let accepted = ["model", "messages", "temperature", "max_tokens", "stream"];
    let [_, messages, temperature, max_tokens, stream] = take_members(document(body)?, Location::Body, accepted)?;
    match stream {
        None | Some(Json::Bool(false)) => {
            let messages = read_messages(messages, |role, text| Ok(Message::for_runtime(role, text)))?;
            let (temperature, max_tokens) = read_sampling(temperature, max_tokens)?;
            ChatRequest::for_runtime(messages, temperature, max_tokens)
                .map_err(|bound| refuse(Location::Body, "messages", bound))
        }
        Some(_) => Err(refuse(Location::Body, "stream", "must be false: answers come whole")),
    }
}

fn document(body: &[u8]) -> Result<Json<'_>, RequestError> {
    Json::parse(body).map_err(|error| RequestError(format!("The body is not valid JSON: {error}.")))
}

/// `Message::new`, or its unlimited form for runtimes.
type MakeMessage = fn(Role, String) -> Result<Message, LimitError>;

fn read_sampling(
    temperature: Option<Json<'_>>,
    max_tokens: Option<Json<'_>>,
) -> Result<(Temperature, MaxTokens), RequestError> {
    let temperature = temperature.map_or(Ok(Temperature::default()), read_temperature)?;
    Ok((temperature, max_tokens.map_or(Ok(MaxTokens::default()), read_max_tokens)?))
}

fn check_model(value: Json<'_>) -> Result<(), RequestError> {
    match value {
        Json::String(name) if name == MODEL => Ok(()),
        Json::String(name) => {
            Err(refuse(Location::Body, "model", format!("must be exactly `{MODEL}`; got `{}`", excerpt(&name))))
        }
        other => Err(wrong_type(Location::Body, "model", "a string", &other)),
    }
}

fn read_messages(value: Option<Json<'_>>, make: MakeMessage) -> Result<Vec<Message>, RequestError> {
    match required(value, Location::Body, "messages")? {
        Json::Array(elements) => {
            elements.into_iter().enumerate().map(|(at, each)| read_message(at, each, make)).collect()
        }
        other => Err(wrong_type(Location::Body, "messages", "an array of message objects", &other)),
    }
}

fn read_message(at: usize, value: Json<'_>, make: MakeMessage) -> Result<Message, RequestError> {
    let location = Location::Message(at);
    let [role, content] = take_members(value, location, MESSAGE_MEMBERS)?;
    let role = match required(role, location, "role")? {
        Json::String(name) => Role::from_name(&name).ok_or_else(|| {
            let roles = list(&Role::ALL.map(Role::as_str));
            let hint = hints::for_role(&name).map(|hint| format!(": {hint}")).unwrap_or_default();
            refuse(location, "role", format!("must be one of {roles}; got `{}`{hint}", excerpt(&name)))
        })?,
        other => return Err(wrong_type(location, "role", "a string", &other)),
    };
    match required(content, location, "content")? {
        Json::String(text) => make(role, text.into_owned()).map_err(|bound| refuse(location, "content", bound)),
        Json::Array(_) => Err(refuse(
            location,
            "content",
            "must be a string; got an array. Content in parts is not accepted: join the texts into one string",
        )),
        other => Err(wrong_type(location, "content", "a string", &other)),
    }
}

fn read_temperature(value: Json<'_>) -> Result<Temperature, RequestError> {
    let number = match value {
        Json::Integer(number) => number as f64,
        Json::Fraction(number) => number,
        other => return Err(wrong_type(Location::Body, "temperature", "a number", &other)),
    };
    Temperature::new(number).map_err(|bound| refuse(Location::Body, "temperature", bound))
}

fn read_max_tokens(value: Json<'_>) -> Result<MaxTokens, RequestError> {
    match value {
        Json::Integer(number) => MaxTokens::new(number).map_err(|bound| refuse(Location::Body, "max_tokens", bound)),
        // The JSON parser reads a too long integer as a fraction; as an integer it is out of bounds.
        Json::Fraction(number) if number.fract() == 0.0 && number.abs() >= u64::MAX as f64 => {
            Err(refuse(Location::Body, "max_tokens", LimitError::MaxTokensOverflow(number)))
        }
        Json::Fraction(number) => Err(refuse(
            Location::Body,
            "max_tokens",
            format!("must be an integer, without fraction or exponent; got {number:?}"),
        )),
        other => Err(wrong_type(Location::Body, "max_tokens", "an integer", &other)),
    }
}

/// The location of an object in the document, for error messages.
#[derive(Clone, Copy)]
enum Location {
    Body,
    Message(usize),
}

impl Location {
    fn name(self) -> Cow<'static, str> {
        match self {
            Self::Body => "The body".into(),
            Self::Message(at) => format!("`messages[{at}]`").into(),
        }
    }

    fn hint(self, name: &str) -> Option<&'static str> {
        match self {
            Self::Body => hints::for_body_member(name),
            Self::Message(_) => hints::for_message_member(name),
        }
    }

    fn member(self, name: &str) -> String {
        match self {
            Self::Body => excerpt(name),
            Self::Message(at) => format!("messages[{at}].{}", excerpt(name)),
        }
    }
}

/// Takes the accepted members of an object. Any other member, or a duplicate, is an error.
fn take_members<'a, const N: usize>(
    value: Json<'a>,
    location: Location,
    accepted: [&str; N],
) -> Result<[Option<Json<'a>>; N], RequestError> {
    let Json::Object(object) = value else {
        return Err(RequestError(format!("{} must be a JSON object; got {}.", location.name(), value.kind())));
    };
    let mut found = [const { None }; N];
    for (name, value) in object {
        let Some(at) = accepted.iter().position(|accepted| *accepted == name) else {
            let (member, accepted) = (location.member(&name), list(&accepted));
            return Err(RequestError(match location.hint(&name) {
                Some(hint) => format!("`{member}` is not accepted: {hint}. Accepted members are {accepted}."),
                None => format!("`{member}` is not accepted; accepted members are {accepted}."),
            }));
        };
        if found[at].replace(value).is_some() {
            return Err(RequestError(format!("`{}` appears more than once.", location.member(&name))));
        }
    }
    Ok(found)
}

fn required<'a>(value: Option<Json<'a>>, location: Location, name: &str) -> Result<Json<'a>, RequestError> {
    value.ok_or_else(|| RequestError(format!("`{}` is required.", location.member(name))))
}

fn wrong_type(location: Location, name: &str, expected: &str, got: &Json<'_>) -> RequestError {
    refuse(location, name, format!("must be {expected}; got {}", got.kind()))
}

fn refuse(location: Location, name: &str, reason: impl std::fmt::Display) -> RequestError {
    RequestError(format!("`{}` {reason}.", location.member(name)))
}

fn list(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// The start of a text that was sent, escaped for a message.
fn excerpt(text: &str) -> String {
    const MAX_CHARS: usize = 40;
    let mut shown: String = text.chars().take(MAX_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_CHARS).is_some() {
        shown.push('…');
    }
    shown
}
