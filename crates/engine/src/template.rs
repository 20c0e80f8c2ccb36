//! Turns a conversation into a prompt's tokens with the model's own chat template.

use std::sync::Arc;

use chat::{ChatRequest, Role};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value, context};

use crate::cache::Token;
use crate::markup::{Marks, Markup, Piece};
use crate::model::{Model, ModelError};

pub(crate) struct ChatTemplate {
    model: Arc<Model>,
    environment: Environment<'static>,
    markup: Markup,
    begin: String,
    end: String,
}

const TEMPLATE: &str = "chat";

/// The template rejected the conversation. Holds the template's own message.
#[derive(Debug, thiserror::Error)]
#[error("the model's chat template refuses this conversation: {0}")]
pub(crate) struct TemplateError(String);

impl ChatTemplate {
    /// Compiles the model's template and renders a short conversation to test it.
    pub(crate) fn new(model: Arc<Model>) -> Result<Self, ModelError> {
        let template = model.template()?;
        let bad = |reason: String| ModelError::BadTemplate(model.file().to_owned(), reason);
        let markup = Markup::new(model.control_tokens(&template)).map_err(|error| bad(error.to_string()))?;
        let environment = environment(template).map_err(|error| bad(error.to_string()))?;
        let (begin, end) = model.begin_and_end();
        let template = Self { model: model.clone(), environment, markup, begin, end };
        let hello = [(Role::User, "Hello!".to_owned())];
        template.render(&hello).map_err(|error| bad(error.to_string()))?;
        Ok(template)
    }

    /// The tokens of a conversation, up to where the completion begins.
    pub(crate) fn prompt(&self, request: &ChatRequest) -> Result<Vec<Token>, TemplateError> {
        let messages = request.messages();
        let marks = Marks::absent_from(messages.iter().map(|message| message.content()));
        let guarded: Vec<_> =
            messages.iter().map(|message| (message.role(), self.markup.guard(message.content(), marks))).collect();
        // Some templates have no system role, or require alternating roles. Then the conversation is rewritten.
        let rendered =
            self.render(&guarded).or_else(|refusal| self.render(&alternating_roles(guarded)).map_err(|_| refusal));
        let rendered =
            rendered.map_err(|refusal| TemplateError(refusal.detail().unwrap_or("it cannot be rendered").into()))?;

        let mut tokens: Vec<Token> = Vec::new();
        for piece in self.markup.split_rendered(&rendered, marks) {
            match piece {
                Piece::Control(token) => tokens.push(token),
                Piece::Text(text) => tokens.extend(self.model.tokenize(&text)),
            }
        }
        if let Some(first) = self.model.first_token().filter(|first| tokens.first() != Some(first)) {
            tokens.insert(0, first);
        }
        Ok(tokens)
    }

    fn render(&self, messages: &[(Role, String)]) -> Result<String, Error> {
        let messages: Vec<Value> = messages
            .iter()
            .map(|(role, content)| context! { role => role.as_str(), content => content.as_str() })
            .collect();
        self.environment.get_template(TEMPLATE)?.render(context! {
            messages => messages,
            add_generation_prompt => true,
            // A completion of at most 512 tokens is too short for reasoning.
            enable_thinking => false,
            bos_token => self.begin.as_str(),
            eos_token => self.end.as_str(),
        })
    }
}

/// Configured like the Jinja environment that templates are written for: Python's, with trimmed blocks.
fn environment(template: String) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_template_owned(TEMPLATE, template)?;
    Ok(environment)
}

/// The same conversation with system messages turned into user messages and consecutive messages of one role merged.
fn alternating_roles(messages: Vec<(Role, String)>) -> Vec<(Role, String)> {
    let mut turns: Vec<(Role, String)> = Vec::new();
    for (role, content) in messages {
        let role = if role == Role::System { Role::User } else { role };
        match turns.last_mut() {
            Some((last, text)) if *last == role => {
                text.push_str("\n\n");
                text.push_str(&content);
            }
            _ => turns.push((role, content)),
        }
    }
    turns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_messages_become_user_messages_and_roles_alternate() {
        let said = |role, text: &str| (role, text.to_owned());
        let turns = alternating_roles(vec![
            said(Role::System, "s"),
            said(Role::User, "u"),
            said(Role::User, "v"),
            said(Role::Assistant, "a"),
        ]);
        assert_eq!(turns, [said(Role::User, "s\n\nu\n\nv"), said(Role::Assistant, "a")]);
    }

    #[test]
    fn a_template_without_a_system_role_renders_and_rejects_one() {
        let gemma = "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}";
        let environment = environment(gemma.into()).unwrap();
        let template = environment.get_template(TEMPLATE).unwrap();
        let say = |role: &str| vec![context! { role => role, content => " x " }];
        let rendered =
            template.render(context! { messages => say("user"), add_generation_prompt => true, bos_token => "<bos>" });
        assert_eq!(rendered.unwrap(), "<bos><start_of_turn>user\nx<end_of_turn>\n<start_of_turn>model\n");
        let refusal = template.render(context! { messages => say("system"), bos_token => "<bos>" }).unwrap_err();
        assert_eq!(refusal.detail(), Some("System role not supported"));
    }
}
