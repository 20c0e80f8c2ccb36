//! The fast path for requests in their usual form, parsed without an intermediate tree of values. Any other request is left
//! to `request`, which reports the error.

use std::fmt;

use chat::{ChatRequest, MODEL, MaxTokens, Message, Role, Temperature};
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

/// `None` for an invalid or unusual request.
pub(crate) fn parse_request(body: &[u8]) -> Option<ChatRequest> {
    serde_json::from_slice::<PlainRequest>(body).ok().map(|PlainRequest(request)| request)
}

struct PlainRequest(ChatRequest);

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum RequestMember {
    Model,
    Messages,
    Temperature,
    MaxTokens,
}

impl<'de> Deserialize<'de> for PlainRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RequestVisitor) // a derived struct would also be read from an array
    }
}

struct RequestVisitor;

impl<'de> Visitor<'de> for RequestVisitor {
    type Value = PlainRequest;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a request")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<PlainRequest, A::Error> {
        let (mut model, mut messages) = (None, None);
        let (mut temperature, mut max_tokens) = (None, None);
        while let Some(member) = members.next_key()? {
            match member {
                RequestMember::Model => once(&mut model, members.next_value::<&str>()?)?,
                RequestMember::Messages => once(&mut messages, members.next_value::<Vec<PlainMessage>>()?)?,
                RequestMember::Temperature => once(&mut temperature, members.next_value::<f64>()?)?,
                RequestMember::MaxTokens => once(&mut max_tokens, members.next_value::<u16>()?)?,
            }
        }
        let (Some(MODEL), Some(messages)) = (model, messages) else { return Err(unusual()) };
        let messages = messages.into_iter().map(|PlainMessage(message)| message).collect();
        let temperature = temperature.map_or(Ok(Temperature::default()), Temperature::new);
        let max_tokens = max_tokens.map_or(Ok(MaxTokens::default()), |tokens| MaxTokens::new(tokens.into()));
        let (Ok(temperature), Ok(max_tokens)) = (temperature, max_tokens) else { return Err(unusual()) };
        ChatRequest::new(messages, temperature, max_tokens).map(PlainRequest).map_err(|_| unusual())
    }
}

struct PlainMessage(Message);

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum MessageMember {
    Role,
    Content,
}

impl<'de> Deserialize<'de> for PlainMessage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MessageVisitor)
    }
}

struct MessageVisitor;

impl<'de> Visitor<'de> for MessageVisitor {
    type Value = PlainMessage;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<PlainMessage, A::Error> {
        let (mut role, mut content) = (None, None);
        while let Some(member) = members.next_key()? {
            match member {
                MessageMember::Role => once(&mut role, members.next_value::<&str>()?)?,
                MessageMember::Content => once(&mut content, members.next_value::<String>()?)?,
            }
        }
        let (Some(role), Some(content)) = (role.and_then(Role::from_name), content) else { return Err(unusual()) };
        Message::new(role, content).map(PlainMessage).map_err(|_| unusual())
    }
}

fn once<T, E: Error>(member: &mut Option<T>, value: T) -> Result<(), E> {
    if member.replace(value).is_some() { Err(unusual()) } else { Ok(()) }
}

/// The message is never shown.
fn unusual<E: Error>() -> E {
    E::custom("")
}
