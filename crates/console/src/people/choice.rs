//! People in forms and paths: chosen by e-mail address from a list, or in a text field if the list would be long.

use maud::{Markup, html};
use store::{Account, AccountId};

use crate::page::{ConsoleError, ConsoleResult, SignedIn, parse_id};

/// Max. people in the list. A longer one would make the page large and hard to use.
const MAX_LISTED: usize = 200;

pub(crate) struct PersonChoice<'a> {
    pub(crate) field: &'a str,
    /// Values and labels of choices that are not a single person; the first is the default.
    pub(crate) others: &'a [(&'a str, &'a str)],
    pub(crate) selected: Option<&'a str>,
}

impl PersonChoice<'_> {
    pub(crate) fn render(&self, people: &[Account]) -> Markup {
        html! {
            @if people.len() <= MAX_LISTED {
                select name=(self.field) {
                    @for (value, label) in self.others { option value=(value) { (label) } }
                    @for person in people {
                        @let email = person.email.as_str();
                        option value=(email) selected[self.selected == Some(email)] { (email) }
                    }
                }
            } @else {
                @let (value, label) = self.others.first().copied().unwrap_or_default();
                input name=(self.field) value=(self.selected.unwrap_or(value)) autocomplete="off"
                    placeholder={ "e-mail, or " (label) };
            }
        }
    }
}

pub(crate) async fn find_by_id(user: &SignedIn<'_>, id: &str) -> ConsoleResult<Account> {
    let id: AccountId = parse_id(id)?;
    find(user, |account| account.id == id).await
}

pub(crate) async fn find_by_email(user: &SignedIn<'_>, email: &str) -> ConsoleResult<Account> {
    find(user, |account| account.email.as_str().eq_ignore_ascii_case(email)).await
}

async fn find(user: &SignedIn<'_>, is_wanted: impl Fn(&Account) -> bool) -> ConsoleResult<Account> {
    let accounts = user.store().accounts().list(user.admin()?).await?;
    accounts.into_iter().find(is_wanted).ok_or(ConsoleError::NotFound)
}
