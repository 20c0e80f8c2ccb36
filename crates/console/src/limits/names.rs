//! Names of the people and keys that limits are for.

use std::collections::HashMap;

use chat::KeyId;
use maud::{Markup, html};
use store::{Account, AccountId, Scope};

use crate::page::{ConsoleResult, SignedIn};

pub(crate) struct Names {
    pub(crate) people: Vec<Account>,
    keys: HashMap<KeyId, String>,
}

impl Names {
    pub(crate) async fn read(user: &SignedIn<'_>) -> ConsoleResult<Self> {
        let people = match user.viewer().admin() {
            Some(admin) => user.store().accounts().list(admin).await?,
            None => user.viewer().account().cloned().into_iter().collect(),
        };
        Ok(Self { people, keys: user.store().keys().names_of_limited(user.viewer()).await? })
    }

    pub(crate) fn label(&self, scope: Scope) -> Markup {
        match scope {
            Scope::Everyone => html! { "Everyone" },
            Scope::EachPerson => html! { "Each person" },
            Scope::Owner(id) => html! { (self.email(id)) },
            Scope::Key(id) => html! { "Key " a href={ "/keys/" (id) } { (self.key_name(id)) } },
        }
    }

    /// Everyone first, then people, then keys, by their names.
    pub(crate) fn sort_name(&self, scope: Scope) -> String {
        match scope {
            Scope::Everyone => "0".into(),
            Scope::EachPerson => "1".into(),
            Scope::Owner(id) => format!("2 {}", self.email(id)),
            Scope::Key(id) => format!("3 {}", self.key_name(id).to_lowercase()),
        }
    }

    fn email(&self, id: AccountId) -> &str {
        self.people.iter().find(|account| account.id == id).map_or("a person", |account| account.email.as_str())
    }

    fn key_name(&self, id: KeyId) -> String {
        self.keys.get(&id).cloned().unwrap_or_else(|| id.to_string())
    }
}
